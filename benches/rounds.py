"""The command line of a bench that takes turns: its options, what it ran on, its table, and its rows in a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benches.machine import commit, core, machine

LIVES = "lives in each of which each way serves them all; the fastest counts"
"""A bench that serves the same requests in several ways, in turn, counts these."""


def options_of(
    name: str, doc: str | None, *, quick: str, rounds: int | None = None, what: str = "rounds of turns"
) -> argparse.ArgumentParser:
    """A parser of `--quick`, `--rounds` (or what `what` counts, by its first word) and `--json`.

    Args:
        doc: of the bench; its first paragraph is the help's.
        quick: what is measured with `--quick`.
        rounds: how many, if it is not said; None for a bench that measures no time.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benches.{name}", description=(doc or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{quick}, to see that it runs")
    if rounds is not None:
        parser.add_argument(f"--{what.split(maxsplit=1)[0]}", type=int, default=rounds, help=what)
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    return parser


def told(head: str = "", on: str = "") -> dict[str, str | None]:
    """Print what it runs on, with a table's head below; the fields of it that each row gets."""
    where = {"machine": on or machine(), "commit": commit()}
    print(f"machine  {where['machine']}\ncommit   {where['commit'] or 'unknown'}, {core()}" + (f"\n\n{head}" if head else ""))
    return where


def written(rows: Sequence[Mapping[str, Any]], where: Mapping[str, str | None], file: Path | None) -> int:
    """Write rows into the file that was asked for, if one was; the exit code: 1 if a row is not right."""
    if file is not None:
        file.write_text(json.dumps([{**row, **where} for row in rows], indent=1) + "\n")
        print(f"\nwrote {file}")
    return 0 if all(row.get("right", True) for row in rows) else 1


def print_table(columns: str, line: str, rows: Iterable[dict[str, Any]], path: Path | None) -> None:
    """Print the machine and a row at a time, as it is measured; write the rows to `path`, if there is one.

    Args:
        columns: the heads, with bars between them.
        line: the format of a row.
    """
    where = told(f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}")
    measured = []
    for row in rows:
        measured.append(row)
        print(f"| {line} |".format(**row), flush=True)
    written(measured, where, path)
