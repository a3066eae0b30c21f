"""`python -m benches.studies.splits TRACES`: does one budget for all pools hit what the best static split of it hits?

Question: how many of the prompt tokens does `density` hit with the split that `split_budget` proposes, with the best of
some static splits, and where all pools share one budget? One cell for each hybrid model and workload of `benches.cells`, those
with the middle size. Silent on: host memory, other orders, splits between the ones that are tried. Cells that the file of an
earlier run has are not replayed again; where the cache has changed since, begin with a new file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benches.cell import DEVICE_GIB, Cell, table
from unified_tree.components import composition_for
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec, split_for_server
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.terms.errors import ConfigurationError

SHARES = (0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
"""Of the memory, for windows and states."""
MIDDLE = 1
HEADS = "workload | model | GiB | proposed | best static | its share | shared | shared / best static"


def hit_rate(plan: Plan, page_counts: Mapping[str, int], *, is_shared: bool = False) -> float:
    """Of the prompt tokens; 0 where not every request can run."""
    spec = RowSpec(kind=RowKind.POLICY, policy="density", page_counts=page_counts, is_shared=is_shared, is_bounded=False)
    row = run_row(plan, spec)
    return 0.0 if row.rejected else row.hit_tokens / max(1, row.prompt_tokens)


def static_split(plan: Plan, proposed: Mapping[str, int], share: float) -> dict[str, int] | None:
    """Pages where windows and states have so much of the memory, as much of it each as is proposed; None where no request would
    fit."""
    bytes_of = plan.composition.pool_page_bytes()
    ends = [c.name for c in plan.composition.components if c.shares is None and not c.coverage.is_path]
    together = sum(proposed[name] * bytes_of[name] for name in ends)
    scale = share * plan.device_bytes / together
    try:
        return plan.composition.split_budget(
            plan.device_bytes,
            running_requests=plan.settings.concurrency,
            page_counts={name: max(1, int(proposed[name] * scale)) for name in ends},
        )
    except ConfigurationError:
        return None


def measured(cell: Cell, traces: Path) -> dict[str, Any]:
    """The row of a cell."""
    plan = cell.plan(traces)
    proposed = split_for_server(plan.composition, plan.device_bytes, plan.settings)
    splits = {share: static_split(plan, proposed, share) for share in SHARES}
    static = {str(share): hit_rate(plan, split) for share, split in splits.items() if split is not None}
    return {
        "proposed": hit_rate(plan, proposed),
        "static": static,
        "shared": hit_rate(plan, proposed, is_shared=True),
    }


def best(row: Mapping[str, Any]) -> tuple[float, str]:
    """What the best static split hits, and its share."""
    return max((rate, share) for share, rate in (row["static"] | {"proposed": row["proposed"]}).items())


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    rate, share = best(row)
    figures = f"{100 * row['proposed']:.2f} | {100 * rate:.2f} | {share} | {100 * row['shared']:.2f}"
    of_best = f"{row['shared'] / rate:.3f}" if rate else ""
    return f"{row['workload']} | {row['model']} | {row['device_gib']} | {figures} | {of_best}"


def hybrids() -> Iterator[Cell]:
    """The cells with the middle size whose models have pools to split the memory between."""
    for workload, models in DEVICE_GIB.items():
        for model, sizes in models.items():
            owners = [c for c in composition_for(model).components if c.shares is None]
            if any(not c.coverage.is_path for c in owners):
                yield Cell(workload, model, sizes[MIDDLE])


def main(arguments: list[str] | None = None) -> int:
    """Print the table; see `table`."""
    table("benches.studies.splits", __doc__, HEADS, hybrids(), measured, line, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
