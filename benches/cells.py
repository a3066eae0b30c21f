"""`python -m benches.cells TRACES`: what each policy hits of what is possible, in every cell of workloads, models and sizes.

Question: how many of the prompt tokens do `lru`, `cost` and `density` hit, between what bounds does the best possible lie, and
what would the same memory, or the same pages, hit if only paths counted? Each cell is one `unified-tree replay`, whose command
stands in the rows, and a row of the pages. Silent on: host memory, stores, one budget for all pools. Cells that the file of an
earlier run has are not replayed again; where the cache has changed since, begin with a new file.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benches.cell import POLICIES, Cell, cells, table
from unified_tree.controllers.workbench.runs.budget_split import path_only_split, split_for_server
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec
from unified_tree.controllers.workbench.runs.row import run_row

HEADS = (
    "workload | model | GiB | `lru` | `cost` | `density` | best possible | ceiling | path-only | of path-only "
    "| of path-only, same pages | of the gap"
)


def same_pages(plan: Plan) -> float:
    """What `density` hits with the pages that paths have of the memory, if windows and states never limit a hit."""
    page_counts = split_for_server(plan.composition, plan.device_bytes, plan.settings)
    paths = {name: page_counts[name] for name in path_only_split(plan.composition, plan.device_bytes, page_counts)}
    row = run_row(plan, RowSpec(kind=RowKind.POLICY, policy="density", page_counts=paths, is_path_only=True))
    return row.hit_tokens / row.prompt_tokens


def replayed(cell: Cell, traces: Path) -> dict[str, Any]:
    """The row of a cell, from the rows of its replay."""
    command = str(Path(sys.executable).with_name("unified-tree"))
    with TemporaryDirectory() as folder:
        file = Path(folder, "rows")
        subprocess.run([command, "replay", *cell.arguments(traces), "--json", str(file)], check=True, stdout=subprocess.DEVNULL)
        rows = {row["policy"]: row for row in json.loads(file.read_text())}
    prompt = rows["lru"]["prompt_tokens"]
    return {
        "command": shlex.join(["unified-tree", "replay", *cell.options]),
        "hit_rate": {policy: rows[policy]["hit_rate"] for policy in POLICIES},
        "path_only_hit_rate": {policy: rows[policy]["path_only_hit_rate"] for policy in POLICIES},
        "same_pages_hit_rate": same_pages(cell.plan(traces)),
        "optimum": [rows["density"][f"optimum_{end}_tokens"] / prompt for end in ("low", "high")],
        "ceiling": rows["density"]["ceiling_rate"],
    }


def line(row: dict[str, Any]) -> str:
    """A row of the table, in percent of the prompt tokens; the gap is that from `cost` to the middle of the interval."""
    hit, (low, high) = row["hit_rate"], row["optimum"]
    gap = (low + high) / 2 - hit["cost"]
    shown = [f"{100 * hit[policy]:.1f}" for policy in POLICIES]
    shown[-1] = f"**{shown[-1]}**"
    shown += [f"{100 * low:.1f} to {100 * high:.1f}", f"{100 * row['ceiling']:.1f}"]
    alone = row["path_only_hit_rate"]["density"]
    shown.append(f"{100 * alone:.1f}")
    shown += [f"{hit['density'] / paths:.2f}" if paths else "" for paths in (alone, row["same_pages_hit_rate"])]
    shown.append(f"{(hit['density'] - hit['cost']) / gap:.2f}" if gap > 0.05 else "")
    return " | ".join([row["workload"], row["model"], str(row["device_gib"]), *shown])


def main(arguments: list[str] | None = None) -> int:
    """Print the table; see `table`."""
    table("benches.cells", __doc__, HEADS, cells(), replayed, line, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
