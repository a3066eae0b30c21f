"""`python -m benches`: measure, print a table, write bench.json and, with --plot, the growth picture."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benches import tails
from benches.case import COMPONENT_SETS, Case
from benches.catalogue import IMPORT, LENGTHS, NODES, growth_cases, operation_cases, quick, table_cases
from benches.contestants import ROOT, Contestant, Entry, entries
from benches.machine import commit, core, machine, quiet_cpu
from benches.measuring import USUAL, measure, measure_import
from benches.plot import plot
from benches.report import HEAD, Row, line_of, preamble, profile, questions, reasons, row_of
from benches.summary import lines, page, rewrite, table
from benches.worst_cases import WORST_CASES, Limits, lines_of, measure_worst, rows_of, worst_preamble, worst_questions

RESULTS = ROOT / "benches" / "results"
LAB_PAGE = ROOT / "docs" / "lab" / "benchmarks.md"


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, report."""
    options = _options(arguments)
    cases, worst, sets = _cases(options), _worst(options), _tails(options)
    if not cases and not worst and not sets:
        sys.exit("no case is left of what was chosen")
    rows: list[Row] = []
    if cases:
        known = {entry.name: entry for entry in entries(options.engine)}
        rows = run(cases, known)
        print(f"\n{profile(rows)}")
        print(f"\n{questions(rows)}")
    worst_rows = run_worst(worst, _limits(options)) if worst else []
    if sets:
        worst_rows += run_tails(sets, 300 if options.quick else options.requests)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(rows + worst_rows, indent=1) + "\n")
    print(f"\nwrote {options.json}")
    if options.suite == "table":
        _summarize(rows, options)
    if options.plot is not None:
        _plot(rows, options.plot)
    return 0


def _summarize(rows: list[Row], options: argparse.Namespace) -> None:
    """Print the one table, and write it: among the results where everything was measured, else beside the rows."""
    found = lines(rows)
    print(f"\n{table(found)}")
    path = options.json.with_suffix(".md")
    if options.name:
        path = RESULTS / f"{options.name}.md"
        path.with_suffix(".json").write_text(json.dumps([asdict(line) for line in found], indent=1) + "\n")
    path.write_text(page(rows))
    print(f"\nwrote {path}")
    if options.lab is not None:
        rewrite(options.lab, rows)
        print(f"rewrote the table of {options.lab}")


def _plot(rows: list[Row], path: Path) -> None:
    try:
        plot(rows, path)
    except ImportError as error:
        print(f"no picture of growth: {error}")
    else:
        print(f"wrote {path}")


def run(cases: list[Case], known: dict[str, Entry]) -> list[Row]:
    """Measure all cases, printing each row as it comes."""
    start = time.monotonic()
    absent = {name: entry.absent for name, entry in known.items() if entry.absent}
    cpu = quiet_cpu()
    wanted = {name for case in cases if case.operation != IMPORT for name in case.only or USUAL}
    contestants = {name: Contestant(entry, cpu) for name, entry in known.items() if name in wanted and name not in absent}
    try:
        for name, contestant in contestants.items():
            if "error" in contestant.hello:
                absent[name] = contestant.hello["error"]
        where, what, how = machine(), commit(), core()
        print(preamble(where, what, how, absent))
        print(HEAD)
        rows = []
        for case in cases:
            started = case.operation == IMPORT
            outcomes = measure_import(case, known) if started else measure(case, contestants, absent)
            rows.append(row_of(case, outcomes, where, what, how))
            print(line_of(rows[-1]), flush=True)
    finally:
        for contestant in contestants.values():
            contestant.quit()
    missing = reasons(rows, absent)
    print(f"\n{missing}" if missing else "")
    print(f"took {time.monotonic() - start:.0f} s")
    return rows


def run_worst(operations: list[str], limits: Limits) -> list[Row]:
    """Measure worst cases, printing each as it comes."""
    start = time.monotonic()
    where, what, how, cpu = machine(), commit(), core(), quiet_cpu()
    print(f"machine  {where}\ncommit   {what or 'unknown'}, {how}")
    print(worst_preamble())
    rows, growths = [], []
    for growth in measure_worst(operations, limits, cpu):
        growths.append(growth)
        rows += rows_of(growth, where, what, how)
        print(lines_of(growth), flush=True)
    print(f"took {time.monotonic() - start:.0f} s")
    print(f"\n{worst_questions(growths)}")
    return rows


def run_tails(sets: list[str], requests: int) -> list[Row]:
    """Measure the tails of every call, printing each component set as it comes."""
    where, what, how, cpu = machine(), commit(), core(), quiet_cpu()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cpu})
    print(f"machine  {where}\ncommit   {what or 'unknown'}, {how}\n\n{tails.HEAD}")
    found: list[Row] = []
    for components in sets:
        rows = list(tails.measure_tails(components, requests).rows())
        print(tails.lines_of(rows), flush=True)
        found += [row | {"machine": where, "commit": what, "ours_core": how} for row in rows]
    return found


def _tails(options: argparse.Namespace) -> list[str]:
    """The component sets whose tails are measured."""
    if options.suite not in {"all", "tails"} or options.operation or options.page:
        return []
    return options.components or list(COMPONENT_SETS)


def _worst(options: argparse.Namespace) -> list[str]:
    """The worst cases to measure: none where another suite was chosen, or sizes that they do not have."""
    if options.suite not in {"all", "worst"} or options.components or options.page:
        return []
    return [name for name in WORST_CASES if not options.operation or name in options.operation]


def _limits(options: argparse.Namespace) -> Limits:
    return Limits(size_count=options.sizes, quick=options.quick, budget_s=options.budget_s, patience_s=options.patience_s)


def _cases(options: argparse.Namespace) -> list[Case]:
    cases = []
    if options.suite in {"all", "table"}:
        cases += table_cases()
    if options.suite in {"all", "operations"}:
        cases += operation_cases()
    if options.suite in {"all", "growth"}:
        cases += growth_cases((100, 300), (256, 1024)) if options.quick else growth_cases(NODES, LENGTHS)
    if options.quick:
        cases = quick(cases)
    for field, chosen in (("operation", options.operation), ("components", options.components), ("page_size", options.page)):
        if chosen:
            cases = [case for case in cases if getattr(case, field) in chosen]
    return cases


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benches", description="Benchmarks, beside rivals where they are.")
    parser.add_argument("--engine", type=Path, default=None, metavar="PYTHON", help="an interpreter with SGLang installed")
    parser.add_argument(
        "--suite",
        choices=("table", "operations", "growth", "worst", "tails", "all"),
        default="table",
        help="the one table (default), every operation at many sizes, growth, worst cases, tails, or all of them",
    )
    parser.add_argument("--quick", action="store_true", help="everything tiny: does it run at all?")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), metavar="FILE", help="where the rows go")
    parser.add_argument(
        "--name", help="the table goes to benches/results/NAME.md (requests; with --quick or a choice, beside the rows instead)"
    )
    parser.add_argument("--lab", type=Path, nargs="?", const=LAB_PAGE, metavar="FILE", help="put its short form into this page")
    parser.add_argument(
        "--plot",
        type=Path,
        default=None,
        metavar="FILE",
        help="the picture of growth, if matplotlib is there (docs/lab/growth.png; with --quick or a choice, nowhere)",
    )
    parser.add_argument("--operation", action="append", help="only this one; may be given again")
    parser.add_argument("--components", action="append", help="only this set; may be given again")
    parser.add_argument("--page", type=int, action="append", help="only this page size; may be given again")
    limits = Limits()
    parser.add_argument(
        "--sizes",
        type=int,
        default=limits.size_count,
        metavar="N",
        help="measure worst cases at so many of their sizes, from the smallest: 3, or 4 for up to a million nodes",
    )
    parser.add_argument(
        "--budget-s",
        type=float,
        default=limits.budget_s,
        metavar="S",
        help="time for the calls of a worst case, each time its tree is built (%(default)s s)",
    )
    parser.add_argument(
        "--patience-s",
        type=float,
        default=limits.patience_s,
        metavar="S",
        help="after so long one size of a worst case is given up, and larger ones with it (%(default)s s)",
    )
    parser.add_argument(
        "--requests", type=int, default=1_000_000, metavar="N", help="requests whose tails are measured (%(default)s)"
    )
    options = parser.parse_args(arguments)
    if options.plot is not None and options.suite not in {"all", "growth"}:
        parser.error(f"--plot shows growth; leave out --suite {options.suite}")
    chosen = options.quick or options.operation or options.components or options.page
    if options.plot is None and options.suite in {"all", "growth"} and not chosen:
        options.plot = ROOT / "docs" / "lab" / "growth.png"
    if options.name is None and not chosen:
        options.name = "requests"
    if options.engine is not None:
        options.engine = options.engine.absolute()  # not resolved: a virtual environment's interpreter is a link
    return options


if __name__ == "__main__":
    sys.exit(main())
