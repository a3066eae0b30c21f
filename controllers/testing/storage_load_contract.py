"""What every storage engine promises under load: threads at once, and a store that is full."""

from __future__ import annotations

import random
from functools import partial

from unified_tree.controllers.storage.storage_engine import Outcome, StorageEngine
from unified_tree.controllers.testing.checks import expect, expect_equal
from unified_tree.controllers.testing.clause_threads import at_once
from unified_tree.controllers.testing.storage_rig import SIZES, StorageRig, empty, filled, keys, pools_of_format

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
