"""`python -m benches.memory TRACES`: in how much of the memory `density` hits what `lru` hits, in the cells of `benches.cells`.

Question: what share of a device budget can be given back if the order changes from `lru` to `density` and the hits stay? Each
cell is bisected down to a sixteenth of its budget; every size tried is split between the pools as any budget is. Silent on:
host memory, stores, one budget for all pools. Cells that the file of an earlier run has are not replayed again; where the cache
has changed since, begin with a new file.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benches.cells import Cell, cells
from unified_tree.controllers.replay.budget_split import split_for_server
from unified_tree.controllers.replay.plan import Plan, RowKind, RowSpec
from unified_tree.controllers.replay.row import run_row
from unified_tree.errors import ConfigurationError

PARTS = 16
NOTHING = 0.001
HEADS = "workload | model | GiB | `lru` hits | `density` needs | and hits"


def hit_rate(plan: Plan, policy: str, parts: int = PARTS) -> float:
    """Hit tokens a prompt token, with `parts` sixteenths of the memory; 0 where no request runs in so little."""
    try:
        page_counts = split_for_server(plan.composition, plan.device_bytes * parts // PARTS, plan.settings)
        row = run_row(plan, RowSpec(kind=RowKind.POLICY, policy=policy, page_counts=page_counts))
    except ConfigurationError:
        return 0.0
    return row.hit_tokens / row.prompt_tokens if row.prompt_tokens else 0.0


def needed(cell: Cell, traces: Path) -> dict[str, Any]:
    """The row of a cell: the fewest sixteenths of its memory in which `density` hits at least what `lru` hits in all of it.

    Where it hits less in all of it, or `lru` next to nothing, no share is known: None.
    """
    plan = cell.plan(traces)
    wanted, rate = hit_rate(plan, "lru"), hit_rate(plan, "density")
    row = asdict(cell) | {"lru": wanted, "needed": None, "density": rate}
    if rate < wanted or wanted < NOTHING:
        return row
    less, enough = 0, PARTS
    while enough - less > 1:
        middle = (less + enough) // 2
        tried = hit_rate(plan, "density", middle)
        if tried >= wanted:
            enough, rate = middle, tried
        else:
            less = middle
    return row | {"needed": enough / PARTS, "density": rate}


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    share = "" if row["lru"] < NOTHING else "more than all" if row["needed"] is None else f"{100 * row['needed']:.0f} %"
    return f"{row['workload']} | {row['model']} | {row['gib']} | {100 * row['lru']:.1f} | {share} | {100 * row['density']:.1f}"


def main(arguments: list[str] | None = None) -> int:
    """Parse, replay, print the table, and write the rows as they come."""
    parser = argparse.ArgumentParser(prog="python -m benches.memory", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("traces", type=Path, help="the folder under which the two traces lie")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells whose name has it, as in `qwen3-next-80b-a3b 80`")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the rows there; what it has is kept")
    options = parser.parse_args(arguments)
    kept = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    rows = {Cell(row["workload"], row["model"], row["gib"]): row for row in kept}
    shown = []
    print(f"| {HEADS} |\n|{'---|' * (HEADS.count('|') + 1)}")
    for cell in cells():
        if options.only not in cell.name:
            continue
        if cell not in rows:
            rows[cell] = needed(cell, options.traces)
            if options.json:
                options.json.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
        shown.append(rows[cell])
        print(f"| {line(rows[cell])} |", flush=True)
    counted = [row["needed"] or 1.0 for row in shown if row["lru"] >= NOTHING]
    if counted:
        print(f"\nmedian of {len(counted)} cells: {100 * median(counted):.0f} % of the memory")
    return 0


if __name__ == "__main__":
    sys.exit(main())
