"""The contract of storage engines, with a reduced form for engines that keep nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TypeAlias
from uuid import uuid4

from unified_tree.controllers.storage.storage_engine import Outcome, StorageEngine, StoredPool, check_can_hold
from unified_tree.controllers.testing.checks import LIMIT_S, Check, at_once, expect, expect_equal, refusal, run_checks
from unified_tree.terms.errors import PageError, StorageError

OpenEngine: TypeAlias = Callable[[Sequence[StoredPool], str], StorageEngine]
"""Opens an engine for these pools on the store of this name: an empty one, but for a name that was opened before."""
SIZES = {"full": 1088, "mamba": 320}


def pools_of_format(name: str, sizes: Mapping[str, int] = SIZES) -> list[StoredPool]:
    """Pools of these sizes, whose format digests follow from a name."""
    return [
        StoredPool(name=pool, format_digest=sha256(f"{name} {pool}".encode()).digest(), value_bytes=size)
        for pool, size in sizes.items()
    ]


POOLS = pools_of_format("checked")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRig:
    """What the checks are told of an engine.

    Attributes:
        open_engine: opens one; see `OpenEngine`. Pools and store are all that it takes from the checks.
        keeps_pages: False of one in which every page is missing and every put is dropped.
        capacity_bytes: how much a store that `open_engine` opens keeps at most, and at least half as much of what was put last;
            None where it is not known, and not checked.
        keeps_other_formats: False where opening a store for other formats replaces what it held, as 3FS's files of a rank do.
    """

    open_engine: OpenEngine
    keeps_pages: bool = True
    capacity_bytes: int | None = None
    keeps_other_formats: bool = True

    @contextmanager
    def engine(self, pools: Sequence[StoredPool] = POOLS, store: str | None = None) -> Iterator[StorageEngine]:
        """An engine, closed in the end; on an empty store if none is named."""
        engine = self.open_engine(pools, new_store() if store is None else store)
        try:
            yield engine
        finally:
            engine.close()


def new_store() -> str:
    """A name that no store has had."""
    return f"check-{uuid4().hex[:12]}"


def keys(*numbers: int) -> list[bytes]:
    """A key a number."""
    return [sha256(str(number).encode()).digest() for number in numbers]


def filled(pool: str, *numbers: int, salt: str = "") -> list[memoryview]:
    """A page a number, its own bytes in each."""
    return [memoryview(bytearray(random.Random(f"{pool} {number}{salt}").randbytes(SIZES[pool]))) for number in numbers]


def empty(pool: str, count: int) -> list[memoryview]:
    """Pages to read into."""
    return [memoryview(bytearray(SIZES[pool])) for _ in range(count)]


DONE, MISSING = Outcome.DONE, Outcome.MISSING


def check_storage_engine(
    open_engine: OpenEngine, *, keeps_pages: bool = True, capacity_bytes: int | None = None, limit_s: float = LIMIT_S
) -> None:
    """Check that a storage engine keeps the contract of `StorageEngine`; see StorageRig for the arguments.

    Each clause may take `limit_s` seconds; one that hangs is broken, and ends the check.

    Raises AssertionError that names every clause that is broken.

    >>> from unified_tree.controllers.storage import MemoryStorage
    >>> check_storage_engine(lambda pools, store: MemoryStorage(pools, 1 << 20), capacity_bytes=1 << 20)
    """
    rig = StorageRig(open_engine=open_engine, keeps_pages=keeps_pages, capacity_bytes=capacity_bytes)
    run_checks(storage_engine_checks(), lambda: rig, limit_s)


def storage_engine_checks() -> list[Check]:
    """The single checks: each is called with a StorageRig."""
    return [
        Check(body)
        for body in (
            what_is_put_is_got,
            the_old_value_stays,
            what_is_removed_or_cleared_is_missing,
            stats_name_every_pool_from_the_beginning,
            an_empty_batch_is_nothing,
            a_batch_that_does_not_fit_is_refused,
            everything_is_counted,
            a_closed_engine_takes_nothing,
            an_engine_keeps_what_it_says_it_can,
            capabilities_stay_the_same,
            threads_at_once_get_whole_values,
            threads_at_once_are_all_counted,
            formats_are_kept_apart,
            clear_leaves_other_formats_alone,
            what_survives_a_restart_is_found_again,
            a_full_store_goes_on,
            a_full_store_keeps_what_was_put_last,
        )
    ]


def what_is_put_is_got(rig: StorageRig) -> None:
    """`get` after `put` gives DONE and the bytes that were put, in the order of the keys; pools share no keys."""
    with rig.engine() as engine:
        stored, there = (DONE, DONE) if rig.keeps_pages else (Outcome.DROPPED, MISSING)
        expect_equal(engine.put("full", keys(1, 2, 3), filled("full", 1, 2, 3)), [stored] * 3, "put of three new keys")
        found = engine.exists("full", keys(2, 9, 1)).tolist()
        expect_equal(found, [rig.keeps_pages, False, rig.keeps_pages], "exists of a stored, an unknown and a stored key")
        pages = empty("full", 3)
        expect_equal(engine.get("full", keys(3, 9, 1), pages), [there, MISSING, there], "get of the same")
        if rig.keeps_pages:
            expect([pages[0], pages[2]] == filled("full", 3, 1), "get says DONE, but other bytes were read than were put")
        expect_equal(engine.get("mamba", keys(1), empty("mamba", 1)), [MISSING], "get of another pool's key")


def the_old_value_stays(rig: StorageRig) -> None:
    """A put of a key that is there is PRESENT and changes nothing."""
    with rig.engine() as engine:
        engine.put("mamba", keys(1), filled("mamba", 1))
        again = engine.put("mamba", keys(1), filled("mamba", 2))
        if rig.keeps_pages:
            expect_equal(again, [Outcome.PRESENT], "put of a key that is there")
            pages = empty("mamba", 1)
            engine.get("mamba", keys(1), pages)
            expect(pages == filled("mamba", 1), "the second put replaced the first value")


def what_is_removed_or_cleared_is_missing(rig: StorageRig) -> None:
    """`remove` forgets these keys and no others, `clear` all; both may be stored again."""
    with rig.engine() as engine:
        for pool in SIZES:
            engine.put(pool, keys(1, 2, 3), filled(pool, 1, 2, 3))
        engine.remove("full", keys(2, 9))
        left = engine.exists("full", keys(1, 2, 3)).tolist()
        expect_equal(left, [rig.keeps_pages, False, rig.keeps_pages], "exists after the second of three keys was removed")
        engine.clear()
        for pool in SIZES:
            expect_equal(engine.exists(pool, keys(1, 2, 3)).tolist(), [False] * 3, f"exists in {pool!r} after clear")
        if rig.keeps_pages:
            expect_equal(engine.put("full", keys(2), filled("full", 2)), [DONE], "put after clear")


def stats_name_every_pool_from_the_beginning(rig: StorageRig) -> None:
    """`stats().pools` has every pool that the engine was opened for: by it the cache knows what that was."""
    with rig.engine() as engine:
        expect_equal(set(engine.stats().pools), set(SIZES), "the pools in stats of a new engine")


def an_empty_batch_is_nothing(rig: StorageRig) -> None:
    """Calls without keys are allowed, and do nothing."""
    with rig.engine() as engine:
        expect_equal(engine.exists("full", []).shape, (0,), "the shape of exists without keys")
        expect_equal(engine.get("full", [], []), [], "get without keys")
        expect_equal(engine.put("full", [], []), [], "put without keys")
        engine.remove("full", [])
        engine.register([])


def a_batch_that_does_not_fit_is_refused(rig: StorageRig) -> None:
    """StorageError for an unknown pool, PageError for a bad batch: what `StoredPool.check_batch` and `check_keys` raise."""
    with rig.engine() as engine:
        with refusal(StorageError, "'swa' is none of the pools", "exists in a pool that was not given"):
            engine.exists("swa", keys(1))
        with refusal(PageError, "a key must be 32 bytes", "exists of a key of 16 bytes"):
            engine.exists("full", [b"../../etc/passwd"])
        with refusal(PageError, "twice in one batch", "exists of a key twice"):
            engine.exists("full", keys(1, 1))
        with refusal(PageError, "2 keys for 1 pages", "put of two keys with one page"):
            engine.put("full", keys(1, 2), filled("full", 1))
        with refusal(PageError, "1088 bytes, not of 320", "put of a page of another size"):
            engine.put("full", keys(1), filled("mamba", 1))
        with refusal(PageError, "writable", "get into a page that is read-only"):
            engine.get("full", keys(1), [page.toreadonly() for page in empty("full", 1)])


def everything_is_counted(rig: StorageRig) -> None:
    """`stats` counts queries, outcomes of gets and puts, and the bytes of those that were DONE, by pool."""
    with rig.engine() as engine:
        engine.put("full", keys(1, 2), filled("full", 1, 2))
        engine.exists("full", keys(1, 5, 6))
        engine.get("full", keys(1, 7), empty("full", 2))
        counts = engine.stats().pools["full"]
        expect_equal(counts.queries, 3, "queries after one exists of three keys")
        expect_equal(sum(counts.puts.values()), 2, "the sum of puts by outcome after a put of two pages")
        expect_equal(sum(counts.gets.values()), 2, "the sum of gets by outcome after a get of two pages")
        expect_equal(counts.written_bytes, rig.keeps_pages * 2 * SIZES["full"], "written_bytes")
        expect_equal(counts.read_bytes, rig.keeps_pages * SIZES["full"], "read_bytes")
        expect_equal(engine.stats().pools["mamba"].queries, 0, "queries of another pool")


def a_closed_engine_takes_nothing(rig: StorageRig) -> None:
    """After `close` every call raises StorageError, but for `close`, which is idempotent, and `stats`."""
    with rig.engine() as engine:
        engine.close()
        engine.close()
        engine.stats()
        for name, call in (
            ("clear", engine.clear),
            ("exists", lambda: engine.exists("full", [])),
            ("get", lambda: engine.get("full", [], [])),
            ("put", lambda: engine.put("full", [], [])),
            ("remove", lambda: engine.remove("full", [])),
            ("register", lambda: engine.register([])),
        ):
            with refusal(StorageError, "closed", f"{name} after close"):
                call()


def an_engine_keeps_what_it_says_it_can(rig: StorageRig) -> None:
    """`capabilities` allow the pools that the engine was opened for."""
    with rig.engine() as engine:
        check_can_hold(engine.capabilities, POOLS)


def capabilities_stay_the_same(rig: StorageRig) -> None:
    """`capabilities` are the same for all of an engine's life: the cache asks once."""
    with rig.engine() as engine:
        first = engine.capabilities
        expect_equal(engine.capabilities, first, "capabilities, when asked again")
        engine.put("full", keys(1), filled("full", 1))
        engine.get("full", keys(1), empty("full", 1))
        expect_equal(engine.capabilities, first, "capabilities after a put and a get")
        engine.clear()
        expect_equal(engine.capabilities, first, "capabilities after clear")


def formats_are_kept_apart(rig: StorageRig) -> None:
    """Pools of one name and size but another format digest never share a value, on one store or after reopening it."""
    if not rig.keeps_pages:
        return
    store, other_pools = new_store(), pools_of_format("another")
    with rig.engine(POOLS, store) as engine:
        engine.put("full", keys(1), filled("full", 1))
        survives = engine.capabilities.survives_restart
    with rig.engine(other_pools, store) as other:
        expect_equal(other.exists("full", keys(1)).tolist(), [False], "exists of what was put in another format")
        expect_equal(other.get("full", keys(1), empty("full", 1)), [MISSING], "get of what was put in another format")
        expect_equal(other.put("full", keys(1), filled("full", 1, salt="other")), [DONE], "put of the same key")
    if survives:
        with rig.engine(POOLS, store) as engine:
            pages = empty("full", 1)
            if engine.get("full", keys(1), pages) == [DONE]:
                expect(pages == filled("full", 1), "the value of another format was read")


def clear_leaves_other_formats_alone(rig: StorageRig) -> None:
    """`clear` forgets the values of this engine's pools: what lies on the same store in another format stays."""
    store = new_store()
    with rig.engine(POOLS, store) as engine:
        engine.put("full", keys(1), filled("full", 1))
        if not (rig.keeps_pages and rig.keeps_other_formats and engine.capabilities.survives_restart):
            return
    with rig.engine(pools_of_format("another"), store) as other:
        other.clear()
    with rig.engine(POOLS, store) as engine:
        outcome = engine.get("full", keys(1), empty("full", 1))
        expect_equal(outcome, [DONE], "get of a value after an engine of other formats cleared its own on the same store")


def what_survives_a_restart_is_found_again(rig: StorageRig) -> None:
    """With `capabilities.survives_restart` a store that is opened again has its pages; none that is read is wrong."""
    if not rig.keeps_pages:
        return
    store = new_store()
    with rig.engine(POOLS, store) as engine:
        engine.put("full", keys(1, 2), filled("full", 1, 2))
        engine.remove("full", keys(2))
        survives = engine.capabilities.survives_restart
    with rig.engine(POOLS, store) as engine:
        pages = empty("full", 1)
        outcome = engine.get("full", keys(1), pages)
        if survives:
            expect_equal(outcome, [DONE], "get after the store was closed and opened again")
        if outcome == [DONE]:
            expect(pages == filled("full", 1), "other bytes were read after reopening than were put before")
        expect_equal(engine.exists("full", keys(2)).tolist(), [False], "exists of what was removed before reopening")


DONE = Outcome.DONE
BATCH, ROUNDS = 16, 25
"""Of each of the threads that put and get at once."""


def threads_at_once_get_whole_values(rig: StorageRig) -> None:
    """Calls may come from several threads at once: no error, and no DONE without the whole value."""
    wrong: list[str] = []

    def work(engine: StorageEngine, seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(100):
            number = choose.randrange(20)
            engine.put("full", keys(number), filled("full", number))
            pages = empty("full", 1)
            if engine.get("full", keys(number), pages) == [DONE] and pages != filled("full", number):
                wrong.append(f"value {number} was read as something else")
            if choose.random() < 0.3:
                engine.remove("full", keys(number))

    with rig.engine() as engine:
        wrong += at_once([partial(work, engine, seed) for seed in range(4)])
    expect(not wrong, f"four threads put, get and remove at once: {'; '.join(wrong[:3])}")


def threads_at_once_are_all_counted(rig: StorageRig) -> None:
    """Batches that several threads put, get and ask for at once are read as they were put, and each is counted once.

    With a known capacity the store is full, and keeps no more than it has room for.
    """
    room = 200 if rig.capacity_bytes is None else rig.capacity_bytes // SIZES["full"]
    pages_of = {number: filled("full", number)[0] for number in range(room + (ROUNDS + 1) * BATCH)}
    wrong: list[str] = []

    def work(engine: StorageEngine, seed: int) -> None:
        for round_number in range(ROUNDS):  # in each, all put the same new values and read the old ones that go for them
            new = range(room + round_number * BATCH, room + (round_number + 1) * BATCH)
            numbers = [number % room for number in new]
            if seed % 2:
                engine.put("full", keys(*new), [pages_of[number] for number in new])
            engine.exists("full", keys(*numbers))
            pages = empty("full", BATCH)
            for number, page, outcome in zip(numbers, pages, engine.get("full", keys(*numbers), pages), strict=True):
                if outcome is DONE and page != pages_of[number]:
                    wrong.append(f"value {number} was read as something else")
            if not seed % 2:
                engine.put("full", keys(*new), [pages_of[number] for number in new])

    with rig.engine() as engine:
        for first in range(0, room, BATCH):
            numbers = range(first, min(first + BATCH, room))
            engine.put("full", keys(*numbers), [pages_of[number] for number in numbers])
        before = engine.stats().pools["full"]
        wrong += at_once([partial(work, engine, seed) for seed in range(4)])
        expect(not wrong, f"four threads put, get and exists at once: {'; '.join(wrong[:3])}")
        after, count = engine.stats().pools["full"], 4 * ROUNDS * BATCH
        expect_equal(after.queries - before.queries, count, "queries counted of four threads at once")
        for name, seen, known in (("puts", after.puts, before.puts), ("gets", after.gets, before.gets)):
            expect_equal(sum(seen.values()) - sum(known.values()), count, f"{name} counted of four threads at once")
        if rig.capacity_bytes is not None:
            put = list(pages_of)
            kept = sum(int(engine.exists("full", keys(*put[first : first + 64])).sum()) for first in range(0, len(put), 64))
            expect(kept <= room, f"after four threads put at once, {kept} values are kept where there is room for {room}")


def a_full_store_goes_on(rig: StorageRig) -> None:
    """A store that is full drops pages or evicts others, keeps no more than it has room for, and what it keeps is whole."""
    if rig.capacity_bytes is None:
        return
    size = SIZES["full"]
    with rig.engine() as engine:
        numbers = range(3 * rig.capacity_bytes // size)
        for first in numbers[::64]:
            batch = numbers[first : first + 64]
            expect_taken(engine.put("full", keys(*batch), filled("full", *batch)))
        found = [is_kept for first in numbers[::64] for is_kept in engine.exists("full", keys(*numbers[first : first + 64]))]
        kept = [number for number, is_kept in zip(numbers, found, strict=True) if is_kept]
        expect(kept, "after three times its capacity was put, a store keeps nothing")
        expect(len(kept) * size <= rig.capacity_bytes, f"{len(kept)} values of {size} bytes in {rig.capacity_bytes} bytes")
        for number in kept:
            pages = empty("full", 1)
            if engine.get("full", keys(number), pages) == [DONE]:
                expect(pages == filled("full", number), f"value {number} is not what was put")


def a_full_store_keeps_what_was_put_last(rig: StorageRig) -> None:
    """Of the values that were put last and were DONE, a store keeps at least half of its stated capacity.

    They are of two pools in turn, which may have a part of the store each, and of whole blocks if there is room for some.
    """
    if rig.capacity_bytes is None:
        return
    size = max(1, min(4096, rig.capacity_bytes // 16))
    pools = pools_of_format("of whole blocks", dict.fromkeys(SIZES, size))
    done: list[tuple[str, bytes]] = []
    with rig.engine(pools) as engine:
        for number in range(3 * rig.capacity_bytes // size):
            [key], pool = keys(number), pools[number % len(pools)].name
            outcomes = engine.put(pool, [key], [memoryview(bytearray((key * 128)[:size]))])
            expect_taken(outcomes)
            done += [(pool, key)] * (outcomes == [DONE])
        kept = size * sum(bool(engine.exists(pool, [key])[0]) for pool, key in done[-(rig.capacity_bytes // size) :])
    words = f"of {rig.capacity_bytes} stated bytes a full store keeps {kept} of what was put last, less than half"
    expect(2 * kept >= rig.capacity_bytes, words)


def expect_taken(outcomes: list[Outcome]) -> None:
    """Raise AssertionError if a put into a full store was not DONE or DROPPED."""
    wrong = {outcome.name for outcome in outcomes} - {"DONE", "DROPPED"}
    expect(not wrong, f"put into a full store: {', '.join(sorted(wrong))}, not only DONE and DROPPED")
