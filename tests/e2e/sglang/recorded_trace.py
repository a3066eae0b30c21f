"""Records a trace inside SGLang and replays it: `python recorded_trace.py --requests 200`, run by the engine's python.

An engine with `--radix-cache-backend unified_tree` and the observer `record` serves mixes of one seed each. Compared are, for
each case, the cached tokens that the engine reported to its clients, those in the trace, those that the trace's own hashes
allow to a cache that forgets nothing, with the blocks of the answers and without them, and those of a replay with as many
pages. The status is 1 if the trace lacks a request, or has other cached tokens than the engine reported.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from caches import OURS, Cache
from cases import Case
from imported_engine import ImportedEngine
from run_mixes import Serving, base_environment, served

from unified_tree.components import from_hf_config
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.traces.trace import TraceOptions, read_trace

PAGE = 16
RECORD = "unified_tree.controllers.workbench.recorder.cache_recorder:open_recorder"
WAVES_REQUESTS = 3.5
"""Of a wave, on the average."""
STEP_MS = 2.0
"""Of the replay; a step of the tiny model takes about as long."""
SIZES = {"ample": 65_536, "small": 1024}
"""Tokens in the pool."""


def possible(lines: list[dict[str, Any]], *, with_answers: bool) -> int:
    """The prompt tokens in whole blocks that earlier requests had, by the hashes of a trace."""
    known: set[int] = set()
    hits = 0
    for line in lines:
        most = (line["input_length"] - 1) // line["block_size"]
        found = next((at for at, each in enumerate(line["hash_ids"]) if each not in known), len(line["hash_ids"]))
        hits += min(found, most) * line["block_size"]
        known.update(line["hash_ids"], line.get("output_hash_ids", ()) if with_answers else ())
    return hits


def replayed(directory: Path, model: Path, pool_tokens: int, running: int) -> tuple[int, int]:
    """The prompt tokens and the hits of a replay under lru, with the engine's pool and batch."""
    composition = from_hf_config(json.loads((model / "config.json").read_text()), page_size=PAGE, kv_dtype="float32")
    pages = {component.name: pool_tokens // PAGE for component in composition.components}
    plan = Plan(
        composition=composition,
        device_bytes=sum(pages[name] * size for name, size in composition.pool_page_bytes().items()),
        settings=ServerSettings(concurrency=running, chunk_tokens=64, step_ms=STEP_MS),
        host=None,
        storage=None,
        linker=None,
        shares_pools=False,
        workload=read_trace(directory, TraceOptions()),
    )
    result = run_row(plan, RowSpec(kind=RowKind.POLICY, policy="lru", page_counts=pages, is_bounded=False))
    return result.prompt_tokens, result.hit_tokens


def main() -> int:
    """Serve, replay, print a row for each size and way of sending."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200, help="about how many each row serves")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[3], help="a checkout of unified_tree")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "unified-tree-tiny-models")
    parser.add_argument("--timeout", type=float, default=900)
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="unified-tree-recorded-"))
    options.models.mkdir(parents=True, exist_ok=True)
    asked = Serving(models=options.models, no_aborts=True, timeout=options.timeout)
    imported = ImportedEngine(base_environment(work, options.source))
    head = ("pool", "at once", "requests", "prompt", "reported", "in trace", "possible", "without answers", "replay")
    rows: list[tuple[str, ...]] = [head]
    is_wrong = False
    for (size, tokens), at_once in ((each, count) for each in SIZES.items() for count in (1, 6)):
        waves = round(options.requests / (1 if at_once == 1 else WAVES_REQUESTS))
        case = Case(
            name=f"{size}-{at_once}",
            model="llama",
            engine={"max_total_tokens": tokens, "page_size": PAGE},
            mix={"waves": waves, "at_once": at_once, "longest": 640},
        )
        traces = work / f"{case.name}.traces"
        observers = {RECORD: {"directory": str(traces), "block_tokens": PAGE}}
        cache = Cache(name="recorded", engine=OURS, config={"observers": observers})
        run = served(case, cache, 0, [options.seed], work, asked, imported)
        if run.trouble:
            print("\n".join(run.trouble))
            return 1
        lines = [json.loads(line) for path in sorted(traces.glob("*.jsonl")) for line in path.read_text().splitlines()]
        lines.sort(key=lambda line: line["timestamp"])
        prompt, hits = replayed(traces, options.models / "llama", tokens, 4)
        reported, in_trace = sum(each["cached_tokens"] for each in run.requests), sum(each["cached_tokens"] for each in lines)
        figures = (prompt, reported, in_trace, possible(lines, with_answers=True), possible(lines, with_answers=False), hits)
        rows.append((size, str(at_once), str(len(lines)), *(f"{each:,}" for each in figures)))
        is_wrong |= len(lines) != len(run.requests) or reported != in_trace
    imported.close()
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print("\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows))
    print(f"\nlogs and traces: {work}")
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
