"""Parts that break a clause of their contract: the checks name it, and say what was wanted and seen."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import patient_checks
import pytest

import unified_tree.controllers.testing as package
from unified_tree import PolicyFactory
from unified_tree.controllers.prefix_linker import MemoryLinker, Span
from unified_tree.controllers.storage import Capabilities, FileStorage, MemoryStorage, Outcome, StoredPool
from unified_tree.controllers.storage_tier import ThreadJobs
from unified_tree.controllers.storage_tier.jobs import Job
from unified_tree.controllers.testing import (
    SimulatedEngine,
    TransferRig,
    check_jobs,
    check_policy,
    check_prefix_linker,
    check_storage_engine,
    check_transfer_engine,
    storage_contract,
    transfer_rig,
)
from unified_tree.controllers.transfer_engines import Completion, CpuEngine, NullEngine, VirtualClock

HANGS_S = 10.0
"""Of clauses that take milliseconds, before one that hangs."""


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    patient_checks.let_no_clause_be_too_slow(monkeypatch)


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


class Deadlocks(MemoryStorage):
    """Takes its lock twice."""

    def _remove(self, pool: str, keys: Sequence[bytes]) -> None:
        del pool, keys
        with self._lock:
            self._lock.acquire()


class KeepsLittle(MemoryStorage):
    """Keeps 5,000 bytes of what it says."""

    def __init__(self, pools: Sequence[StoredPool], _: int) -> None:
        super().__init__(pools, 5000)


class Wavers(MemoryStorage):
    asked = 0

    @property
    def capabilities(self) -> Capabilities:
        self.asked += 1
        return Capabilities(zero_copy=self.asked % 2 == 0)


class WipesAll(FileStorage):
    """Wipes whatever lies in its directory."""

    def __init__(self, pools: Sequence[StoredPool], path: Path) -> None:
        super().__init__(pools, path, 1 << 20)
        self._path = path

    def clear(self) -> None:
        super().clear()
        for path in self._path.iterdir():
            if not any(pool.format_digest.hex()[:8] in path.name for pool in self._pools.values()):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


class Unlocked(MemoryStorage):
    def __init__(self, pools: Sequence[StoredPool], capacity_bytes: int) -> None:
        super().__init__(pools, capacity_bytes)
        self._lock = nullcontext()  # type: ignore[assignment]

    def _write(self, where: tuple[str, bytes], page: memoryview) -> Outcome:
        self._held_bytes = sum(len(value) for value in self._values.values())
        return super()._write(where, page)


class EvictsNothing(MemoryStorage):
    """Evicts until there is room, though nothing is left."""

    def _write(self, where: tuple[str, bytes], page: memoryview) -> Outcome:
        del where, page
        next(iter(self._values))
        return Outcome.DONE


STORES: dict[str, Callable[[Sequence[StoredPool], str], MemoryStorage]] = {
    "the old value stays": lambda pools, _: Overwrites(pools, 1 << 20),
    "what is put is got": lambda pools, _: MixesPools(pools, 1 << 20),
    "threads at once get whole values": lambda pools, _: ReadsHalf(pools, 1 << 20),
    "a closed engine takes nothing": lambda pools, _: StaysOpen(pools, 1 << 20),
    "a full store goes on": lambda pools, _: Boundless(pools, 1 << 20),
    "formats are kept apart": OneFormat.opened,
    "capabilities stay the same": lambda pools, _: Wavers(pools, 1 << 20),
    "a full store keeps what was put last": lambda pools, _: KeepsLittle(pools, 1 << 20),
    "threads at once are all counted": lambda pools, _: Unlocked(pools, 1 << 20),
}


@pytest.fixture
def in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What clauses do in threads at once is done in turn, for stores that are broken without threads: it takes no time."""
    monkeypatch.setattr(storage_contract, "at_once", lambda calls: [call() for call in calls][:0])


@pytest.mark.parametrize("clause", STORES)
def test_a_broken_store_is_found(clause: str, request: pytest.FixtureRequest) -> None:
    if not clause.startswith("threads at once"):
        request.getfixturevalue("in_turn")
    with pytest.raises(AssertionError, match=rf"clauses? of the contract (is|are) broken:(?s:.*)- {clause}: "):
        check_storage_engine(STORES[clause], capacity_bytes=1 << 20)


@pytest.mark.usefixtures("in_turn")
def test_a_store_whose_clear_wipes_other_formats_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="- clear leaves other formats alone: get of a value after"):
        check_storage_engine(lambda pools, store: WipesAll(pools, tmp_path / store))


def test_a_store_that_hangs_ends_the_check_and_is_named_with_where() -> None:
    with pytest.raises(AssertionError) as error:
        check_storage_engine(lambda pools, _: Deadlocks(pools, 1 << 20), limit_s=HANGS_S)
    words = (
        r"- what is removed or cleared is missing: not done after 10 s \(limit_s\); it hangs in Deadlocks._remove, .*\.py:\d+: "
    )
    assert re.search(words + r"self\._lock\.acquire\(\); the \d+ clauses after it were not checked$", str(error.value))


def test_threads_that_hang_are_named_with_where() -> None:
    class Jams(MemoryStorage):
        def _remove(self, pool: str, keys: Sequence[bytes]) -> None:
            if threading.current_thread().name.endswith("at once"):
                threading.Event().wait()
            super()._remove(pool, keys)

    with pytest.raises(AssertionError, match=r"- threads at once get whole values: .* it hangs in \S*Jams\._remove, .*Event"):
        check_storage_engine(lambda pools, _: Jams(pools, 1 << 20), limit_s=HANGS_S)


@pytest.mark.usefixtures("in_turn")
def test_what_a_store_raises_is_said_with_the_line_and_once() -> None:
    with pytest.raises(AssertionError) as error:
        check_storage_engine(lambda pools, _: EvictsNothing(pools, 1 << 20))
    lines = str(error.value).splitlines()
    raised = next(line for line in lines if "StopIteration" in line)
    words = (
        r"- what is put is got: StopIteration without a message \(`next` found nothing left: .* an engine that evicts although "
    )
    assert re.match(
        words + r"it keeps nothing\), raised in EvictsNothing._write, .*:\d+: next\(iter\(self._values\)\)$", raised
    )
    assert re.match(r"  \(for the same reason also: the old value stays; ", lines[lines.index(raised) + 1])


def test_a_store_that_cannot_be_opened_is_said_once() -> None:
    def opened(_: object, __: object) -> MemoryStorage:
        raise OSError("no such disk")

    with pytest.raises(AssertionError) as error:
        check_storage_engine(opened)
    assert str(error.value).count("OSError: no such disk, raised in") == 1


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


class Drains(CpuEngine):
    def close(self) -> None:
        self.drain()
        super().close()


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


def test_an_engine_that_copies_everything_before_it_closes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_rig, "PATIENCE_S", 0.0)
    [check] = [check for check in package.transfer_engine_checks() if check.name == "closing_ends_what_is_open"]
    with pytest.raises(AssertionError, match="close waited for all that was open"):
        check(TransferRig.over_cells(Drains))


class Moody:
    """Its ranks change though no value is used."""

    def __init__(self, _: object) -> None:
        self.asked = 0

    def touched(self, value: Any) -> None:
        pass

    def rank(self, value: Any) -> float:
        self.asked += 1
        return -self.asked if self.asked % 3 else value.touched


class Raises(Moody):
    def rank(self, value: Any) -> float:
        del value
        raise ValueError("no rank")


class NotANumber(Moody):
    def rank(self, value: Any) -> float:
        return float("nan") if value.touched % 3 else value.touched


class Nothing(Moody):
    def rank(self, value: Any) -> Any:
        del value


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (Moody, r"the rank changed without a touch: was \S+, is \S+"),
        (Raises, r"failed \d+ times, the last time: ValueError\('no rank'\)"),
        (NotANumber, r"failed \d+ times, the last time: rank nan is no number"),
        (Nothing, r"failed \d+ times, the last time: rank None is no number"),
    ],
)
def test_a_broken_policy_is_found(factory: PolicyFactory, words: str) -> None:
    with pytest.raises(AssertionError) as error:
        check_policy(factory)
    [said] = [line for line in str(error.value).splitlines() if line.startswith("- ")]
    assert re.match(rf"- the victim has the smallest rank of all that can go \(model: full\): .*{words}$", said), (
        "one cause, once"
    )


class StandsNowhere(Moody):
    def rank(self, value: Any) -> float:
        return float(value.touched)

    def standing(self, value: Any) -> float:
        del value
        raise ValueError("no standing")


def test_a_policy_whose_standing_raises_is_found() -> None:
    factory: Any = StandsNowhere
    with pytest.raises(AssertionError, match=r"failed \d+ times, the last time: ValueError\('no standing'\)"):
        check_policy(factory)


def raising(_: object) -> Any:
    raise KeyError("no such setting")


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("lru3", "there is no policy to check: unknown eviction policy 'lru3'; there are lru, "),
        (
            raising,
            r"there is no policy to check: the policy <function raising .*> cannot be made: KeyError: 'no such setting'",
        ),
        (
            lambda _: object(),
            "there is no policy to check: .* makes a object, which is no policy: it lacks rank",
        ),
    ],
)
def test_without_a_policy_the_check_is_one_sentence(factory: Any, words: str) -> None:
    with pytest.raises(AssertionError) as error:
        check_policy(factory)
    assert re.match(words, str(error.value)) and "\n" not in str(error.value)


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
