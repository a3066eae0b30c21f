"""`python -m benches.cells TRACES`: what each policy hits of what is possible, in every cell of workloads, models and sizes.

Question: how many of the prompt tokens do `lru`, `cost` and `density` hit, between what bounds does the best possible lie, and
what would the same memory, or the same pages, hit if only paths counted? Each cell is one `unified-tree replay`, whose command
stands in the rows, and a row of the pages. Silent on: host memory, stores, one budget for all pools. Cells that the file of an
earlier run has are not replayed again; where the cache has changed since, begin with a new file.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unified_tree.controllers.replay.arguments import Arguments
from unified_tree.controllers.replay.budget_split import path_only_split, split_for_server
from unified_tree.controllers.replay.commands import replay_command
from unified_tree.controllers.replay.plan import Plan, RowKind, RowSpec
from unified_tree.controllers.replay.row import run_row

POLICIES = ("lru", "cost", "density")
WORKLOADS: dict[str, tuple[str, ...]] = {
    "conversations": ("conversation_trace.jsonl.gz",),
    "coding agents": ("claude_code.runs.jsonl.gz", "--requests", "4000"),
    "built-in agents": (),
    "clients in turn": ("multiturn",),
}
SYNTHETIC = {
    "llama-3.1-8b": (8, 24, 60),
    "gpt-oss-20b": (2, 8, 16),
    "gemma-3-27b": (15, 40, 100),
    "qwen3-next-80b-a3b": (2, 8, 20),
    "nemotron-h-8b": (2, 8, 20),
    "deepseek-v4-flash": (1, 3, 8),
}
DEVICE_GIB: dict[str, dict[str, tuple[int, int, int]]] = {
    "conversations": {
        "llama-3.1-8b": (50, 150, 400),
        "gpt-oss-20b": (15, 40, 100),
        "gemma-3-27b": (100, 300, 800),
        "qwen3-next-80b-a3b": (20, 80, 200),
        "nemotron-h-8b": (20, 80, 200),
        "deepseek-v4-flash": (8, 20, 60),
    },
    "coding agents": {
        "llama-3.1-8b": (60, 150, 400),
        "gpt-oss-20b": (15, 40, 100),
        "gemma-3-27b": (100, 250, 800),
        "qwen3-next-80b-a3b": (15, 40, 120),
        "nemotron-h-8b": (15, 40, 120),
        "deepseek-v4-flash": (8, 20, 60),
    },
    "built-in agents": SYNTHETIC,
    "clients in turn": SYNTHETIC,
}
HEADS = (
    "workload | model | GiB | `lru` | `cost` | `density` | best possible | ceiling | path-only | of path-only "
    "| of path-only, same pages | of the gap"
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A workload, a model, and how much memory."""

    workload: str
    model: str
    gib: int

    @property
    def options(self) -> list[str]:
        """Of `unified-tree replay`; a trace goes by the name of its file."""
        named = [*WORKLOADS[self.workload], "--model", self.model, "--device-gib", str(self.gib)]
        return [*named, "--policy", ",".join(POLICIES)]

    def arguments(self, traces: Path) -> list[str]:
        """The options, with the paths of the traces that lie under `traces`."""
        found = {path.name: str(path) for path in traces.rglob("*.jsonl.gz")}
        return [found.get(option, option) for option in self.options]

    def plan(self, traces: Path) -> Plan:
        """What its rows have in common."""
        plan: Plan = Arguments(replay_command.make_context("replay", self.arguments(traces)).params).plan()
        return plan

    @property
    def name(self) -> str:
        return f"{self.workload} {self.model} {self.gib}"


def cells() -> Iterator[Cell]:
    """All of them, those with the middle size first."""
    for size in (1, 0, 2):
        for workload, models in DEVICE_GIB.items():
            for model, gib in models.items():
                yield Cell(workload, model, gib[size])


def same_pages(plan: Plan) -> float:
    """What `density` hits with the pages that paths have of the memory, if windows and states never limit a hit."""
    page_counts = split_for_server(plan.composition, plan.device_bytes, plan.settings)
    paths = {name: page_counts[name] for name in path_only_split(plan.composition, plan.device_bytes, page_counts)}
    row = run_row(plan, RowSpec(kind=RowKind.POLICY, policy="density", page_counts=paths, is_path_only=True))
    return row.hit_tokens / row.prompt_tokens


def replayed(cell: Cell, traces: Path, folder: Path) -> dict[str, Any]:
    """The row of a cell, from the rows of its replay."""
    command = str(Path(sys.executable).with_name("unified-tree"))
    subprocess.run(
        [command, "replay", *cell.arguments(traces), "--json", str(folder / "rows")], check=True, stdout=subprocess.DEVNULL
    )
    rows = {row["policy"]: row for row in json.loads((folder / "rows").read_text())}
    prompt = rows["lru"]["prompt_tokens"]
    return {
        "workload": cell.workload,
        "model": cell.model,
        "device_gib": cell.gib,
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
    """Parse, replay, print the table, and write the rows as they come."""
    parser = argparse.ArgumentParser(prog="python -m benches.cells", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("traces", type=Path, help="the folder under which the two traces lie")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells whose name has it, as in `qwen3-next-80b-a3b 80`")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the rows there; what it has is kept")
    options = parser.parse_args(arguments)
    kept = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    rows = {Cell(row["workload"], row["model"], row["device_gib"]): row for row in kept}
    print(f"| {HEADS} |\n|{'---|' * (HEADS.count('|') + 1)}")
    with TemporaryDirectory() as folder:
        for cell in cells():
            if options.only not in cell.name:
                continue
            if cell not in rows:
                rows[cell] = replayed(cell, options.traces, Path(folder))
                if options.json:
                    options.json.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
            print(f"| {line(rows[cell])} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
