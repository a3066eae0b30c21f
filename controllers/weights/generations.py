"""Generations: which weights version of a namespace a computation belongs to.

A generation is an object. Each computation refers to its generation, which is marked as ended by an invalidation. So idle
namespaces cost nothing, however many were invalidated. The names under which a prefix linker's peer keeps prefixes must reflect
invalidations for ever; they use counters by namespace, up to a bound (`InvalidationCounters`).
"""

from __future__ import annotations

from weakref import WeakSet, WeakValueDictionary


class Generation:
    """One weights version of one namespace, equal to no other.

    Attributes:
        has_ended: whether it was invalidated; state computed under it must not be published any more.
    """

    __slots__ = ("__weakref__", "has_ended")

    def __init__(self) -> None:
        self.has_ended = False


class InvalidationCounters:
    """How often each namespace was invalidated since this object was created. States under different counts are never shared.

    Args:
        max_names: how many namespaces invalidated on their own are counted; with one more, all count as invalidated.
    """

    def __init__(self, max_names: int) -> None:
        self._max_names = max_names
        self._overall = 0
        self._by_name: dict[str, int] = {}

    def of(self, namespace: str) -> tuple[int, int]:
        """The counts of a namespace; `(0, 0)` if it was never invalidated. Cost: O(1)."""
        return self._overall, self._by_name.get(namespace, 0)

    def invalidated(self, namespace: str | None) -> None:
        """One namespace was invalidated, or all. Cost: O(1)."""
        is_new = namespace not in self._by_name
        if namespace is None or (is_new and len(self._by_name) >= self._max_names):
            self._overall += 1
            self._by_name.clear()
        else:
            self._by_name[namespace] = self._by_name.get(namespace, 0) + 1


class Generations:
    """The generations of one cache that are in use, and its invalidation counters."""

    def __init__(self) -> None:
        self._held: WeakValueDictionary[str, Generation] = WeakValueDictionary()
        self._latest: tuple[str, Generation] | None = None  # kept alive, for the next request is often of the same namespace
        self._counts: WeakSet[InvalidationCounters] = WeakSet()

    def current(self, namespace: str) -> Generation:
        """The current generation of a namespace. Keep it and read `has_ended` later. Cost: O(1)."""
        latest = self._latest
        if latest is not None and latest[0] == namespace:
            return latest[1]
        generation = self._held.get(namespace)
        if generation is None:
            generation = self._held[namespace] = Generation()
        self._latest = (namespace, generation)
        return generation

    def end(self, namespace: str | None) -> None:
        """End the generation of a namespace, or of all. Cost: O(1); for all, O(namespaces in use)."""
        self._latest = None
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
        """Count invalidations from now on, for as long as the result is alive."""
        counts = InvalidationCounters(max_names)
        self._counts.add(counts)
        return counts
