"""One operation in the situation that is worst for it, at several sizes: does its cost depend on the size?

A case builds a tree and then yields single calls, each of which is timed alone; a whole such course is a *life*, and small
sizes live several times. The time of a call is the processor's, or the wall clock's where that says less: what other
programs do meanwhile does not count. The garbage collector rests, for it has a case of its own.
"""

from __future__ import annotations

import gc
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter_ns, process_time, thread_time_ns
from typing import ClassVar
from zlib import crc32

import numpy as np

from benches.slope import percentile
from unified_tree import EvictResult

Call = Callable[[], object]
SEED = 20240
NODES = (1_000, 10_000, 100_000, 1_000_000)
CHAIN = (100, 1_000, 10_000, 100_000)
"""Building a chain costs the square of its length in copied bytes, so chains are shorter."""


class WorstCase(ABC):
    """One question, at one size.

    Attributes:
        question, silent_on: what it answers and what it does not.
        variants: the ways to ask it.
        components: the kinds of state in the tree; empty where the variant names them.
        page_size: tokens a page.
        varied: what `size` counts.
        sizes: the sizes to measure, ascending; as a rule the first three.
        smoke_sizes: sizes at which it takes no time.
        unit: of its figures.
        ns_a_unit: what a unit is in nanoseconds; 1 for what is no time.
        max_calls: calls a life, at most.
        lives_once: whether a process is spoilt for it by what lived there before.
        is_divided: whether a figure is divided by the size, for a call goes through so much.
        names_calls: whether it makes calls of several kinds, so that it matters which was the worst.
    """

    question: ClassVar[str]
    silent_on: ClassVar[str]
    variants: ClassVar[tuple[str, ...]] = ("",)
    components: ClassVar[str] = "full"
    page_size: ClassVar[int] = 16
    varied: ClassVar[str] = "leaves"
    sizes: ClassVar[tuple[int, ...]] = NODES
    smoke_sizes: ClassVar[tuple[int, ...]] = (8, 24)
    unit: ClassVar[str] = "µs"
    ns_a_unit: ClassVar[float] = 1000.0
    max_calls: ClassVar[int] = 1000
    is_divided: ClassVar[bool] = False
    names_calls: ClassVar[bool] = False
    lives_once: ClassVar[bool] = False

    def __init__(self, size: int, variant: str, seed: int = SEED, *, smoke: bool = False) -> None:
        self.size = size
        self.variant = variant
        self.smoke = smoke
        self.random = np.random.RandomState([seed, size, crc32(f"{type(self).__name__} {variant}".encode())])
        self.worst_call = ""
        self._digest = hashlib.blake2b(digest_size=6)

    @classmethod
    def page(cls, variant: str) -> int:  # noqa: ARG003
        """Tokens a page."""
        return cls.page_size

    @classmethod  # noqa: B027
    def prepare(cls) -> None:
        """What all sizes and variants share, made once before any is measured."""

    @abstractmethod
    def build(self) -> None:
        """Make the tree; not timed."""

    @abstractmethod
    def calls(self) -> Iterator[Call]:
        """The calls to be timed, in sequence. What happens between two of them is not timed."""

    def measure(self, call: Call) -> tuple[float, object]:
        """Make one call: (nanoseconds, what it returned)."""
        processor = thread_time_ns()
        wall = perf_counter_ns()
        result = call()
        wall = perf_counter_ns() - wall
        processor = thread_time_ns() - processor
        return min(wall, processor), result

    def answer(self, result: object) -> None:
        """Note what a call returned, so that a faster wrong answer shows."""
        if isinstance(result, EvictResult):
            result = [(name, ids.size) for name, ids in sorted(result.freed.items())]
        elif not isinstance(result, int | str | tuple):
            return
        self._digest.update(repr(result).encode())

    def digest(self) -> str:
        """Of all answers so far."""
        return self._digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What all lives of a case at one size amounted to, in the case's unit.

    Attributes:
        calls: how many were timed.
        median, p999: of all of them.
        worst: the largest that every life had: the smallest of the lives' largest.
        worst_seen: the largest of all.
        worst_call: which call that was, where a case makes several kinds.
        digest: of all answers; empty if a life was cut short.
        cut_short: whether a life took longer than it was given.
    """

    size: int
    calls: int
    median: float
    p999: float
    worst: float
    worst_seen: float
    worst_call: str
    digest: str
    cut_short: bool

    @property
    def ratio(self) -> float | None:
        """How far p99.9 is from the median."""
        return round(self.p999 / self.median, 2) if self.median else None


def lives_of(size: int) -> int:
    """How often a size is built anew."""
    return 3 if size <= 10_000 else 2 if size <= 100_000 else 1


def live(make: type[WorstCase], variant: str, size: int, *, budget_s: float | None = None, smoke: bool = False) -> Figures:
    """Build and call, as often as the size says.

    Args:
        budget_s: processor time for the calls of one life, after which it is cut short; None for no end.
        smoke: once is enough, and nothing outside the repository is read.
    """
    lives = 1 if smoke or make.lives_once else lives_of(size)
    if not smoke and not make.lives_once:
        _calls(_built(make, make.smoke_sizes[-1], variant, smoke=True), None)  # to have used all code and memory once
    samples: list[float] = []
    peaks: list[tuple[float, str]] = []
    digest, cut_short = "", False
    for _ in range(lives):
        case = _built(make, size, variant, smoke=smoke)
        spent, cut = _calls(case, budget_s)
        cut_short |= cut
        peaks.append((max(spent), case.worst_call))
        samples += spent
        digest = case.digest()
        del case
    worst, worst_call = min(peaks)
    samples.sort()
    scale = make.ns_a_unit
    return Figures(
        size=size,
        calls=len(samples),
        median=percentile(samples, 0.5) / scale,
        p999=percentile(samples, 0.999) / scale,
        worst=worst / scale,
        worst_seen=samples[-1] / scale,
        worst_call=worst_call,
        digest="" if cut_short else digest,
        cut_short=cut_short,
    )


def _built(make: type[WorstCase], size: int, variant: str, *, smoke: bool) -> WorstCase:
    """A case with its tree, and the collector at rest."""
    gc.enable()
    gc.collect()
    gc.disable()
    case = make(size, variant, smoke=smoke)
    case.build()
    return case


def _calls(case: WorstCase, budget_s: float | None) -> tuple[list[float], bool]:
    samples: list[float] = []
    peak = -1.0
    start = process_time()
    for call in case.calls():
        spent, result = case.measure(call)
        spent /= case.size if case.is_divided else 1
        case.answer(result)
        samples.append(spent)
        if spent > peak:
            peak, case.worst_call = spent, getattr(call, "__name__", "") if case.names_calls else ""
        if budget_s is not None and process_time() - start > budget_s:
            return samples, True
    return samples, False
