"""Measuring one case: the contestants take turns, round by round, on one processor."""

from __future__ import annotations

import statistics
import subprocess
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from benches.case import Case
from benches.catalogue import IMPORT
from benches.contestants import ROOT, Contestant, Entry

USUAL = ("ours", "rust", "python")
IMPORT_REPEATS = 5


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one contestant did in one case.

    Attributes:
        rounds: samples by round, in `unit`.
        repeats: whether the rounds took the same samples again, of which the fastest count.
        missing: why there are none.
    """

    rounds: list[list[int]] = field(default_factory=list)
    unit: str = "ns"
    repeats: bool = False
    digest: str = ""
    facts: dict[str, float] = field(default_factory=dict)
    parts_ns: dict[str, float] = field(default_factory=dict)
    missing: str = ""

    @property
    def samples(self) -> list[int]:
        """All of them; of repeated ones the fastest each."""
        if self.repeats:
            return [min(same) for same in zip(*self.rounds, strict=True)]
        return [sample for samples in self.rounds for sample in samples]

    @property
    def median(self) -> float | None:
        """Of the samples; None if there are none."""
        samples = self.samples
        return statistics.median(samples) if samples else None

    @property
    def mean(self) -> float | None:
        """Of the samples; None if there are none."""
        samples = self.samples
        return statistics.fmean(samples) if samples else None

    @property
    def extremes(self) -> tuple[int, int] | None:
        """The smallest and the largest sample."""
        samples = self.samples
        return (min(samples), max(samples)) if samples else None

    @property
    def round_medians(self) -> list[float]:
        """A median a round."""
        return [statistics.median(samples) for samples in self.rounds]


def measure(case: Case, contestants: dict[str, Contestant], absent: dict[str, str]) -> dict[str, Outcome]:
    """Run one case on everyone who takes part in it; outcomes by contestant."""
    outcomes: dict[str, Outcome] = {}
    running: dict[str, Contestant] = {}
    for name in case.only or USUAL:
        outcome = outcomes[name] = Outcome(missing=absent.get(name, ""))
        if outcome.missing:
            continue
        reply = contestants[name].begin(case)
        outcome.missing = _reason(reply)
        if not outcome.missing:
            outcome.unit, outcome.repeats = reply["unit"], reply["repeats"]
            running[name] = contestants[name]
    for turn in range(case.rounds):
        order = list(running)
        for name in order if turn % 2 == 0 else reversed(order):
            samples = running[name].round()
            if samples is None:
                outcomes[name].missing = "failed while being measured"
            else:
                outcomes[name].rounds.append(samples)
    for name, contestant in running.items():
        _close(outcomes[name], contestant)
    if not case.series:
        for name in case.only or USUAL:
            if name in contestants:
                contestants[name].leave()
    return outcomes


def _close(outcome: Outcome, contestant: Contestant) -> None:
    reply = contestant.close()
    outcome.missing = outcome.missing or _reason(reply)
    if outcome.missing:
        outcome.rounds.clear()
    else:
        outcome.digest, outcome.facts, outcome.parts_ns = reply["digest"], reply["facts"], reply["parts_ns"]


def _reason(reply: dict[str, Any]) -> str:
    return str(reply.get("error") or reply.get("unsupported") or "")


def measure_import(case: Case, entries: dict[str, Entry]) -> dict[str, Outcome]:
    """Start a fresh interpreter that does nothing and one that imports, in turns; the difference counts."""
    assert case.operation == IMPORT
    outcomes = {name: Outcome(missing=entries[name].absent) for name in USUAL if entries[name].imports}
    for _ in range(min(IMPORT_REPEATS, case.rounds)):
        for name, outcome in outcomes.items():
            if not outcome.missing:
                try:
                    outcome.rounds.append([_import_ns(entries[name])])
                except subprocess.CalledProcessError as error:
                    outcome.missing = str(error)
    return outcomes


def _import_ns(entry: Entry) -> int:
    times = []
    for code in ("pass", entry.imports):
        start = perf_counter_ns()
        command = [entry.python, "-W", "ignore", "-c", code]
        subprocess.run(command, cwd=ROOT, env=entry.variables(), check=True, capture_output=True)
        times.append(perf_counter_ns() - start)
    return max(0, times[1] - times[0])
