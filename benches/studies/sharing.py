"""`python -m benches.studies.sharing`: what do tenants gain from prefixes that are common once k others have shown them?

The built-in workload's sessions are those of applications, each with a system prompt of its own, and each session is given to
one of many tenants, the k-th drawn in proportion to 1 / k. Rows: every tenant alone in its namespace, common after 2 and after
3 others, and all in one namespace, the most that there is to gain. Hits are of all prompt tokens that were asked. Silent on:
latency, and what several servers show one another.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter

import numpy as np

from benches.machine import commit
from unified_tree.components import composition_for
from unified_tree.controllers.cache.sharing import ShownPrefixes
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec, split_for_server
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.traces.synthetic import SyntheticOptions, synthetic_workload
from unified_tree.controllers.workbench.traces.workload import NO_CHAIN, Workload
from unified_tree.declare.tenants import TenantGroup, Tenants

GIB = 1 << 30
TENANTS = 40
REQUESTS = 1500
CONCURRENCY = 16
AFTER = (2, 3)
CELLS = (("llama-3.1-8b", 40), ("qwen3-next-80b-a3b", 12))
CASES = {
    "one question each": SyntheticOptions(
        request_count=REQUESTS, mean_turns=1.0, fan_out_share=0.0, system_tokens=(4_000, 12_000)
    ),
    "short tasks": SyntheticOptions(request_count=REQUESTS, mean_turns=2.0, system_tokens=(4_000, 12_000)),
    "long sessions": SyntheticOptions(request_count=REQUESTS),
}


def of_tenants(workload: Workload, count: int) -> Workload:
    """The same requests, each session of one of so many tenants; a subagent's is that of its parent."""
    draw = np.random.default_rng(3)
    odds = 1 / np.arange(1, count + 1)
    owners: dict[int, int] = {}
    requests = []
    for request in workload.requests:
        above = request.parent_chain if request.parent_chain != NO_CHAIN else request.chain
        owner = owners.get(above)
        if owner is None:
            owner = owners[above] = int(draw.choice(count, p=odds / odds.sum()))
        owners.setdefault(request.chain, owner)
        requests.append(replace(request, namespace=f"t{owner}"))
    return replace(workload, requests=tuple(requests))


def hits(workload: Workload, model: str, gib: int, policy: str, tenants: Tenants | None) -> float:
    """The hits of a workload in a cache of that size, in % of its prompt tokens."""
    plan = Plan(
        workload=workload,
        composition=composition_for(model),
        device_bytes=gib * GIB,
        settings=ServerSettings(concurrency=CONCURRENCY),
        tenants=tenants,
    )
    split = split_for_server(plan.composition, plan.device_bytes, plan.settings)
    row = run_row(plan, RowSpec(kind=RowKind.POLICY, policy=policy, page_counts=split, is_bounded=False))
    return 100 * row.hit_tokens / workload.prompt_tokens


def rows(model: str, gib: int) -> Iterator[dict[str, object]]:
    """A row for each case and policy."""
    for name, options in CASES.items():
        shared = of_tenants(synthetic_workload(options), TENANTS)
        one = replace(shared, requests=tuple(replace(request, namespace="") for request in shared.requests))
        for policy in ("density", "lru"):
            row: dict[str, object] = {"case": name, "model": model, "gib": gib, "policy": policy}
            row["isolated"] = alone = hits(shared, model, gib, policy, None)
            for after in AFTER:
                groups = tuple(TenantGroup(name=f"t{i}", namespaces=(f"t{i}",), shares=True) for i in range(TENANTS))
                row[f"after {after}"] = found = hits(shared, model, gib, policy, Tenants(groups=groups, share_after=after))
                row[f"gain after {after}"] = found / alone
            row["one namespace"] = hits(one, model, gib, policy, None)
            yield row


def costs() -> dict[str, float]:
    """The time of the table for a prompt of 100,000 tokens, in microseconds a page, the fastest of five."""
    page_count, page_size = 6_250, 16
    prompts = [np.random.default_rng(seed).integers(0, 100_000, page_count * page_size).tobytes() for seed in range(5)]
    hashing, noting = [], []
    for prompt in prompts:
        shown = ShownPrefixes(after=2, max_pages=page_count, salt=b"")
        begun = perf_counter()
        digests = shown.digests(prompt, 8 * page_size, b"")
        hashed = perf_counter()
        for tenant in range(4):
            shown.common_pages(digests, tenant)
            shown.note(digests, tenant)
        hashing.append(hashed - begun)
        noting.append((perf_counter() - hashed) / 4)
    return {"hash us/page": 1e6 * min(hashing) / page_count, "look up and note us/page": 1e6 * min(noting) / page_count}


def main(arguments: list[str] | None = None) -> int:
    """Print a row as it comes, as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="", help="only the cells of this model")
    given = parser.parse_args(arguments)
    print(json.dumps({"commit": commit()} | costs()), flush=True)
    for model, gib in CELLS:
        if given.model in ("", model):
            for row in rows(model, gib):
                print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
