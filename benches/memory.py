"""`python -m benches.memory TRACES`: in how much of the memory `density` hits what `lru` hits, in the cells of `benches.cells`.

Question: what share of a device budget can be given back if the order changes from `lru` to `density` and the hits stay? Each
cell is bisected down to a sixteenth of its budget; every size tried is split between the pools as any budget is. Would any
eviction do with three quarters, where `density` needs more? The last column has what none can exceed there. Silent on: host
memory, stores, one budget for all pools. Cells that the file of an earlier run has are not replayed again; where the cache
has changed since, begin with a new file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benches.cell import Cell, cells, table
from unified_tree.controllers.replay.budget_split import split_for_server
from unified_tree.controllers.replay.plan import Plan, RowKind, RowSpec
from unified_tree.controllers.replay.row import run_row
from unified_tree.errors import ConfigurationError

PARTS = 16
THREE_QUARTERS = 12
NOTHING = 0.001
HEADS = "workload | model | GiB | `lru` hits | `density` needs | and hits | most in 3/4"


class Rates(NamedTuple):
    """Of the prompt tokens: what was hit, and what no eviction could exceed in that memory (see `RowResult`)."""

    hit: float
    most: float


def rates(plan: Plan, policy: str, parts: int = PARTS) -> Rates:
    """Those with `parts` sixteenths of the memory; 0 where no request runs in so little."""
    try:
        page_counts = split_for_server(plan.composition, plan.device_bytes * parts // PARTS, plan.settings)
        row = run_row(plan, RowSpec(kind=RowKind.POLICY, policy=policy, page_counts=page_counts))
    except ConfigurationError:
        return Rates(0.0, 0.0)
    assert row.optimum_high_tokens is not None
    prompt_tokens = max(1, row.prompt_tokens)
    return Rates(row.hit_tokens / prompt_tokens, row.optimum_high_tokens / prompt_tokens)


def fewest_parts(is_enough: Callable[[int], bool]) -> int:
    """The fewest sixteenths that are enough, by bisection; all of them are."""
    less, enough = 0, PARTS
    while enough - less > 1:
        middle = (less + enough) // 2
        if is_enough(middle):
            enough = middle
        else:
            less = middle
    return enough


def needed(cell: Cell, traces: Path) -> dict[str, Any]:
    """The row of a cell: the fewest sixteenths of its memory in which `density` hits at least what `lru` hits in all of it, and
    what any eviction could hit at most in three quarters, where these are too few.

    Where it hits less in all of it, or `lru` next to nothing, no share is known: None.
    """
    plan = cell.plan(traces)
    wanted = rates(plan, "lru").hit
    tried = {PARTS: rates(plan, "density")}
    is_known = wanted >= NOTHING and tried[PARTS].hit >= wanted

    def is_enough(parts: int) -> bool:
        tried[parts] = rates(plan, "density", parts)
        return tried[parts].hit >= wanted

    enough = fewest_parts(is_enough) if is_known else PARTS
    row = {
        "lru": wanted,
        "needed": enough / PARTS if is_known else None,
        "density": tried[enough].hit,
        "most": None,
    }
    if wanted < NOTHING or (is_known and enough <= THREE_QUARTERS):
        return row
    three_quarters = tried.get(THREE_QUARTERS) or rates(plan, "density", THREE_QUARTERS)
    return row | {"most": three_quarters.most}


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    share = "" if row["lru"] < NOTHING else "more than all" if row["needed"] is None else f"{100 * row['needed']:.0f} %"
    most = "" if row["most"] is None else f"{100 * row['most']:.1f}"
    figures = f"{row['device_gib']} | {100 * row['lru']:.1f} | {share} | {100 * row['density']:.1f} | {most}"
    return f"{row['workload']} | {row['model']} | {figures}"


def main(arguments: list[str] | None = None) -> int:
    """Print the table (see `table`), and what it says in all."""
    shown = table("benches.memory", __doc__, HEADS, cells(), needed, line, arguments)
    counted = [row for row in shown if row["lru"] >= NOTHING]
    if counted:
        share = median([row["needed"] or 1.0 for row in counted])
        out_of_reach = sum(row["most"] is not None and row["most"] < row["lru"] for row in counted)
        print(f"\nmedian of {len(counted)} cells: {100 * share:.0f} % of the memory")
        print(f"in {out_of_reach} of them no eviction hits as much in three quarters of it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
