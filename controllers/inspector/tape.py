"""The tape: evictions, transfers and refusals, as they happen, until they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_EVENTS = 256
"""Between two tellings; what comes beyond is only counted."""


class Tape:
    """What happened since the last telling. Events of one kind in one step are one.

    Args:
        time_s: the clock of the events.

    Attributes:
        left_out: how many events did not fit.
    """

    def __init__(self, time_s: Callable[[], float]) -> None:
        self._time_s = time_s
        self._events: dict[tuple[Any, ...], list[float]] = {}
        self._step = 0
        self.left_out = 0

    def next_step(self) -> None:
        """A scheduler step has ended."""
        self._step += 1

    def add(self, names: tuple[Any, ...], numbers: tuple[float, ...]) -> None:
        """Note an event.

        Args:
            names: its kind, and what else tells it from others: tier, component, namespace.
            numbers: how many, how many pages, how many bytes, how many of them lost; they add up.
        """
        key = (self._step, *names)
        event = self._events.get(key)
        if event is not None:
            event[1:] = [before + added for before, added in zip(event[1:], numbers, strict=True)]
        elif len(self._events) < MAX_EVENTS:
            self._events[key] = [self._time_s(), *numbers]
        else:
            self.left_out += 1

    def take(self) -> list[list[Any]]:
        """The events since the last call: time, kind, tier, component, namespace, and the numbers."""
        events = [[numbers[0], *names[1:], *numbers[1:]] for names, numbers in self._events.items()]
        self._events.clear()
        return events


def size_of(pages: Mapping[str, Any], page_bytes: Mapping[str, int]) -> tuple[int, int]:
    """How many pages these are, given as ids by component, and how many bytes."""
    counts = {name: ids.size for name, ids in pages.items()}
    return sum(counts.values()), sum(count * page_bytes[name] for name, count in counts.items())
