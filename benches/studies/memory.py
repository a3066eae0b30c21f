"""`python -m benches.studies.memory TRACES`: in how much of the memory does `density` hit what `lru` hits, in the cells?

Question: what share of a device budget can be given back if the order changes from `lru` to `density` and the hits stay? Each
cell is bisected down to a sixteenth of its budget, twice: every size tried is split between the pools as any budget is, as it
is for `lru`; and its pools share it. Would any eviction do with three quarters, where `density` needs more of a split one? The
last column has what none can exceed there. Silent on: host memory, stores. Cells that the file of an earlier run has are not
replayed again; where the cache or this bench has changed since, begin with a new file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benches.cell import Cell, cells, table
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec, split_for_server
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.terms.errors import ConfigurationError

PARTS = 16
THREE_QUARTERS = 12
NOTHING = 0.001
HEADS = "workload | model | GiB | `lru` hits | `density` needs | and hits | with one budget | and hits | most in 3/4, split"


class Rates(NamedTuple):
    """Of the prompt tokens of all requests, also of those that never fit: what was hit, and what no eviction could exceed in
    that memory (see `RowResult`), if asked for.
    """

    hit: float
    most: float | None = None


def rates(plan: Plan, policy: str, parts: int = PARTS, *, is_shared: bool = False, is_bounded: bool = False) -> Rates:
    """Those with `parts` sixteenths of the memory; 0 where no request runs in so little."""
    size = plan.device_bytes * parts // PARTS
    try:
        spec = RowSpec(
            kind=RowKind.POLICY,
            policy=policy,
            page_counts={} if is_shared else split_for_server(plan.composition, size, plan.settings),
            is_shared=is_shared,
            is_bounded=is_bounded,
            capacity=parts / PARTS,
        )
        row = run_row(plan, spec)
    except ConfigurationError:
        return Rates(0.0, 0.0)
    prompt_tokens = max(1, sum(request.prompt_tokens for request in plan.workload.requests))
    most = row.optimum_high_tokens
    return Rates(row.hit_tokens / prompt_tokens, None if most is None else most / prompt_tokens)


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


def fewest(plan: Plan, wanted: float, *, is_shared: bool) -> tuple[float | None, float]:
    """The smallest share of the memory in which `density` hits so much, and what it hits there; None for no share that is
    known, where it hits less in all of it.
    """
    hits: dict[int, float] = {}

    def is_enough(parts: int) -> bool:
        hits[parts] = rates(plan, "density", parts, is_shared=is_shared).hit
        return hits[parts] >= wanted

    enough = fewest_parts(is_enough) if is_enough(PARTS) else None
    if enough is None:
        return None, hits[PARTS]
    return enough / PARTS, hits[enough]


def needed(cell: Cell, traces: Path) -> dict[str, Any]:
    """The row of a cell: the smallest share of its memory in which `density` hits at least what `lru` hits in all of it, as
    that is split and as one budget, and what any eviction could hit at most in three quarters, where these are too few.
    """
    plan = cell.plan(traces)
    wanted = rates(plan, "lru").hit
    row: dict[str, Any] = {"lru": wanted, "needed": None, "density": None, "shared_needed": None, "shared": None, "most": None}
    if wanted < NOTHING:
        return row
    row["needed"], row["density"] = fewest(plan, wanted, is_shared=False)
    row["shared_needed"], row["shared"] = fewest(plan, wanted, is_shared=True)
    if row["needed"] is None or row["needed"] > THREE_QUARTERS / PARTS:
        row["most"] = rates(plan, "density", THREE_QUARTERS, is_bounded=True).most
    return row


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    shown = [row["workload"], row["model"], str(row["device_gib"]), percent(row["lru"])]
    for share, hit in (("needed", "density"), ("shared_needed", "shared")):
        known = "more than all" if row[share] is None else f"{100 * row[share]:.0f} %"
        shown += ["" if row[hit] is None else known, percent(row[hit])]
    return " | ".join([*shown, percent(row["most"])])


def percent(rate: float | None) -> str:
    """Of the prompt tokens."""
    return "" if rate is None else f"{100 * rate:.1f}"


def main(arguments: list[str] | None = None) -> int:
    """Print the table (see `table`), and what it says in all."""
    shown = table("benches.studies.memory", __doc__, HEADS, cells(), needed, line, arguments)
    counted = [row for row in shown if row["lru"] >= NOTHING]
    if counted:
        split, shared = (median([row[share] or 1.0 for row in counted]) for share in ("needed", "shared_needed"))
        out_of_reach = sum(row["most"] is not None and row["most"] < row["lru"] for row in counted)
        print(f"\nmedian of {len(counted)} cells: {100 * split:.0f} % of the memory, {100 * shared:.0f} % as one budget")
        print(f"in {out_of_reach} of them no eviction hits as much in three quarters of it, as split")
    return 0


if __name__ == "__main__":
    sys.exit(main())
