"""`python -m benches.studies.tenants TRACES`: what shares of a cache cost, and what they keep.

Two questions, for some models and memories. Flood: a quiet tenant's trace has a floor, and another tenant asks ten times as
many prompts, none of which comes again. What does the quiet tenant hit, beside a cache of its share alone, and without shares?
Mix: two traces are two tenants with floors. What do both hit together, beside one cache without shares? Hits are of all prompt
tokens that were asked, those of refused requests included. Silent on: latency, and a host tier.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benches.machine import commit
from unified_tree.components import composition_for
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec, split_for_server
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.traces.synthetic import SyntheticOptions, synthetic_workload
from unified_tree.controllers.workbench.traces.trace import TraceOptions, read_trace
from unified_tree.controllers.workbench.traces.workload import Request, Workload, in_arrival_order, mixed, pack_runs
from unified_tree.declare.tenants import TenantGroup, Tenants

GIB = 1 << 30
FLOOD = 10
"""So many times the quiet tenant's prompt tokens."""
FLOOR = 0.25
"""Of the quiet tenant."""
REQUESTS = 800
CELLS = (("llama-3.1-8b", 200), ("qwen3-next-80b-a3b", 60))
POLICIES = ("density", "lru")
CONCURRENCY = 16
MIX = 0.3
"""The floor of either tenant of a mix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Prompt tokens that were hit, in %, by tenant and in all."""

    tenants: Mapping[str, float]
    total: float


def replayed(
    workload: Workload, model: str, size_bytes: int, policy: str, floors: Mapping[str, float] | None, concurrency: int
) -> Hits:
    """The hits of a workload in a cache of that size, with these floors."""
    groups = tuple(TenantGroup(name=name, namespaces=(name,), floor=floor) for name, floor in (floors or {}).items())
    plan = Plan(
        workload=workload,
        composition=composition_for(model),
        device_bytes=size_bytes,
        settings=ServerSettings(concurrency=concurrency),
        tenants=Tenants(groups=groups) if groups else None,
    )
    split = split_for_server(plan.composition, plan.device_bytes, plan.settings)
    row = run_row(plan, RowSpec(kind=RowKind.POLICY, policy=policy, page_counts=split, is_bounded=False))
    asked: dict[str, int] = {}
    for request in workload.requests:
        asked[request.namespace] = asked.get(request.namespace, 0) + request.prompt_tokens
    return Hits(
        tenants={name: 100 * each.hit_tokens / asked[name] for name, each in row.cache.tenants.items() if name in asked},
        total=100 * row.hit_tokens / workload.prompt_tokens,
    )


def flood_of(quiet: Workload, times: int) -> Workload:
    """Prompts that share nothing, of so many times the tokens of a workload, spread over its time."""
    random = np.random.default_rng(7)
    requests: list[Request] = []
    block = 0
    for _ in range(times):
        for request in quiet.requests:
            count = max(1, request.prompt_tokens // request.block_tokens)
            jitter = float(random.uniform(0, 2))
            runs = pack_runs(np.arange(block, block + count))
            block += count
            requests.append(
                Request(
                    index=0,
                    arrival_s=request.arrival_s + jitter,
                    runs=runs,
                    block_tokens=request.block_tokens,
                    prompt_tokens=count * request.block_tokens,
                    output_tokens=min(64, request.output_tokens),
                )
            )
    return Workload(name="flood", requests=in_arrival_order(requests), block_count=block)


def first(workload: Workload, count: int) -> Workload:
    """Its first requests."""
    return replace(workload, requests=workload.requests[:count])


def floods(conversation: Workload, agents: Workload, model: str, gib: int) -> Iterator[dict[str, object]]:
    """A row for each quiet tenant, policy and floor."""
    for name, quiet in (("conversations", first(conversation, REQUESTS // 2)), ("agents", first(agents, REQUESTS // 2))):
        both = mixed({"quiet": quiet, "flood": flood_of(quiet, FLOOD)})
        for policy in POLICIES:
            without = replayed(both, model, gib * GIB, policy, {"quiet": 0.0}, CONCURRENCY)
            alone = replayed(mixed({"quiet": quiet}), model, int(gib * GIB * FLOOR), policy, {"quiet": 0.0}, CONCURRENCY)
            shares = replayed(both, model, gib * GIB, policy, {"quiet": FLOOR}, CONCURRENCY)
            yield {
                "case": f"flood, {name}",
                "model": model,
                "gib": gib,
                "policy": policy,
                "alone": alone.tenants["quiet"],
                "with": shares.tenants["quiet"],
                "without": without.tenants["quiet"],
                "total with": shares.total,
                "total without": without.total,
            }


def mixes(conversation: Workload, agents: Workload, model: str, gib: int) -> Iterator[dict[str, object]]:
    """A row for each pair of traces and policy."""
    built_in = synthetic_workload(SyntheticOptions(request_count=REQUESTS))
    pairs = {
        "conversations + agents": {"a": first(conversation, REQUESTS), "b": first(agents, REQUESTS)},
        "agents + built-in": {"a": first(agents, REQUESTS), "b": built_in},
    }
    for name, pair in pairs.items():
        both = mixed(pair)
        for policy in POLICIES:
            without = replayed(both, model, gib * GIB, policy, None, CONCURRENCY)
            shares = replayed(both, model, gib * GIB, policy, {"a": MIX, "b": MIX}, CONCURRENCY)
            yield {
                "case": f"mix, {name}",
                "model": model,
                "gib": gib,
                "policy": policy,
                "with": shares.total,
                "without": without.total,
                "by tenant": dict(shares.tenants),
            }


def main(arguments: list[str] | None = None) -> int:
    """Print a row as it comes, as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--model", default="", help="only the cells of this model")
    parser.add_argument("--case", choices=("flood", "mix"), help="only these rows")
    given = parser.parse_args(arguments)
    options = TraceOptions(max_requests=REQUESTS)
    conversation = read_trace(next(given.traces.rglob("conversation_trace.jsonl.gz")), options)
    agents = read_trace(next(given.traces.rglob("claude_code.runs.jsonl.gz")), options)
    print(json.dumps({"commit": commit()}), flush=True)
    for model, gib in CELLS:
        for name, case in (("mix", mixes), ("flood", floods)):
            if given.model in ("", model) and given.case in (None, name):
                for row in case(conversation, agents, model, gib):
                    print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
