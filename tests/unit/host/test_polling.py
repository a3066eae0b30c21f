"""What a poll and a backup do is counted: nothing for copies that are open, and no more under a long context."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import numpy as np
import pytest
from held_engine import HeldEngine, Tiered
from kinds import FULL, MAMBA, swa
from page_memory import PageMemory

from unified_tree import Component, Key
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.counters.observers import CacheObserver
from unified_tree.nodes.effect import EffectKind


def calls_of(work: Callable[[], object]) -> int:
    """How many functions a piece of work calls, built-in ones included; what a collection of garbage calls is not its."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def test_a_collection_of_garbage_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "callbacks", [lambda _phase, _info: None])
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        assert calls_of(lambda: [[], [[]], [[[]]]]) == calls_of(lambda: None)
    finally:
        gc.set_threshold(*thresholds)


def text(number: int, length: int) -> str:
    """A text of its own, as letters."""
    return "".join(map(chr, np.random.default_rng(number).integers(0x100, 0x8000, length)))


@pytest.mark.parametrize("kinds", [[FULL], [FULL, swa(3), MAMBA]], ids=["full", "full, swa, mamba"])
def test_open_copies_cost_a_poll_nothing(kinds: list[Component]) -> None:
    counts = []
    for copies in (2, 40):
        tiered = Tiered(kinds, device=1000, host=2000, max_backup_share=1.0)
        for number in range(copies):
            tiered.serve(text(number, 8))
        tiered.cache.poll()
        assert tiered.engine.tickets(EffectKind.BACKUP)
        backing_up = calls_of(tiered.cache.poll)
        tiered.settle()
        tiered.forget()
        requests = [tiered.start(text(number, 8) + "ab") for number in range(copies)]
        tiered.cache.poll()
        assert all(tiered.is_loading(request) for request in requests)
        counts.append((backing_up, calls_of(tiered.cache.poll)))
        for request in requests:
            tiered.run(request)
            tiered.runner.finish(request)
        tiered.end()
    assert counts[0] == counts[1]


def test_backups_of_a_long_chain_that_end_from_its_end_on_are_all_applied() -> None:
    engine = HeldEngine(PageMemory([FULL]).movers())
    cache = PrefixCache([FULL], 1, host=HostTier(engine=engine))
    with cache.acquire(Key(range(1500)), reserve_tokens=1500) as lease:
        for end in range(1, 1501):
            cache.commit(lease, end)
    cache.poll()
    assert len(engine.open) == 1500
    for ticket in reversed(engine.tickets(EffectKind.BACKUP)):
        engine.fail(ticket) if ticket == 1000 else engine.land_one(ticket)
    cache.poll()
    assert cache.stats().host_pools["full"].tree == 999
    assert cache.stats().drops == {"backup failed": 1}
    cache.close()


def test_a_backup_that_fails_is_made_again_for_the_next_boundary_above_it() -> None:
    tiered = Tiered([FULL], max_backup_share=1.0)
    for end in (2, 4, 6):
        tiered.publish("abcdef"[:end])
        tiered.cache.poll()
    first, *_ = tiered.engine.tickets(EffectKind.BACKUP)
    tiered.engine.fail(first)
    tiered.cache.poll()
    tiered.publish("abcdefgh")
    tiered.cache.poll()
    *_, last = tiered.engine.tickets(EffectKind.BACKUP)
    assert sum(copy.source.size for copy in tiered.engine.open[last].copies) == 2, "the first page again, and its own"
    tiered.settle()
    assert tiered.on_host() == 1, "what stood on the failed one ended before it was made again"
    tiered.end()


class Interrupts(CacheObserver):
    """Interrupts the call in which a copy ends, once."""

    is_due = True

    def moved(self, *_: object) -> None:
        if self.is_due:
            self.is_due = False
            raise KeyboardInterrupt


def test_what_waited_for_a_backup_whose_end_was_interrupted_ends_with_the_next_poll() -> None:
    tiered = Tiered([FULL], max_backup_share=1.0)
    for end in (2, 4):
        tiered.publish("abcd"[:end])
    tiered.cache.poll()
    first, second = tiered.engine.tickets(EffectKind.BACKUP)
    tiered.engine.land_one(second)
    tiered.cache.poll()
    tiered.engine.land_one(first)
    tiered.cache.observers.add(Interrupts())
    with pytest.raises(KeyboardInterrupt):
        tiered.cache.poll()
    tiered.cache.poll()
    assert tiered.cache.controller is not None
    assert not tiered.cache.controller.is_busy
    tiered.end()
