"""`python -m benches.simulator_peer TRACE`: the replay beside `kvcache-simulator`, on the question that it answers.

The question: full attention, one request at a time, blocks of 512 tokens: how much of the second half of a block trace is hit
under `lru`, and by an eviction that knows the future? Both get the same trace, prompts cut to whole blocks and without answers.
Ours has one token more a prompt, since a request always computes its last token: with it the last whole block can be hit. For
it ours has one page more.

Where the rules are the same the hits are equal (a test says so). They differ in three things:

- From 256 blocks on our pools evict 1/128 of themselves at a time, for speed.
- Our requests compute into pages of the pool; theirs may leave out blocks that are not worth a place. So they can hit more by
  knowing the future.
- Their best is the most hits that their rule finds; ours is an interval for the whole trace, of which the upper end is exact.

Processor time is that of the two commands from start to end, in turns, the smallest of some.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unified_tree.components import composition_for
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.runs.row_result import RowResult
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.traces.trace import TraceOptions, read_trace

BLOCK_TOKENS = 512
MODEL = "qwen3-32b"
BLOCK_BYTES = 262_144 * BLOCK_TOKENS
OWN_BLOCKS = 1 << 40
"""Ids from here on are those of the last tokens, which no two prompts share."""
GIB = 1 << 30
WHOLE_PROMPT = 1 << 24
"""Tokens a step: a prompt is one chunk."""


def prepared(records: Iterator[dict[str, Any]], folder: Path) -> tuple[Path, Path]:
    """The trace for the peer and for ours, of Mooncake's records."""
    theirs, ours = folder / "theirs.jsonl", folder / "ours.jsonl"
    with theirs.open("w") as first, ours.open("w") as second:
        for number, record in enumerate(records):
            count = record["input_length"] // BLOCK_TOKENS
            if not count:
                continue
            ids = record["hash_ids"][:count]
            line = {"timestamp": record["timestamp"], "input_length": count * BLOCK_TOKENS, "output_length": 0, "hash_ids": ids}
            first.write(json.dumps(line) + "\n")
            line |= {"input_length": count * BLOCK_TOKENS + 1, "hash_ids": [*ids, OWN_BLOCKS + number]}
            second.write(json.dumps(line) + "\n")
    return theirs, ours


def their_command(trace: Path, blocks: int) -> list[str]:
    """The peer's command for a cache of so many blocks."""
    return [
        sys.executable, "-m", "kvcache_sim", "run", "--trace", str(trace), "--model", MODEL,
        "--block-size", str(BLOCK_TOKENS), "--budgets-gib", repr(blocks * BLOCK_BYTES / GIB),
        "--policies", "lru,optimal", "--no-progress", "--format", "json",
        "--backend", "cpp" if shutil.which("c++") else "python",
    ]  # fmt: skip


def our_command(trace: Path, blocks: int) -> list[str]:
    """Ours for the same question."""
    return [
        sys.executable, "-c", "from unified_tree.controllers.cli.cli import main; main()", "replay", str(trace),
        "--model", MODEL, "--page-size", str(BLOCK_TOKENS), "--pages", f"full={blocks + 1}",
        "--device-gib", repr((blocks + 1) * BLOCK_BYTES / GIB), "--policy", "lru", "--no-advice", "--concurrency", "1",
        "--chunk-tokens", str(WHOLE_PROMPT),
    ]  # fmt: skip


def their_hits(trace: Path, blocks: int) -> dict[str, int]:
    """Hit tokens of the second half, by policy."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(their_command(trace, blocks), capture_output=True, text=True, check=True, env=environment)
    [point] = json.loads(done.stdout)["points"]
    return {policy: result["hitTokens"] for policy, result in point["results"].items()}


def our_row(trace: Path, blocks: int) -> RowResult:
    """The replay under `lru`."""
    plan = Plan(
        workload=read_trace(trace, TraceOptions()),
        composition=composition_for(MODEL, page_size=BLOCK_TOKENS),
        device_bytes=(blocks + 1) * BLOCK_BYTES,
        settings=ServerSettings(concurrency=1, chunk_tokens=WHOLE_PROMPT),
    )
    return run_row(plan, RowSpec(kind=RowKind.POLICY, policy="lru", page_counts={"full": blocks + 1}))


def hits_of_the_second_half(row: RowResult) -> int:
    """Hit tokens of the later half of all requests, as the peer counts."""
    assert not row.rejected, "the peer has no requests that do not fit"
    return int(row.served["hit_tokens"][row.requests // 2 :].sum())


def processor_s(command: list[str]) -> float:
    """Processor seconds of a command, its children's included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a row for each capacity."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="Mooncake's form, gzip")
    parser.add_argument("--blocks", type=int, nargs="+", default=[1600, 6400])
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with gzip.open(options.trace, "rt") as stream:
            theirs, ours = prepared(map(json.loads, stream), Path(folder))
        print("blocks  lru: theirs / ours         knows the future: theirs  processor s: theirs / ours / ratio")
        for blocks in options.blocks:
            their, own = their_hits(theirs, blocks), hits_of_the_second_half(our_row(ours, blocks))
            commands = their_command(theirs, blocks), our_command(ours, blocks)
            turns = [[processor_s(command) for command in commands] for _ in range(options.turns)]
            first, second = (min(times) for times in zip(*turns, strict=True))
            print(
                f"{blocks:6,}  {their['lru']:>12,} / {own:<12,}  {their['optimal']:>24,}"
                f"  {first:.2f} / {second:.2f} / {second / first:.1f}"
            )


if __name__ == "__main__":
    main()
