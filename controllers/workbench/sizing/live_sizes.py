"""The curve of a running cache: models of several sizes see a sample of its requests.

A request is in the sample or not by a hash of its namespace and of a few tokens behind what all prompts share, so whole root
subtrees are, and the models' memory is that part of the cache's. A request that is not costs two short hashes; one that is
costs a pass over its prompt in each model, in numpy. The memory is bounded: what no model has any more is forgotten.

The models see requests at their admission alone. They take a prompt to be computed at once, and know no answers, no transfers
and no store; they evict what is least recently used, whatever the cache's policy does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from unified_tree.controllers.counters.observers import CacheObserver, LiveCurve, LiveSize
from unified_tree.controllers.workbench.sizing.model_cache import ModelCache
from unified_tree.controllers.workbench.sizing.needs import Needs
from unified_tree.inputs.arguments import integer
from unified_tree.inputs.printable import printable, traceback_of
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.counters.observers import ObservedRequest
    from unified_tree.declare.keys import Key

LOG = logging.getLogger("unified_tree.sizing")
FACTORS = (0.5, 1.0, 2.0, 4.0)
UNIT_TOKENS = 64
"""Prompts are compared by so many tokens at a time, or by pages where these are larger."""
SPARE_UNITS = 4096
COMPACT_EVERY = 1024
"""Sampled requests."""


class LiveSizes(CacheObserver):
    """The models of one cache. See `watch`.

    Args:
        page_counts: of the cache's device pools.
        one_in: one of so many root subtrees is sampled.
        shared_tokens: what all prompts begin with, at least: subtrees are told apart by the tokens behind.

    Attributes:
        failure: why they see no more requests; None while they do.
    """

    def __init__(self, needs: Needs, page_counts: dict[str, int], *, one_in: int, shared_tokens: int = 0) -> None:
        path_tokens = needs.path_tokens(page_counts)
        if path_tokens is None:
            raise ConfigurationError("a curve over the sizes of pools needs a pool of paths that has an end")
        self._needs = needs
        self._unit = -(-UNIT_TOKENS // needs.page_tokens) * needs.page_tokens
        self._one_in = one_in
        self._skip = shared_tokens // self._unit * self._unit
        rooms = [round(self._skip + max(0.0, factor * path_tokens - self._skip) / one_in) for factor in FACTORS]
        self._value_room = needs.room(page_counts)
        capacity = 2 * rooms[-1] // self._unit + SPARE_UNITS
        self._models = [ModelCache(room, needs, capacity) for room in rooms]
        self._ids: dict[int, int] = {}
        self._free = list(range(capacity))
        self._weights = np.random.default_rng(0).integers(1, 1 << 62, self._unit * 2, np.int64) * 2 + 1
        self._requests = self._prompt_tokens = 0
        self.failure: str | None = None

    @classmethod
    def watch(cls, cache: PrefixCache, *, one_in: int = 64, shared_tokens: int = 0) -> LiveSizes:
        """Show the curve in `cache.stats().sizes` from now on; `cache.counters.observers.remove(sizes)` ends it.

        Raises ConfigurationError for a cache whose paths have no end or whose pools share a budget, and for arguments below 1
        and 0.
        """
        one_in = integer(one_in, "one_in", ConfigurationError, minimum=1)
        shared_tokens = integer(shared_tokens, "shared_tokens", ConfigurationError)
        if cache.tree.state.shared_pools[0] is not None:
            raise ConfigurationError("these sizes are factors of page counts, and the pools of this cache share a budget")
        pools = cache.device.allocators
        counts = {name: pool.page_count for name, pool in pools.items() if pool.page_count is not None}
        needs = Needs.of(cache.layout.components, cache.page_size)
        sizes = cls(needs, counts, one_in=one_in, shared_tokens=shared_tokens)
        cache.counters.observers.add(sizes)
        return sizes

    def acquired(self, request: ObservedRequest, key: Key) -> None:  # noqa: ARG002
        """A request was admitted. Cost: O(1) if it is not sampled, else O(prompt · sizes) in numpy.

        An error ends the models, and not the request: the log says so, and the curve stays as it is.
        """
        if self.failure is not None:
            return
        try:
            first = self._skip * key.width_bytes
            mark = bytes(key.data[first : first + self._unit * key.width_bytes])
            if crc32(mark, _code(key.namespace)) % self._one_in == 0 and key.length >= self._unit:
                self._see(key)
        except Exception as error:
            self.failure = printable(repr(error), 500)
            LOG.error("the models of other sizes failed, and see no more requests: %s", traceback_of(error))

    def curve(self) -> LiveCurve:
        """What the models say so far. Cost: O(values kept · log)."""
        others = FACTORS if self._needs.is_gated else (1.0,)
        points = []
        for path, model in zip(FACTORS, self._models, strict=True):
            hits = model.hits.curve()
            for other in others:
                tokens = hits.tokens(other * self._value_room / self._one_in)
                points.append(LiveSize(path=path, other=other, hit_rate=tokens / max(1, self._prompt_tokens)))
        return LiveCurve(requests=self._requests, prompt_tokens=self._prompt_tokens, points=tuple(points))

    def _see(self, key: Key) -> None:
        ids = self._units(key)
        self._requests += 1
        self._prompt_tokens += key.length
        for model in self._models:
            held = model.begin(ids, self._unit, key.length, 0)
            model.compute(held)
            model.end(held)
            if self._requests % COMPACT_EVERY == 0:
                model.compact()

    def _units(self, key: Key) -> NDArray[np.int64]:
        """Numbers of the units of a prompt: equal ones for equal prefixes. More than there is room for are left out."""
        count = key.length // self._unit
        words = np.frombuffer(key.data, np.int64, count * self._unit * key.width_bytes // 8).reshape(count, -1)
        mixed = (words * self._weights[: words.shape[1]]).sum(axis=1)
        mixed ^= mixed >> 29
        mixed *= self._weights[0]
        prefixes = np.cumsum(mixed * (2 * np.arange(1, count + 1) + 1)) ^ np.int64(_code(key.namespace))
        known = self._ids
        if count > len(self._free):
            gone = [prefix for prefix, number in known.items() if not any(model.has(number) for model in self._models)]
            self._free += [known.pop(prefix) for prefix in gone]
        numbers = []
        for prefix in prefixes.tolist():
            number = known.get(prefix)
            if number is None:
                if not self._free:
                    break
                number = known[prefix] = self._free.pop()
            numbers.append(number)
        return np.array(numbers, np.int64)


def _code(namespace: str) -> int:
    return crc32(namespace.encode("utf-8", "surrogatepass"))
