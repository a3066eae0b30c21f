"""Context-parallel ranks: threads with an engine, a cache, pools and a store each, which divide the tokens of every page.

Every rank runs the whole model, keeps its own slots of each page, and gathers all of them to read. Engines do not gather keys
but what each rank's attention makes of its own; what the cache has to hold is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from threading import Barrier, Lock
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from rank_threads import RankThreads
from waiting import PATIENCE_S

from oracle.mix import EVENTS, Bench, Tiers, serve_mix
from oracle.oracle_engine import OracleEngine, WrongLogitsError
from oracle.reference import Tally
from oracle.tiny_model import SINGLE, Family
from reference_engine import SequenceRows
from reference_engine.engine import Sampler
from unified_tree.components import Composition
from unified_tree.controllers import Lease
from unified_tree.controllers.ranks import Consensus

T = TypeVar("T")
HAPPENS = {name: chance for name, chance in EVENTS.items() if name != "weights"}
"""New weights are drawn from a generator that all threads share."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How many ranks divide the slots of which components, in runs of how many."""

    ranks: int
    interleave: int = 1
    names: tuple[str, ...] = ("full",)

    def of(self, rank: int, composition: Composition) -> Composition:
        """What a rank keeps."""
        served = replace(composition, tensor_parallel=self.ranks, rank=rank)
        return served.with_context_parallel(self.ranks, interleave=self.interleave, names=self.names)


@dataclass(frozen=True)
class Done(Generic[T]):
    """A life that came to its end."""

    result: T


class Exchange:
    """Where ranks give one another rows."""

    def __init__(self, ranks: int) -> None:
        self._given: list[torch.Tensor] = [torch.empty(0)] * ranks
        self._barrier = Barrier(ranks, timeout=PATIENCE_S)

    def gather(self, rank: int, rows: torch.Tensor) -> list[torch.Tensor]:
        """The rows of all ranks; every rank makes the same calls."""
        self._given[rank] = rows
        self._barrier.wait()
        gathered = list(self._given)
        self._barrier.wait()
        return gathered

    def abort(self) -> None:
        """Have the others fail, too."""
        self._barrier.abort()


class RankRows(SequenceRows):
    """Reads and writes of one rank, which holds its own slots only."""

    def __init__(self, exchange: Exchange, *args: Any) -> None:
        super().__init__(*args)
        self._exchange = exchange

    def read(self, component: str, layer_id: int, part: str, first_token: int, last_token: int) -> torch.Tensor:
        """All rows, each from the rank that keeps it."""
        context = self.pools[component].format.context
        if context.count == 1:
            return super().read(component, layer_id, part, first_token, last_token)
        ratio = self._tokens_per_slot(component)
        slots = np.arange(first_token // ratio, last_token // ratio)
        mine = self.pools[component].slots(layer_id, part)[self._places(component, slots[self._is_own(component, slots)])]
        rows = torch.empty(len(slots), *mine.shape[1:], dtype=mine.dtype)
        for rank, given in enumerate(self._exchange.gather(context.index, mine)):
            rows[torch.from_numpy(self._is_own(component, slots, rank))] = given
        return rows

    def write(self, component: str, layer_id: int, part: str, first_token: int, rows: torch.Tensor) -> None:
        """Write those rows that this rank keeps."""
        if self.pools[component].format.context.count == 1:
            super().write(component, layer_id, part, first_token, rows)
            return
        ratio = self._tokens_per_slot(component)
        slots = np.arange(len(rows)) + first_token // ratio
        mine = self._is_own(component, slots) & (slots >= self.lease.write_from[component] // ratio)
        pool = self.pools[component].slots(layer_id, part)
        pool[self._places(component, slots[mine])] = rows[torch.from_numpy(mine)]

    def _tokens_per_slot(self, component: str) -> int:
        kept = self.pools[component].format
        return self.page_size // (kept.slots_per_page * kept.context.count)

    def _is_own(self, component: str, slots: NDArray[np.int64], rank: int | None = None) -> NDArray[np.bool_]:
        """Which of a sequence's slots a rank keeps, or this one."""
        kept = self.pools[component].format
        given = kept.context if rank is None else replace(kept.context, index=rank)
        page_slots = kept.slots_per_page * kept.context.count
        return np.isin(slots % page_slots, given.slots(page_slots))

    def _places(self, component: str, slots: NDArray[np.int64]) -> torch.Tensor:
        """Where own slots of the sequence lie in the pool."""
        kept = self.pools[component].format
        page_slots = kept.slots_per_page * kept.context.count
        within = np.full(page_slots, -1)
        within[list(kept.context.slots(page_slots))] = np.arange(kept.slots_per_page)
        pages = self.lease.pages(component)[slots // page_slots] if slots.size else slots
        assert (pages >= 0).all(), f"{self.lease} holds no {component} for the slots {slots}"
        return torch.from_numpy(pages * kept.slots_per_page + within[slots % page_slots])


class RankEngine(OracleEngine):
    """The engine of one rank."""

    def __init__(self, exchange: Exchange, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._exchange = exchange

    def rows(self, lease: Lease) -> SequenceRows:
        """Over the pools of this rank, and the others' for what they keep."""
        return RankRows(self._exchange, lease, self.pools, self.cache.layout)


def serve_a_mix(bench: Bench) -> Tally:
    """A random mix of requests."""
    return serve_mix(bench, 12, HAPPENS)


def serve_on_ranks(
    family: Family,
    layout: Layout,
    tiers: Tiers,
    seed: int,
    serve: Callable[[Bench], T],
    *,
    draft: Family | None = None,
    sampler: Sampler | None = None,
) -> list[T]:
    """The life of a server of several ranks: what was served, by rank. Raises what a rank raised, a wrong logit first."""
    exchange, making = Exchange(layout.ranks), Lock()

    def one(consensus: Consensus, rank: int) -> Done[T] | Exception:
        bench: Bench | None = None
        try:
            with making:  # models are drawn from a generator that all threads share
                bench = Bench(
                    family,
                    SINGLE,
                    tiers,
                    Random(seed),
                    engine=partial(RankEngine, exchange),
                    of_rank=partial(layout.of, rank),
                    ranks=consensus,
                    draft=draft,
                    sampler=sampler,
                )
            return Done(serve(bench))
        except Exception as error:
            exchange.abort()
            with suppress(Exception):
                if bench is not None:
                    bench.cache.close()
            return error

    served = RankThreads(layout.ranks).run(one)
    errors = sorted((each for each in served if isinstance(each, Exception)), key=lambda e: not isinstance(e, WrongLogitsError))
    if errors:
        raise errors[0]
    return [each.result for each in served if isinstance(each, Done)]
