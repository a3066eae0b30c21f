"""Compares caches on the same mixes of requests: `python run_mixes.py --caches none,builtin,ours --requests 200`.

Each pair of a case and a cache is an engine of its own. Every output token must equal that of the engine without a cache (if
that one fails, of the next), and with a draft model the number of verified drafts too. No request may reuse more
tokens than its namespace has seen, and no mix may have fewer hits than with SGLang's own cache. The engine's python runs it. It
ends with a table, and with status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

import cache_times
import plugin_path
import tiny_models
from caches import CACHES, CONFIG_VARIABLE, Cache, chosen
from cases import CASES, Case
from imported_engine import ImportedEngine

HERE = Path(__file__).parent
REQUESTS_A_MIX = 40
NEAR_TIE = 1e-3
"""Log probability between the two likeliest tokens, below which another order of arithmetic may choose the other."""
CHECKS = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "2",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
    "SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK": "1",
}
"""SGLang's own checks of its pools, after each step and at rest."""
AT_IMPORT = ("TRITON", "SGLANG_TEST_RETRACT")
"""How the variables begin that SGLang reads while it is imported."""
ENGINE: dict[str, object] = {
    "device": "cpu",
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "disable_overlap_schedule": True,
    "attention_backend": "torch_native",
    "chunked_prefill_size": 64,
    "max_running_requests": 4,
    "context_length": 1024,
    "random_seed": 0,
    "log_level": "warning",
}


CASES_HELP = f"of {','.join(case.name for case in CASES)}; all if left out; one named twice takes two turns"


@dataclass(slots=True)
class Run:
    """What one cache gave for one case."""

    case: Case
    cache: Cache
    turn: int
    mixes: list[dict[str, Any]] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    equal: int | None = None
    ties: int = 0

    @property
    def requests(self) -> list[dict[str, Any]]:
        """All requests of all mixes."""
        return [request for mix in self.mixes for request in mix["requests"]]


class ServingProcess(Protocol):
    """Runs SGLang on a spec, in a process of its own; see `ImportedEngine`."""

    environment: dict[str, str]

    def serve(self, spec: Path, environment: dict[str, str], log: Path, timeout: float) -> None:
        """Serve a spec to its end, or to the end of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How an engine is to serve: its ranks by kind of parallelism, and up to how many seconds.

    Attributes:
        models: where tiny models are saved.
        timing: measure times, without SGLang's checks.
    """

    models: Path
    timeout: float
    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    no_aborts: bool = False
    timing: bool = False


def served(
    case: Case,
    cache: Cache,
    turn: int,
    seeds: list[int],
    work: Path,
    options: Serving,
    imported: ServingProcess,
    more: dict[str, object] | None = None,
) -> Run:
    """Start an engine with a cache, serve the mixes, read what they gave; `more` is for the spec."""
    name = f"{case.name}.{cache.name}"
    spec = work / f"{name}.spec.json"
    result = work / f"{name}.json"
    log = work / f"{name}.log"
    files = work / f"{case.name}.files"
    files.mkdir(exist_ok=True)
    model = tiny_models.saved(case.model, options.models)
    engine = {**ENGINE, "model_path": str(model), **case.engine, **cache.engine}
    if case.has_draft:
        engine["speculative_draft_model_path"] = str(tiny_models.saved_draft(options.models))
    if "adapters" in case.mix:
        engine["lora_paths"] = {name: str(tiny_models.saved_adapter(options.models, name)) for name in tiny_models.ADAPTERS}
    if options.tp > 1:
        engine["tp_size"] = options.tp
    if options.cp > 1:
        engine |= {"attn_cp_size": options.cp, "enable_prefill_cp": True, "cp_strategy": "zigzag"}
    if options.pp > 1:
        engine["pp_size"] = options.pp
    if options.dp > 1:
        tokens = int(str(engine["max_total_tokens"])) // options.dp  # of each group, which serves so many fewer requests
        engine |= {"attn_dp_size": options.dp, "load_balance_method": "round_robin", "max_total_tokens": tokens}
        engine["attention_backend"] = "cpu_windows"  # fills a step up with rows of no request, which `torch_native` cannot
    mix = {**case.mix, "aborts": not options.no_aborts}
    if not cache.engine.get("radix_cache_backend"):
        mix.pop("sessions", None)  # other caches are given the whole prompts
    mix["session_ids"] = bool(cache.engine.get("enable_session_radix_cache"))
    contents = {"engine": engine, "mix": mix, "seeds": seeds, "empties": not cache.keeps_files, "result": str(result)}
    spec.write_text(json.dumps({**contents, **(more or {})}))
    environment = {
        **imported.environment,
        **({} if options.timing else CHECKS),
        **case.environment,
        CONFIG_VARIABLE: json.dumps(cache.settings(files, turn)),
    }
    if options.timing:
        environment["SGLANG_CACHE_TIMING"] = str(work / f"{name}.timing.jsonl")
    ranks = options.tp * options.pp
    if ranks > 1:  # SGLang asks for a core of its own for each rank, where a machine has fewer memory nodes
        cores = os.cpu_count() or 1
        environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(rank % cores) for rank in range(ranks))
    if ranks > 1 and cache.is_ours:
        environment["SGLANG_TREE_DIGEST"] = str(work / f"{name}.digest")
        for rank in range(ranks):
            Path(f"{environment['SGLANG_TREE_DIGEST']}.{rank}").unlink(missing_ok=True)
    result.unlink(missing_ok=True)
    run = Run(case, cache, turn)
    imported.serve(spec, environment, log, options.timeout)
    if result.exists():
        run.mixes = json.loads(result.read_text())["mixes"]
    else:
        run.trouble.append(f"the engine failed: {log}: {last_error(log)}")
    if "SGLANG_TREE_DIGEST" in environment and result.exists():
        run.trouble += differing_trees(Path(environment["SGLANG_TREE_DIGEST"]), ranks, options.tp, options.dp)
    return run


def differing_trees(path: Path, ranks: int, ranks_a_stage: int, groups: int) -> list[str]:
    """The ranks whose trees, of which each emptying left a digest, are not those of the first that serves the same requests.

    Args:
        groups: of neighbouring ranks of each stage that serve requests of their own.
    """
    texts = [Path(f"{path}.{rank}").read_text().splitlines() for rank in range(ranks)]
    if not all(texts):
        return ["no digest of a tree"]
    peers = ranks_a_stage // groups
    first = [texts[rank % ranks_a_stage // peers * peers] for rank in range(ranks)]
    return [f"the tree of rank {rank} is not that of its peers" for rank in range(ranks) if texts[rank] != first[rank]]


def base_environment(work: Path, source: Path | None) -> dict[str, str]:
    """What SGLang reads while it is imported."""
    return {
        **os.environ,
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": plugin_path.joined(work, source),
    }


def last_error(log: Path) -> str:
    """The line of a log that says most about why an engine ended."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if "Error" in line and "import error" not in line and "Pyspy" not in line]
    return (errors or lines or ["no output"])[0][:300]


def compare(run: Run, reference: Run, builtin: Run | None) -> None:
    """Note what differs from the engine without a cache, or the next if that one failed; and hits below SGLang's own cache."""
    equal = 0
    for index, (mine, theirs) in enumerate(zip(run.mixes, reference.mixes, strict=False)):
        for got, wanted in zip(mine["requests"], theirs["requests"], strict=False):
            where = f"mix {mine['seed']}, request {got['number']}"
            length = len(wanted["output"]) if got["abort"] == "no" else min(len(got["output"]), len(wanted["output"]))
            if got["prompt_tokens"] == wanted["prompt_tokens"] and is_tie(got["output"][:length], wanted):
                run.ties += 1
            elif got["prompt_tokens"] != wanted["prompt_tokens"] or got["output"][:length] != wanted["output"][:length]:
                run.trouble.append(f"{where}: {got['output']} instead of {wanted['output']}")
            elif got["abort"] == "no" and got["finish"] != "length":
                run.trouble.append(f"{where}: ended by {got['finish']}")
            elif got["abort"] == "no" and not got["retractions"] and got["verifications"] != wanted["verifications"]:
                run.trouble.append(f"{where}: {got['verifications']} verified drafts instead of {wanted['verifications']}")
            else:
                equal += 1
            if got["cached_tokens"] > got["known_tokens"] and not run.cache.restarts and not got["retractions"]:
                run.trouble.append(f"{where}: {got['cached_tokens']} cached of {got['known_tokens']} tokens ever seen")
        if builtin is not None and run.cache.is_ours and index < len(builtin.mixes):
            mine_hits, their_hits = (sum(r["cached_tokens"] for r in mix["requests"]) for mix in (mine, builtin.mixes[index]))
            if mine_hits < their_hits:
                run.trouble.append(f"mix {mine['seed']}: {mine_hits} cached tokens, {their_hits} with SGLang's cache")
    run.equal = equal


def is_tie(output: list[int], wanted: dict[str, Any]) -> bool:
    """Whether an output differs from the wanted one, and first where that engine was as good as undecided."""
    pairs = enumerate(zip(output, wanted["output"], strict=False))
    at = next((i for i, (token, other) in pairs if token != other), None)
    return at is not None and at < len(wanted["margins"]) and wanted["margins"][at] < NEAR_TIE


def table(runs: list[Run]) -> str:
    """One line a run, aligned."""
    head = (
        "case",
        "page",
        "cache",
        "writes",
        "requests",
        "aborts",
        "retracted",
        "prompt",
        "cached",
        "equal",
        "seconds",
        "trouble",
    )
    rows: list[tuple[str, ...]] = [head]
    for run in runs:
        requests = run.requests
        sums = [sum(request[name] for request in requests) for name in ("retractions", "prompt_tokens", "cached_tokens")]
        rows.append(
            (
                run.case.name,
                str(run.case.engine["page_size"]),
                run.cache.name,
                run.cache.writes(run.turn) or "-",
                f"{len(requests):,}",
                str(sum(request["abort"] != "no" for request in requests)),
                *(f"{each:,}" for each in sums),
                "-" if run.equal is None else f"{run.equal:,}",
                f"{sum(mix['seconds'] for mix in run.mixes):.0f}",
                str(len(run.trouble)),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def main() -> int:
    """Run the cases, print the table, say what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--caches", default="none,builtin", help="of " + ",".join(cache.name for cache in CACHES))
    parser.add_argument("--cases", default="", help=CASES_HELP)
    parser.add_argument("--requests", type=int, default=200, help="about how many each case serves")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--no-aborts", action="store_true")
    parser.add_argument("--timing", action="store_true", help="measure the time in the cache, without SGLang's checks")
    parser.add_argument("--tp", type=int, default=1, help="ranks, joined by gloo")
    parser.add_argument("--cp", type=int, default=1, help="of those ranks, how many divide the tokens of a prefill")
    parser.add_argument("--pp", type=int, default=1, help="stages of a pipeline")
    parser.add_argument("--dp", type=int, default=1, help="groups of the ranks that attend to requests of their own")
    parser.add_argument("--source", type=Path, help="a checkout of unified_tree that the engine imports, if not installed")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "unified-tree-tiny-models")
    parser.add_argument("--work", type=Path, help="where specs, logs and results are kept; a new folder if left out")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one engine")
    options = parser.parse_args()
    names = options.cases.split(",") if options.cases else [case.name for case in CASES]
    by_name = {case.name: case for case in CASES}
    work: Path = options.work or Path(tempfile.mkdtemp(prefix="unified-tree-mixes-"))
    for folder in (work, options.models):
        folder.mkdir(parents=True, exist_ok=True)
    serving = Serving(**{each.name: getattr(options, each.name) for each in fields(Serving)})
    runs: list[Run] = []
    base = base_environment(work, options.source)
    imports: dict[str, ImportedEngine] = {}
    for case in (by_name[name] for name in names):
        count = max(1, round(options.requests * case.share / REQUESTS_A_MIX))
        seeds = list(range(options.first_seed, options.first_seed + count))
        of_case: dict[str, Run] = {}
        at_import = {key: value for key, value in case.environment.items() if key.startswith(AT_IMPORT)}
        imported = imports.get(str(at_import)) or ImportedEngine({**base, **at_import})
        imports[str(at_import)] = imported
        for cache in chosen(options.caches.split(",")):
            start = time.monotonic()
            turn = CASES.index(case) + CACHES.index(cache)
            run = of_case[cache.name] = served(case, cache, turn, seeds, work, serving, imported)
            runs.append(run)
            reference = next((each for each in of_case.values() if each.mixes), None)
            if "none" in of_case and reference is not None and run is not reference:
                compare(run, reference, of_case.get("builtin"))
            print(f"{case.name}, {cache.name}: {len(run.requests)} requests in {time.monotonic() - start:.0f} s", flush=True)
            for line in run.trouble[:5]:
                print(f"    {line}", flush=True)
    for imported in imports.values():
        imported.close()
    print(f"\n{table(runs)}\n\nlogs and results: {work}")
    if options.timing:
        print("\n" + cache_times.table([(run.case.name, run.cache.name, len(run.requests)) for run in runs], work))
    return 1 if any(run.trouble for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
