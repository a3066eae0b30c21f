"""The tape: evictions, transfers and invalidations, as they happen, until they are told."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from unified_tree.inputs.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_EVENTS = 256
"""Between two tellings; what comes beyond is only counted."""
EVENT_FIELDS = (
    "at_s", "kind", "tier", "component", "for", "calls", "values", "tokens", "pages", "bytes", "needed", "owners"
)  # fmt: skip
"""Of an event as it is told."""
MAX_OWNERS = 4
"""Of an eviction the namespaces that lost most; the others are one."""
MAX_COUNTED_OWNERS = 64
"""Of an event the namespaces that are told apart until then."""


class Event:
    """What happened of one kind in one step.

    Attributes:
        at_s: when the first of it was.
        merged: of how many calls it is the sum.
        counts: how many values, tokens, pages and bytes, and how many of the values were needed and had no copy.
        owners: how many were taken from each namespace.
    """

    __slots__ = ("at_s", "counts", "merged", "owners")

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s
        self.merged = 0
        self.counts = [0, 0, 0, 0, 0]
        self.owners: dict[str | None, int] = {}

    def told(self) -> list[Any]:
        """For the page, its owners as pairs, the first the one that lost most; None are others."""
        owners = sorted(self.owners.items(), key=lambda entry: (entry[0] is None, -entry[1]))
        shown = [(None if name is None else printable(name), count) for name, count in owners[:MAX_OWNERS]]
        if len(owners) > MAX_OWNERS:
            shown.append((None, sum(count for _, count in owners[MAX_OWNERS:])))
        return [self.merged, *self.counts, shown]


class Tape:
    """What happened since the last telling. Events of one kind in one step are one.

    Args:
        time_s: the clock of the events.

    Attributes:
        left_out: how many events did not fit.
    """

    def __init__(self, time_s: Callable[[], float]) -> None:
        self._time_s = time_s
        self._events: dict[tuple[Any, ...], Event] = {}
        self._step = 0
        self.left_out = 0

    def next_step(self) -> None:
        """A scheduler step has ended."""
        self._step += 1

    def add(self, names: tuple[Any, ...], counts: tuple[int, ...], owners: Mapping[str, int] | None = None) -> None:
        """Note an event.

        Args:
            names: its kind, and what else tells it from others: tier, component, namespace.
            counts, owners: as of Event; they add up.
        """
        key = (self._step, *names)
        event = self._events.get(key)
        if event is None:
            if len(self._events) >= MAX_EVENTS:
                self.left_out += 1
                return
            event = self._events[key] = Event(self._time_s())
        event.merged += 1
        event.counts = [before + added for before, added in zip(event.counts, counts, strict=True)]
        for namespace, count in (owners or {}).items():
            is_told = namespace in event.owners or len(event.owners) < MAX_COUNTED_OWNERS
            name = namespace if is_told else None
            event.owners[name] = event.owners.get(name, 0) + count

    def take(self, limit: int) -> list[list[Any]]:
        """The oldest events, which were not told before, each with EVENT_FIELDS."""
        taken = list(islice(self._events, limit))
        events = [(names, self._events.pop(names)) for names in taken]
        return [
            [event.at_s, *(printable(name) if isinstance(name, str) else name for name in names[1:]), *event.told()]
            for names, event in events
        ]
