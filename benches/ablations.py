"""`python -m benches.ablations TRACES`: what does each part of `density` bring?

Question: how many of the prompt tokens are hit if one part of the order does nothing? Six cells, two of them with few windows
or states beside the paths. Compiled modules keep their parts, so this runs in a checkout that is not compiled, and takes an
hour and more. Silent on: host memory, one budget for all pools, parts that only matter together. Figures that the file of an
earlier run has are kept; where the order has changed since, begin with a new file.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import AbstractContextManager, nullcontext
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benches.cell import parsed
from benches.machine import core
from unified_tree import reuse, visit_memory
from unified_tree.controllers.replay.plan import RowKind, RowSpec
from unified_tree.controllers.replay.row import run_row
from unified_tree.reuse import Reuse

CONVERSATIONS = ("conversation_trace.jsonl.gz", "--requests", "6000")
QWEN = ("--model", "qwen3-next-80b-a3b")
GEMMA = ("--model", "gemma-3-27b")
CELLS: dict[str, tuple[str, ...]] = {
    "conversations, qwen3-next-80b-a3b (80)": (*CONVERSATIONS, *QWEN, "--device-gib", "80"),
    "conversations, gemma-3-27b (300)": (*CONVERSATIONS, *GEMMA, "--device-gib", "300"),
    "conversations, qwen3-next-80b-a3b (`full=46875,mamba=200`)": (
        *CONVERSATIONS,
        *QWEN,
        "--pages",
        "full=46875,mamba=200",
    ),
    "conversations, gemma-3-27b (`full=156250,swa=4688`)": (*CONVERSATIONS, *GEMMA, "--pages", "full=156250,swa=4688"),
    "built-in, qwen3-next-80b-a3b (20)": (*QWEN, "--device-gib", "20"),
    "built-in, deepseek-v4-flash (4)": ("--model", "deepseek-v4-flash", "--device-gib", "4"),
}
LRU = "nothing learned: `lru`"
choose_mode = Reuse._choose_mode


def never_by_class(order: Reuse) -> None:
    """`Reuse._choose_mode`, were classes never told apart."""
    order._classes_pay = False
    choose_mode(order)


def nothing(*_: object) -> None:
    """In place of a method."""


PARTS: dict[str, AbstractContextManager[Any]] = {
    "all of it": nullcontext(),
    LRU: nullcontext(),
    "all sessions alike (never by class)": patch.object(Reuse, "_choose_mode", never_by_class),
    "length never counts (`LENGTH_PAYS = inf`)": patch.object(reuse, "LENGTH_PAYS", inf),
    "all places of a session alike (`rank_of` is 0)": patch.object(reuse, "rank_of", lambda *_: 0),
    "nothing known of places where sessions fork off (`Reuse._fork` does nothing)": patch.object(Reuse, "_fork", nothing),
    "what runs costs as much as what does not (`Reuse.locked` does nothing)": patch.object(Reuse, "locked", nothing),
    "never compared with recency (`Reuse._compare` does nothing)": patch.object(Reuse, "_compare", nothing),
    "worth never rises with age (`RISE_PAYS = inf`)": patch.object(visit_memory, "RISE_PAYS", inf),
    "worth may always rise (`RISE_PAYS = -inf`)": patch.object(visit_memory, "RISE_PAYS", -inf),
}
"""What is altered while a row runs; of LRU the policy is."""


def hit_rate(part: str, cell: str, traces: Path) -> float:
    """Of the prompt tokens."""
    arguments = parsed(CELLS[cell], traces)
    policy = "lru" if part == LRU else "density"
    spec = RowSpec(kind=RowKind.POLICY, policy=policy, page_counts=arguments.page_counts, is_bounded=False)
    with PARTS[part]:
        row = run_row(arguments.plan(), spec)
    return row.hit_tokens / max(1, row.prompt_tokens)


def main(arguments: list[str] | None = None) -> int:
    """Measure what is not known yet, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benches.ablations", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("traces", type=Path, help="the folder under which the two traces lie")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells whose name has it")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the figures there; what it has is kept")
    options = parser.parse_args(arguments)
    if core() == "compiled":
        parser.error("the order is compiled: run this in a checkout, with PYTHONPATH=. and python -P")
    found: dict[str, dict[str, float]] = {}
    if options.json and options.json.exists():
        found = json.loads(options.json.read_text())
    cells = [cell for cell in CELLS if options.only in cell]
    for cell in cells:
        figures = found.setdefault(cell, {})
        for part in PARTS:
            if part not in figures:
                figures[part] = hit_rate(part, cell, options.traces)
                print(f"{cell}: {part}: {100 * figures[part]:.2f}", file=sys.stderr, flush=True)
                if options.json:
                    options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"| | {' | '.join(cells)} |\n|{'---|' * (len(cells) + 1)}")
    for part in PARTS:
        print(f"| {part} | {' | '.join(f'{100 * found[cell][part]:.1f}' for cell in cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
