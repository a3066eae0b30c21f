"""What the benches share that serve the same requests in two ways, in turn: their options, and their table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benches.machine import commit, core, machine


def parser_of(module: str, about: str, *, quick: str, lives: int | None = None) -> argparse.ArgumentParser:
    """The options of `python -m MODULE`.

    Args:
        about: the module's docstring, whose first paragraph is shown.
        quick: what `--quick` does instead.
        lives: how often each way serves them all, if it is not said; None for a bench that measures no time.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about.partition("\n\n")[0])
    if lives is not None:
        parser.add_argument("--lives", type=int, default=lives, help="how often each way serves them all; the fastest counts")
    parser.add_argument("--quick", action="store_true", help=f"{quick}, to see that it runs")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the rows there, too")
    return parser


def print_table(columns: str, line: str, rows: Iterable[dict[str, Any]], path: Path | None) -> None:
    """Print the machine and a row at a time, as it is measured; write the rows to `path`, if there is one.

    Args:
        columns: the heads, with bars between them.
        line: the format of a row.
    """
    print(f"machine  {machine()}\ncommit   {commit() or 'unknown'}, {core()}\n")
    print(f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}")
    measured = []
    for row in rows:
        measured.append(row)
        print(f"| {line} |".format(**row), flush=True)
    if path is not None:
        path.write_text(json.dumps(measured, indent=1) + "\n")
