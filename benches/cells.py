"""`python -m benches.cells TRACES`: what each policy hits of what is possible, in every cell of workloads, models and sizes.

Question: how many of the prompt tokens do `lru`, `cost` and `density` hit, between what bounds does the best possible lie, and
what would the same memory, or the same pages, hit if only paths counted? Each cell is one `unified-tree replay`, whose command
stands in the rows, and a row of the pages. Silent on: host memory, stores, one budget for all pools. Cells that the file of an
earlier run has are not replayed again, but for the policies of `--again`; `--page docs/lab/cells.md` writes the table there.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benches.cell import POLICIES, Cell, cells, table
from unified_tree.components import composition_for
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec, path_only_split, split_for_server
from unified_tree.controllers.workbench.runs.row import run_row

NOTABLE = 0.3
"""Points."""
WAY = 0.05
NEARLY = 0.9
HEADS = (
    "workload | model | GiB | `lru` | `cost` | `density` | best possible | ceiling | path-only | of path-only "
    "| of path-only, same pages | of the gap"
)


def hit_rate(plan: Plan, policy: str, page_counts: Mapping[str, int], *, is_path_only: bool = False) -> float:
    """Of the prompt tokens."""
    spec = RowSpec(kind=RowKind.POLICY, policy=policy, page_counts=page_counts, is_path_only=is_path_only, is_bounded=False)
    row = run_row(plan, spec)
    return row.hit_tokens / row.prompt_tokens


def again(row: Mapping[str, Any], cell: Cell, traces: Path, policies: Iterable[str]) -> dict[str, Any]:
    """The row with what these policies hit now. Its bounds are kept: they are of the workload, the pages and the server."""
    plan = cell.plan(traces)
    page_counts = split_for_server(plan.composition, plan.device_bytes, plan.settings)
    found = dict(row) | {"hit_rate": row["hit_rate"] | {policy: hit_rate(plan, policy, page_counts) for policy in policies}}
    if "density" in policies:
        found["path_only_hit_rate"] = found["same_pages_hit_rate"] = found["hit_rate"]["density"]
        paths = path_only_split(plan.composition, plan.device_bytes, page_counts)
        if paths != page_counts:
            found["path_only_hit_rate"] = hit_rate(plan, "density", paths, is_path_only=True)
            same_pages = {name: page_counts[name] for name in paths}
            found["same_pages_hit_rate"] = hit_rate(plan, "density", same_pages, is_path_only=True)
    return found


def replayed(cell: Cell, traces: Path) -> dict[str, Any]:
    """The row of a cell, from the rows of its replay."""
    command = str(Path(sys.executable).with_name("unified-tree"))
    with TemporaryDirectory() as folder:
        file = Path(folder, "rows")
        subprocess.run([command, "replay", *cell.arguments(traces), "--json", str(file)], check=True, stdout=subprocess.DEVNULL)
        rows = {row["policy"]: row for row in json.loads(file.read_text())}
    density = rows["density"]
    row = {
        "command": shlex.join(["unified-tree", "replay", *cell.options]),
        "hit_rate": {policy: rows[policy]["hit_rate"] for policy in POLICIES},
        "optimum": [density[f"optimum_{end}_tokens"] / density["prompt_tokens"] for end in ("low", "high")],
        "ceiling": density["ceiling_rate"],
    }
    return again(row, cell, traces, ("density",))


def gap_closed(row: Mapping[str, Any]) -> float | None:
    """The gain of `density` over `cost` as a share of the gap to the middle of the interval; None for nearly no gap."""
    way = sum(row["optimum"]) / 2 - row["hit_rate"]["cost"]
    return (row["hit_rate"]["density"] - row["hit_rate"]["cost"]) / way if way > WAY else None


def line(row: dict[str, Any]) -> str:
    """A row of the table, in percent of the prompt tokens."""
    hit, alone = row["hit_rate"], row["path_only_hit_rate"]
    shown = [f"{100 * hit[policy]:.1f}" for policy in POLICIES]
    shown[-1] = f"**{shown[-1]}**"
    shown += [" to ".join(f"{100 * end:.1f}" for end in row["optimum"]), f"{100 * row['ceiling']:.1f}", f"{100 * alone:.1f}"]
    shown += [f"{hit['density'] / paths:.2f}" if paths else "" for paths in (alone, row["same_pages_hit_rate"])]
    closed = gap_closed(row)
    shown.append("" if closed is None else f"{closed:.2f}")
    return " | ".join([row["workload"], row["model"], str(row["device_gib"]), *shown])


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences that compare `density` with each other policy."""
    found = []
    for other in ("lru", "cost"):
        points = [100 * (row["hit_rate"]["density"] - row["hit_rate"][other]) for row in rows]
        worst = [
            f"{point:+.2f} ({row['workload']}, {row['model']}, {row['device_gib']} GiB)"
            for point, row in sorted(zip(points, rows, strict=True), key=lambda pair: pair[0])[:3]
        ]
        more, less = sum(point > NOTABLE for point in points), sum(point < -NOTABLE for point in points)
        found.append(
            f"Of {len(rows)} cells, `density` hits over {NOTABLE} points more than `{other}` in {more}, and over {NOTABLE} "
            f"less in {less}; {np.mean(points):+.2f} in the mean. The least it gains: {', '.join(worst)}."
        )
    hybrid = [row for row in rows if any(not each.coverage.is_path for each in composition_for(row["model"]).components)]
    density = [row["hit_rate"]["density"] for row in hybrid]
    same = sum(hit >= NEARLY * row["same_pages_hit_rate"] for hit, row in zip(density, hybrid, strict=True))
    short = [row for hit, row in zip(density, hybrid, strict=True) if hit < NEARLY * row["path_only_hit_rate"]]
    bounded = sum(row["optimum"][1] < NEARLY * row["path_only_hit_rate"] for row in short)
    found += [
        f"A hybrid hits at least {NEARLY} of what **the same pages** would hit if only paths counted in {same} of "
        f"{len(hybrid)} cells.",
        f"It hits less than {NEARLY} of what **all of the memory** would hit if only paths counted, and had it to themselves, "
        f"in {len(short)} of {len(hybrid)} cells. In {bounded} of these no cache could: the upper bound is less, too.",
    ]
    closed: dict[str, list[float]] = {}
    for row in rows:
        share = gap_closed(row)
        if share is not None:
            closed.setdefault(row["workload"], []).append(share)
    said = [f"{min(shares):.2f} to {max(shares):.2f} ({workload})" for workload, shares in closed.items()]
    return [*found, f"Of the way from `cost` to the best possible `density` goes {', '.join(said)}."]


def main(arguments: list[str] | None = None) -> int:
    """Print the table; see `table`."""
    table("benches.cells", __doc__, HEADS, cells(), replayed, line, arguments, again=again, summary=summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
