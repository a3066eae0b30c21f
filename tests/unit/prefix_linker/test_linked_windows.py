"""A cache with windows and states, and a linker: what comes back is right to the byte, whatever fails, is late, or goes."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from held_linker import HeldLinker
from numpy.typing import NDArray

from unified_tree import Component, Key, Path, Point, Trailing
from unified_tree.components import Composition
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache.lease import Lease
from unified_tree.controllers.prefix_linker import LinkedPrefixes, MemoryLinker, linked_pools
from unified_tree.controllers.workbench.server.page_store import make_stores
from unified_tree.controllers.workbench.server.verified_pages import VerifiedPages
from unified_tree.terms.errors import ConfigurationError, OutOfPagesError

PAGE, CHUNK, PAGE_BYTES = 4, 16, 64
Ids = NDArray[np.int64]
FULL = Component(name="full", coverage=Path())
SWA = Component(name="swa", coverage=Trailing(7))
KINDS = {
    "window": (FULL, SWA),
    "long window": (FULL, Component(name="swa", coverage=Trailing(30))),
    "rebuilt window": (FULL, Component(name="swa", coverage=Trailing(7), rebuild_tokens=14)),
    "window in a window": (FULL, SWA, Component(name="overlap", coverage=Trailing(3), shares="swa")),
    "state": (FULL, Component(name="mamba", coverage=Point(), save_grid_tokens=8)),
    "all": (
        FULL,
        Component(name="draft", coverage=Path(), required=False, shares="full"),
        SWA,
        Component(name="draft_swa", coverage=Trailing(3), required=False, shares="swa"),
        Component(name="mamba", coverage=Point()),
    ),
}
COUNTS = {"full": 40, "swa": 24, "mamba": 7}


class Rig:
    """A cache, its pages, and a server that computes what is not cached and compares what is."""

    def __init__(self, kind: str, before: Rig | None = None, *, chunk: int = CHUNK) -> None:
        self.kind, self.now = kind, 0.0
        self.components = KINDS[kind]
        counts = {c.name: COUNTS[c.shares or c.name] for c in self.components}
        self.stores = make_stores(dict.fromkeys(counts, PAGE_BYTES), counts, None, lambda _: None)
        formats = {name: pool.format for name, pool in self.stores.pools.items()}
        composition = Composition(name=kind, page_size=PAGE, components=tuple(self.components)).with_formats(formats)
        self.linked = linked_pools(composition, self.stores.pools)
        peer = None if before is None else before.memory
        self.memory: MemoryLinker = MemoryLinker(self.linked, chunk, 1000, peer=peer)
        self.linker = HeldLinker(self.memory, self.linked, self.spoil)
        owned = {c.name: COUNTS[c.name] for c in self.components if c.shares is None}
        self.cache = PrefixCache(self.components, PAGE, owned)
        self.pages = VerifiedPages(self.cache, self.stores)
        self.link = LinkedPrefixes(
            self.cache, self.linker, self.linked, weights_version="v1", store_limit=4, clock=lambda: self.now
        )

    def spoil(self, name: str, ids: Ids) -> None:
        self.stores.device[name].write(ids, np.full((ids.size, PAGE_BYTES), 0xEE, np.uint8))

    def begin(self, name: str, ids: Ids, namespace: str = "", *, without: tuple[str, ...] = ()) -> Lease | None:
        """None for want of pages."""
        assert self.link.is_ready(name)
        checkpoints = self.link.checkpoints(ids.size)
        try:
            lease = self.cache.acquire(Key(ids, namespace), checkpoints, request=name)
        except OutOfPagesError:
            return None
        self.pages.resumed(lease, ids)
        try:
            self.cache.allocate(lease, ids.size)
        except OutOfPagesError:
            self.pages.left(lease)
            self.cache.release(lease)
            return None
        self.pages.ran(lease, ids.size)
        self.cache.commit(lease, ids, dict(lease.save_pages), without=without)
        self.link.store(name, lease)
        return lease

    def end(self, name: str, lease: Lease) -> None:
        self.pages.left(lease)
        self.cache.release(lease)
        self.link.release(name)

    def run(self, name: str, ids: Ids, namespace: str = "", **given: tuple[str, ...]) -> int:
        """A whole request; from which token it went on."""
        self.link.lookup(name, Key(ids, namespace))
        self.link.poll()
        lease = self.begin(name, ids, namespace, **given)
        assert lease is not None
        resumed = lease.compute_from
        self.end(name, lease)
        self.link.poll()
        return resumed

    def check(self) -> None:
        assert self.pages.wrong_bytes == 0
        assert not self.cache.tree.check()

    def check_all_free(self) -> None:
        """Nothing is held, and every page can be had."""
        self.check()
        assert not self.memory.locks
        for name, pool in self.cache.stats().pools.items():
            assert not pool.leased and not pool.protected, (name, pool)
            self.cache.device.reserve({name: COUNTS[name]})
            ids = self.cache.device.allocate(name, COUNTS[name])
            assert np.unique(ids).size == COUNTS[name]
            self.cache.device.free(name, ids)


def prompt(seed: int, count: int = 5 * CHUNK) -> Ids:
    return np.random.default_rng(seed).integers(0, 50_000, count)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def chunk_of(kind: str) -> int:
    return 8 if kind == "long window" else CHUNK  # pages of 32 tokens in chunks of 8: four chunks


def warmed(kind: str) -> Rig:
    """A server that is started after another, which has stored a prompt."""
    first = Rig(kind, chunk=chunk_of(kind))
    first.run("a", prompt(1))
    return Rig(kind, first, chunk=chunk_of(kind))


def test_a_later_server_goes_on_where_an_earlier_one_left_its_window_and_state(kind: str) -> None:
    first = Rig(kind, chunk=chunk_of(kind))
    assert first.run("a", prompt(1)) == 0
    assert first.link.counters.stored_tokens == 5 * CHUNK
    second = Rig(kind, first, chunk=chunk_of(kind))
    longer = np.append(prompt(1), prompt(2, 30))
    assert second.run("a", longer) == 5 * CHUNK
    assert second.link.counters.retrieved_tokens == 5 * CHUNK
    third = Rig(kind, second, chunk=chunk_of(kind))
    assert third.run("a", np.append(longer, prompt(3, 10))) == 6 * CHUNK + (8 if kind == "long window" else 0)
    for rig in (first, second, third):
        assert rig.pages.checked_bytes
        rig.check_all_free()


def test_an_end_between_two_chunks_is_no_place_but_the_checkpoint_is(kind: str) -> None:
    first = Rig(kind, chunk=chunk_of(kind))
    ids = prompt(1, 3 * CHUNK + PAGE)
    first.run("a", ids)
    second = Rig(kind, first, chunk=chunk_of(kind))
    assert second.run("a", np.append(ids, 1)) == 3 * CHUNK
    second.check_all_free()


def test_a_shared_beginning_is_resumed_only_where_it_was_saved(kind: str) -> None:
    branch = np.append(prompt(1)[: 3 * CHUNK], prompt(9, 2 * CHUNK))
    second = warmed(kind)
    assert second.run("b", branch) == 0, "nothing was saved there"
    second.check_all_free()


def test_a_retrieve_needs_no_more_pages_of_a_window_than_it_keeps() -> None:
    second = warmed("window")
    held = second.cache.device.allocate("swa", COUNTS["swa"] - 2)
    second.link.lookup("a", Key(np.append(prompt(1), 1)))
    second.link.poll()
    assert second.link.counters.retrieved_tokens == 5 * CHUNK and not second.link.counters.no_room
    second.cache.device.free("swa", held)
    second.check_all_free()


@pytest.mark.parametrize("short", ["swa", "mamba", "full"])
def test_without_room_nothing_is_retrieved_and_nothing_is_kept(short: str) -> None:
    second = warmed("all")
    held = second.cache.device.allocate(short, COUNTS[short])
    second.link.lookup("a", Key(np.append(prompt(1), 1)))
    second.link.poll()
    assert second.link.is_ready("a") and second.link.counters.no_room == 1
    second.link.release("a")
    second.cache.device.free(short, held)
    second.check_all_free()


def test_what_an_optional_sharer_lacks_is_not_stored() -> None:
    for lacking in ("draft", "draft_swa"):
        rig = Rig("all")
        rig.run("a", prompt(1), without=(lacking,))
        assert not rig.link.counters.stored_tokens
        rig.check_all_free()


def test_what_can_be_rebuilt_for_less_is_not_retrieved() -> None:
    for min_tokens, retrieved in ((20, 5 * CHUNK), (21, 0)):
        rig = warmed("rebuilt window")
        rig.link = LinkedPrefixes(rig.cache, rig.linker, rig.linked, weights_version="v1", min_tokens=min_tokens)
        rig.run("a", prompt(1))
        before = rig.link.counters.retrieved_tokens
        rig.cache.device.reserve({"swa": COUNTS["swa"]})  # evicts all windows
        resumed = rig.run("b", np.append(prompt(1), prompt(2, 3)))
        assert resumed == (5 * CHUNK if retrieved else 5 * CHUNK - 20)
        assert rig.link.counters.retrieved_tokens - before == retrieved
        rig.check_all_free()


def test_a_cache_must_have_all_its_windows_and_states_linked() -> None:
    rig = Rig("all")
    paths = [pool for pool in rig.linked if isinstance(pool.coverage, Path)]
    with pytest.raises(ConfigurationError, match="not linked are mamba, swa"):
        LinkedPrefixes(rig.cache, rig.linker, paths, weights_version="v1")


@pytest.mark.parametrize("seed", range(3))
def test_random_lives(kind: str, seed: int, record_property: Callable[[str, object], None]) -> None:
    choose = random.Random(f"{kind} {seed}")
    rig, steps = Rig(kind, chunk=chunk_of(kind)), 300
    leases: dict[str, Lease] = {}
    waiting: dict[str, tuple[Ids, str]] = {}
    resumed = 0
    for step in range(steps):
        act = choose.random()
        rig.linker.holds_transfers = choose.random() < 0.4
        rig.linker.fails, rig.linker.is_healthy = choose.random() < 0.15, choose.random() < 0.9
        if act < 0.35:
            ids = prompt(choose.randrange(3), choose.randrange(1, 6) * CHUNK + choose.choice((0, 1, PAGE, PAGE + 1)))
            if choose.random() < 0.3:
                ids = np.append(ids[: choose.randrange(1, ids.size)], prompt(choose.randrange(5, 8), 20))
            namespace = choose.choice(("", "n"))
            waiting[str(step)] = (ids, namespace)
            rig.link.lookup(str(step), Key(ids, namespace))
        elif act < 0.5:
            rig.linker.finish()
        elif act < 0.55 and waiting:
            name = choose.choice(list(waiting))
            del waiting[name]
            rig.link.release(name)
        elif act < 0.57:
            rig.cache.invalidate(choose.choice((None, "", "n")))
        elif act < 0.61:
            for name, lease in leases.items():
                rig.end(name, lease)
            for name in waiting:
                rig.link.release(name)
            leases.clear()
            waiting.clear()
            rig.linker.finish()
            rig.link.poll()
            rig.check_all_free()
            resumed += rig.link.counters.retrieved_tokens
            rig = Rig(kind, rig, chunk=chunk_of(kind))
        elif act < 0.75 and leases:
            name = choose.choice(list(leases))
            rig.end(name, leases.pop(name))
        else:
            for name in [name for name in waiting if rig.link.is_ready(name)]:
                ids, namespace = waiting[name]
                begun = rig.begin(name, ids, namespace)
                if begun is not None:
                    del waiting[name]
                    leases[name] = begun
        rig.now += choose.random()
        rig.linker.spoil_running()
        rig.link.poll()
        rig.linker.spoil_running()
        rig.check()
    for name, lease in leases.items():
        rig.end(name, lease)
    for name in waiting:
        rig.link.release(name)
    rig.linker.finish()
    rig.link.poll()
    rig.check_all_free()
    assert resumed + rig.link.counters.retrieved_tokens > 0
    record_property("operations", steps)
