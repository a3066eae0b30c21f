"""Which weights version of a namespace something was computed under, for as long as somebody wants to know.

A generation is an object: whoever computes under it holds it, and finds it ended after an invalidation. So namespaces that
nobody is at work in cost nothing, however many were invalidated. What must tell for ever whether a namespace was invalidated
(the names under which a prefix linker's peer keeps prefixes) counts by name, up to a bound, see `InvalidationCounters`.
"""

from __future__ import annotations

from weakref import WeakSet, WeakValueDictionary


class Generation:
    """One weights version of one namespace, equal to no other.

    Attributes:
        has_ended: whether it was invalidated: what was computed under it must not be published any more.
    """

    __slots__ = ("__weakref__", "has_ended")

    def __init__(self) -> None:
        self.has_ended = False


class InvalidationCounters:
    """How often each namespace was invalidated since this was made: two answers that differ share nothing.

    Args:
        max_names: namespaces invalidated on their own that are told apart; with one more, all count as invalidated.
    """

    def __init__(self, max_names: int) -> None:
        self._max_names = max_names
        self._overall = 0
        self._by_name: dict[str, int] = {}

    def of(self, namespace: str) -> tuple[int, int]:
        """`(0, 0)` for one that never was. Cost: O(1)."""
        return self._overall, self._by_name.get(namespace, 0)

    def invalidated(self, namespace: str | None) -> None:
        """One namespace was, or all. Cost: O(1)."""
        is_new = namespace not in self._by_name
        if namespace is None or (is_new and len(self._by_name) >= self._max_names):
            self._overall += 1
            self._by_name.clear()
        else:
            self._by_name[namespace] = self._by_name.get(namespace, 0) + 1


class Generations:
    """The generations of one cache that somebody holds, and who counts invalidations."""

    def __init__(self) -> None:
        self._held: WeakValueDictionary[str, Generation] = WeakValueDictionary()
        self._counts: WeakSet[InvalidationCounters] = WeakSet()

    def current(self, namespace: str) -> Generation:
        """The one that a namespace is in. Hold it, and see whether it `ended` or is `now` still. Cost: O(1)."""
        generation = self._held.get(namespace)
        if generation is None:
            generation = self._held[namespace] = Generation()
        return generation

    def end(self, namespace: str | None) -> None:
        """A namespace is in another from now on, or all are. Cost: O(1); of all, O(namespaces at work)."""
        if namespace is None:
            for generation in self._held.values():
                generation.has_ended = True
            self._held.clear()
        else:
            ended = self._held.pop(namespace, None)
            if ended is not None:
                ended.has_ended = True
        for counts in self._counts:
            counts.invalidated(namespace)

    def count(self, max_names: int) -> InvalidationCounters:
        """Count invalidations from now on, for as long as the result is held."""
        counts = InvalidationCounters(max_names)
        self._counts.add(counts)
        return counts
