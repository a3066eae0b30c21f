"""Parts that break a clause of their contract: the checks name it, and say what was wanted and seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import unified_tree.controllers.testing as package
from unified_tree import PolicyFactory
from unified_tree.controllers.prefix_linker import MemoryLinker, Span
from unified_tree.controllers.storage import MemoryStorage, Outcome, StoredPool
from unified_tree.controllers.storage_tier import ThreadJobs
from unified_tree.controllers.storage_tier.jobs import Job
from unified_tree.controllers.testing import (
    SimulatedEngine,
    check_jobs,
    check_policy,
    check_prefix_linker,
    check_storage_engine,
    check_transfer_engine,
)
from unified_tree.controllers.transfer_engines import Completion, CpuEngine, NullEngine, VirtualClock


class Overwrites(MemoryStorage):
    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        self.remove(pool, keys)
        return super().put(pool, keys, pages)


class MixesPools(MemoryStorage):
    def exists(self, pool: str, keys: Sequence[bytes]) -> Any:
        return super().exists("full" if pool == "mamba" else pool, keys)

    def get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        if pool == "mamba" and super().exists("full", keys).any():
            return [Outcome.DONE] * len(keys)
        return super().get(pool, keys, pages)


class ReadsHalf(MemoryStorage):
    def get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        outcomes = super().get(pool, keys, pages)
        for page in pages:
            page[len(page) // 2 :] = bytes(len(page) - len(page) // 2)
        return outcomes


class StaysOpen(MemoryStorage):
    def close(self) -> None:
        self.clear()


class Boundless(MemoryStorage):
    def __init__(self, pools: Sequence[StoredPool], _: int) -> None:
        super().__init__(pools, 1 << 30)


class OneFormat(MemoryStorage):
    kept: dict[str, MemoryStorage] = {}

    @classmethod
    def opened(cls, pools: Sequence[StoredPool], store: str) -> MemoryStorage:
        class Kept(MemoryStorage):
            def close(self) -> None:
                pass

        return cls.kept.setdefault(store, Kept(pools, 1 << 20))


STORES: dict[str, Callable[[Sequence[StoredPool], str], MemoryStorage]] = {
    "the old value stays": lambda pools, _: Overwrites(pools, 1 << 20),
    "what is put is got": lambda pools, _: MixesPools(pools, 1 << 20),
    "threads at once get whole values": lambda pools, _: ReadsHalf(pools, 1 << 20),
    "a closed engine takes nothing": lambda pools, _: StaysOpen(pools, 1 << 20),
    "a full store goes on": lambda pools, _: Boundless(pools, 1 << 20),
    "formats are kept apart": OneFormat.opened,
}


@pytest.mark.parametrize("clause", STORES)
def test_a_broken_store_is_found(clause: str) -> None:
    with pytest.raises(AssertionError, match=rf"clauses of the contract are broken:(?s:.*)- {clause}: "):
        check_storage_engine(STORES[clause], capacity_bytes=1 << 20)


class Repeats(CpuEngine):
    def poll(self) -> list[Completion]:
        return [completion for completion in super().poll() for _ in range(2)]


class Swaps(CpuEngine):
    def poll(self) -> list[Completion]:
        return super().poll()[::-1]


class OpensGates(CpuEngine):
    def wait_layer(self, ticket: int, layer_id: int) -> None:
        del layer_id
        self._ledger.find(ticket)


def failing(movers: Mapping[str, Any]) -> SimulatedEngine:
    """Moves nothing that it was given movers for."""
    del movers
    return SimulatedEngine(1, VirtualClock())


ENGINES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "a cancelled transfer has one completion": Repeats,
    "completions come once and in the order of submission": Swaps,
    "a gate that cannot open raises": OpensGates,
    "pages go out and come back": failing,
    "a component that is not moved is refused": lambda _: NullEngine(),
}


@pytest.mark.parametrize("clause", ENGINES)
def test_a_broken_transfer_engine_is_found(clause: str) -> None:
    with pytest.raises(AssertionError, match=rf"- {clause}: "):
        check_transfer_engine(ENGINES[clause])


class Moody:
    """Its ranks change though no value is used."""

    def __init__(self, _: object) -> None:
        self.asked = 0

    def touched(self, value: Any) -> None:
        pass

    def rank(self, value: Any) -> float:
        self.asked += 1
        return -self.asked if self.asked % 3 else value.touched

    def evicted(self, value: Any) -> None:
        pass


class Raises(Moody):
    def rank(self, value: Any) -> float:
        del value
        raise ValueError("no rank")


@pytest.mark.parametrize(("factory", "words"), [(Moody, "could have gone"), (Raises, r"gave no number \d+ times: .*no rank")])
def test_a_broken_policy_is_found(factory: PolicyFactory, words: str) -> None:
    with pytest.raises(AssertionError, match=f"the victim has the smallest rank (?s:.*){words}"):
        check_policy(factory)


class NamesTwice(ThreadJobs):
    def ended(self) -> list[Job]:
        found = super().ended()
        self._ended.extend(found)
        return found


def test_broken_jobs_are_found() -> None:
    with pytest.raises(AssertionError, match="- a job runs to its end and is named once: ended, when asked again"):
        check_jobs(NamesTwice)


class WritesTooMuch(MemoryLinker):
    def retrieve(self, request: str, span: Span) -> None:
        begin = span.first_token(self.chunk_tokens)
        super().retrieve(request, Span(tokens=span.tokens, salt=span.salt, begin=begin, end=span.end, pages=span.pages))


def test_a_broken_linker_is_found() -> None:
    with pytest.raises(AssertionError, match=r"- pages before the beginning are not written: .* wrote to a page of no token"):
        check_prefix_linker(lambda pools: WritesTooMuch(pools, 16, 1000))


def test_a_check_has_a_name_and_says_its_clause() -> None:
    for checks in (package.storage_engine_checks, package.transfer_engine_checks, package.policy_checks, package.job_checks):
        names = [check.name for check in checks()]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in names)
        assert all(check.__doc__ for check in checks())


def test_cells_are_what_a_mover_is() -> None:
    cells = package.Cells((0, 1), 4)
    cells.backup(np.array([1]), np.array([2]))
    assert (cells.host[:, 2] == cells.device[:, 1]).all()
