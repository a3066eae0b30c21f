"""The cells of some benches: workloads, models, and how much memory; and the table that such a bench makes.

A cell takes seconds to minutes, so rows are written to a file as they come, and those that it has are not replayed again: where
the cache has changed since, begin with a new file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benches.machine import commit
from unified_tree.controllers.cli.arguments import Arguments
from unified_tree.controllers.cli.commands import replay_command
from unified_tree.controllers.workbench.runs.plan import Plan

POLICIES = ("lru", "cost", "density")
Row = dict[str, Any]
WORKLOADS: dict[str, tuple[str, ...]] = {
    "conversations": ("conversation_trace.jsonl.gz",),
    "coding agents": ("claude_code.runs.jsonl.gz", "--requests", "4000"),
    "all coding agents": ("claude_code.runs.jsonl.gz",),
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


@dataclass(frozen=True, slots=True)
class Cell:
    """A workload, a model, and how much memory."""

    workload: str
    model: str
    device_gib: int

    @property
    def options(self) -> list[str]:
        """Of `unified-tree replay`; a trace goes by the name of its file."""
        named = [*WORKLOADS[self.workload], "--model", self.model, "--device-gib", str(self.device_gib)]
        return [*named, "--policy", ",".join(POLICIES)]

    def arguments(self, traces: Path) -> list[str]:
        """The options, with the paths of the traces that lie under `traces`."""
        return traced(self.options, traces)

    def plan(self, traces: Path) -> Plan:
        """What its rows have in common."""
        return parsed(self.options, traces).plan()

    @property
    def name(self) -> str:
        return f"{self.workload} {self.model} {self.device_gib}"


def traced(options: Iterable[str], traces: Path) -> list[str]:
    """The options, with the paths of the traces that lie under `traces`."""
    found = {path.name: str(path) for path in traces.rglob("*.jsonl.gz")}
    return [found.get(option, option) for option in options]


def parsed(options: Iterable[str], traces: Path) -> Arguments:
    """What these options of `unified-tree replay` say."""
    return Arguments(replay_command.make_context("replay", traced(options, traces)).params)


def cells() -> Iterator[Cell]:
    """All of them, those with the middle size first."""
    for size in (1, 0, 2):
        for workload, models in DEVICE_GIB.items():
            for model, gib in models.items():
                yield Cell(workload, model, gib[size])


def table(
    module: str,
    about: str | None,
    columns: str,
    chosen: Iterable[Cell],
    measure: Callable[[Cell, Path], Row],
    line: Callable[[Row], str],
    arguments: list[str] | None,
    *,
    again: Callable[[Row, Cell, Path, list[str]], Row] | None = None,
    summary: Callable[[list[Row]], list[str]] | None = None,
) -> list[Row]:
    """Parse the options, measure the cells, print the table, and write the rows as they come; returns those that are shown.

    Args:
        module: of the bench; `about`: its docstring, whose first paragraph is shown.
        columns: the heads, with bars between them.
        measure: makes a cell's row, given the folder of the traces; it has the cell's own fields besides.
        line: the row of the table.
        again: makes a row that the file has anew, for some policies; None for a bench that cannot.
        summary: sentences on the rows, behind the table.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=(about or "").partition("\n\n")[0])
    parser.add_argument("traces", type=Path, help="the folder under which the two traces lie")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells whose name has it, as in `qwen3-next-80b-a3b 80`")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the rows there; what it has is kept")
    parser.add_argument("--page", type=Path, default=None, metavar="FILE", help="write the table there, between its comments")
    if again is not None:
        parser.add_argument(
            "--again", default="", metavar="POLICIES", help="replay these anew in rows of another commit, and keep their bounds"
        )
    options = parser.parse_args(arguments)
    kept = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    rows = {Cell(row["workload"], row["model"], row["device_gib"]): row for row in kept}
    policies = [policy for policy in getattr(options, "again", "").split(",") if policy]
    head = commit() or "unknown"
    lines = [f"| {columns} |", f"|{'---|' * (columns.count('|') + 1)}"]
    shown: list[Row] = []
    print("\n".join(lines))
    for cell in chosen:
        if options.only not in cell.name:
            continue
        known = rows.get(cell)
        commits = {} if known is None else known.get("commits", {})
        stale = [policy for policy in policies if commits.get(policy) != head]
        if known is None:
            row = asdict(cell) | measure(cell, options.traces) | {"commits": dict.fromkeys(POLICIES, head)}
        elif stale and again is not None:
            row = again(known, cell, options.traces, stale) | {"commits": commits | dict.fromkeys(stale, head)}
        else:
            row = known
        if row is not known:
            rows[cell] = row
            if options.json:
                options.json.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
        shown.append(row)
        lines.append(f"| {line(row)} |")
        print(lines[-1], flush=True)
    if summary is not None:
        said = [f"- {sentence}" for sentence in summary(shown)]
        print("\n" + "\n".join(said))
        lines = [*said, "", *lines]
    if options.page:
        write_between(options.page, module, "\n".join(lines))
    return shown


def write_between(page: Path, module: str, text: str) -> None:
    """Put what a bench says between its two comments on a page: `<!-- python -m MODULE -->` and the next `<!-- end -->`."""
    before, begin, rest = page.read_text().partition(f"<!-- python -m {module} -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    if not end:
        raise SystemExit(f"{page}: no `<!-- python -m {module} -->` with an `<!-- end -->` behind it")
    page.write_text(f"{before}{begin}\n{text}\n\n{end}{after}")
