"""A cache and a linker: what a request finds, and what becomes of pages when the linker fails, is late, or goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from held_linker import HeldLinker
from numpy.typing import NDArray

from unified_tree import Component, Key, Path, Point, Trailing
from unified_tree.components import Composition
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache.lease import Lease
from unified_tree.controllers.pools import DevicePool, PageFormat, Part
from unified_tree.controllers.prefix_linker import LinkedPrefixes, MemoryLinker, linked_pools
from unified_tree.controllers.prefix_linker.linked_prefixes import PrefixSalt
from unified_tree.controllers.testing.linked_tensors import COMPONENTS, PAGE, LinkedTensors
from unified_tree.declare.page_format import WHOLE
from unified_tree.terms.errors import ConfigurationError, LinkError

CHUNK = 16
PAGES = 40
Ids = NDArray[np.int64]


class Rig:
    """A cache, its tensors, and a server that computes what is not cached."""

    def __init__(self, inner: MemoryLinker | None = None, weights_version: str = "v1", page_count: int = PAGES) -> None:
        self.now = 0.0
        self.tensors = LinkedTensors(page_count)
        self.memory = MemoryLinker(self.tensors.linked, CHUNK, 1000)
        if inner is not None:
            self.memory._chunks = inner._chunks
        self.linker = HeldLinker(self.memory, self.tensors.linked, lambda _, ids: self.tensors.spoil(ids))
        self.cache = PrefixCache(COMPONENTS, PAGE, {"full": page_count})
        self.link = self.linked(weights_version)

    def linked(self, weights_version: str) -> LinkedPrefixes:
        return LinkedPrefixes(
            self.cache,
            self.linker,
            self.tensors.linked,
            weights_version=weights_version,
            store_limit=4,
            clock=lambda: self.now,
        )

    def arrive(self, name: str, ids: Ids, namespace: str = "") -> None:
        self.link.lookup(name, Key(ids, namespace))

    def begin(self, name: str, ids: Ids, namespace: str = "") -> Lease:
        """Acquire, see that what is cached is right, compute the rest, commit and store it."""
        assert self.link.is_ready(name)
        lease = self.cache.acquire(Key(ids, namespace), request=name)
        self.check(lease, ids, namespace)
        self.cache.allocate(lease, ids.size)
        first = lease.compute_from // PAGE
        own = lease.pages("full")[first:]
        assert not np.isin(own, self.linker.busy_pages).any(), "a page that may still be written was handed out"
        assert not np.isin(own, self.linker.read_pages).any(), "a page that is still being read was handed out"
        self.tensors.write(ids, namespace, own, first)
        self.cache.commit(lease, ids)
        self.link.store(name, lease)
        return lease

    def check(self, lease: Lease, ids: Ids, namespace: str) -> None:
        assert self.tensors.holds(ids, namespace, lease.pages("full")[: lease.cached_tokens // PAGE])

    def run(self, name: str, ids: Ids, namespace: str = "") -> int:
        """A whole request; how much of it was cached."""
        self.arrive(name, ids, namespace)
        self.link.poll()
        lease = self.begin(name, ids, namespace)
        cached = lease.cached_tokens
        self.cache.release(lease)
        self.link.release(name)
        self.link.poll()
        return cached

    def forget(self) -> None:
        self.cache.invalidate()
        self.link = self.linked("v1")

    def check_all_free(self) -> None:
        assert not self.cache.tree.check()
        pool = self.cache.stats().pools["full"]
        assert not pool.leased and not pool.protected, pool


def prompt(seed: int, count: int = 5 * CHUNK) -> Ids:
    return np.random.default_rng(seed).integers(0, 50_000, count)


def successor(rig: Rig, **settings: object) -> Rig:
    """A server that is started after another, with the same linker's content."""
    return Rig(rig.memory, **settings)  # type: ignore[arg-type]


def warmed(**settings: object) -> Rig:
    """A server that is started after another, which has stored a prompt."""
    first = Rig()
    first.run("a", prompt(1))
    return successor(first, **settings)


def test_a_later_server_finds_what_an_earlier_one_computed() -> None:
    first = Rig()
    assert first.run("a", prompt(1)) == 0
    second = successor(first)
    assert second.run("a", prompt(1)) == 4 * CHUNK, "whole chunks, of its length less one token"
    assert second.link.counters.retrieved_tokens == 4 * CHUNK
    assert second.run("b", prompt(1)) == 5 * CHUNK - PAGE, "which it has itself by now"
    assert second.link.counters.retrieved_tokens == 4 * CHUNK
    assert not second.memory.locks
    second.check_all_free()


def test_only_what_the_cache_lacks_is_retrieved() -> None:
    second = warmed()
    second.run("a", prompt(1)[: CHUNK + 2 * PAGE])
    before = second.link.counters.retrieved_tokens
    assert second.run("b", prompt(1)) == 4 * CHUNK
    assert second.link.counters.retrieved_tokens - before == 4 * CHUNK - (CHUNK + 2 * PAGE)
    second.check_all_free()


def test_namespaces_and_weights_versions_share_nothing() -> None:
    first = Rig()
    first.run("a", prompt(1), "tenant")
    assert successor(first).run("a", prompt(1)) == 0
    assert successor(first, weights_version="v2").run("a", prompt(1), "tenant") == 0
    assert successor(first).run("a", prompt(1), "tenant") == 4 * CHUNK


def test_after_an_invalidation_nothing_of_before_is_found() -> None:
    second = warmed()
    second.arrive("a", prompt(1))
    second.cache.invalidate()
    second.link.poll()
    assert second.begin("a", prompt(1)).cached_tokens == 0
    assert not second.link.counters.retrieved_tokens
    second.link.release("a")
    assert second.run("b", prompt(1)) == 5 * CHUNK - PAGE, "what was computed after it"
    assert successor(second).run("c", prompt(1)) == 4 * CHUNK, "what was computed before it, by the version's name"
    third = warmed()
    third.linker.holds_transfers = True
    third.arrive("a", prompt(1))
    third.link.poll()
    third.cache.invalidate()
    third.linker.finish()
    third.link.poll()
    assert third.begin("a", prompt(1)).cached_tokens == 0, "what arrives after it"


def test_a_failed_retrieve_is_computed() -> None:
    second = warmed()
    second.linker.holds_transfers = second.linker.fails = True
    second.arrive("a", prompt(1))
    second.link.poll()
    assert not second.link.is_ready("a")
    second.linker.finish()
    second.link.poll()
    lease = second.begin("a", prompt(1))
    assert lease.cached_tokens == 0
    second.linker.finish()
    second.cache.release(lease)
    second.link.release("a")
    second.link.poll()
    assert second.link.counters.retrieves_failed == second.link.counters.stores_failed == 1
    assert not second.memory.locks
    second.check_all_free()


def test_a_late_retrieve_keeps_its_pages_and_the_request_goes_on() -> None:
    second = warmed()
    second.linker.holds_transfers = True
    second.arrive("a", prompt(1))
    second.link.poll()
    busy = second.linker.busy_pages
    assert busy.size == 4 * CHUNK // PAGE
    second.now = 2.0
    second.link.poll()
    lease = second.begin("a", prompt(1))
    assert lease.cached_tokens == 0 and second.link.counters.retrieves_late == 1
    second.link.poll()  # and something is written there now
    assert second.tensors.holds(prompt(1), "", lease.pages("full"))
    second.cache.release(lease)
    second.link.release("a")
    second.linker.finish()
    second.link.poll()
    assert not second.memory.locks
    second.check_all_free()


def test_a_lookup_that_takes_too_long_is_not_waited_for() -> None:
    rig = Rig()
    rig.linker.holds_lookups = True
    rig.arrive("a", prompt(1))
    rig.link.poll()
    assert not rig.link.is_ready("a")
    rig.now = 1.5
    rig.link.poll()
    assert rig.link.is_ready("a")
    rig.link.release("a")


def test_a_cancelled_request_gives_its_locks_back() -> None:
    second = warmed()
    second.arrive("a", prompt(1))
    assert second.memory.locks
    second.link.release("a")
    second.link.release("a")
    assert not second.memory.locks
    second.linker.holds_transfers = True
    second.arrive("b", prompt(1))
    second.link.poll()
    second.link.release("b")
    second.link.poll()
    assert second.linker.busy_pages.size
    second.linker.finish()
    second.link.poll()
    assert not second.memory.locks
    second.check_all_free()


def test_a_peer_that_is_away_is_not_asked_to_store() -> None:
    rig = Rig()
    rig.linker.is_healthy = False
    assert rig.run("a", prompt(1)) == 0
    assert rig.link.counters.stores_dropped == 1 and not rig.link.counters.stored_tokens


def test_pages_that_are_being_stored_are_not_evicted() -> None:
    rig = Rig(page_count=24)
    rig.linker.holds_transfers = True
    rig.run("a", prompt(1))
    read = rig.linker.read_pages
    assert read.size == 5 * CHUNK // PAGE
    assert rig.cache.stats().pools["full"].protected == 5 * CHUNK // PAGE
    rig.linker.finish()
    rig.link.poll()
    rig.check_all_free()
    assert rig.link.counters.stored_tokens == 5 * CHUNK


def test_too_many_stores_are_dropped() -> None:
    rig = Rig()
    rig.linker.holds_transfers = True
    for seed in range(6):
        rig.run(str(seed), prompt(seed, CHUNK))
    assert len(rig.linker.running) == 4 and rig.link.counters.stores_dropped == 2
    rig.linker.finish()
    rig.link.poll()


def test_closing_lets_go_of_everything() -> None:
    second = warmed()
    second.arrive("a", prompt(1))
    second.link.close()
    second.check_all_free()
    third = warmed()
    third.linker.holds_transfers = True
    third.arrive("a", prompt(1))
    third.link.poll()
    with pytest.raises(LinkError, match="running"):
        third.link.close()
    assert third.cache.stats().pools["full"].leased == 4 * CHUNK // PAGE, "they stay out of use"


def test_bigrams_are_not_linked() -> None:
    rig = Rig()
    rig.link.lookup("a", Key(prompt(1), bigram=True))
    assert rig.link.is_ready("a") and not rig.link.counters.lookups


def test_what_cannot_be_carried_is_refused_with_the_reason() -> None:
    raw = PageFormat(component="full", layer_ids=(0,), parts=(Part("raw", "uint8", (4,)),), slots_per_page=1, shard=WHOLE)
    components = (
        Component(name="full", coverage=Path(), format=raw),
        Component(name="swa", coverage=Trailing(8), format=replace(raw, component="swa")),
        Component(name="mamba", coverage=Point(), format=replace(raw, component="mamba")),
    )
    pools = {c.name: DevicePool(c.format, 2) for c in components if c.format is not None}
    model = Composition(name="test", page_size=PAGE, components=components)
    path = replace(model, components=components[:1])
    with pytest.raises(ConfigurationError, match=r"swa: of a window only .*; mamba: its state is saved at single positions"):
        linked_pools(model, pools, paths_only=True)
    assert [pool.coverage for pool in linked_pools(model, pools)] == [Path(), Trailing(8), Point()]
    cache = PrefixCache(components[:2], PAGE, {"full": 2, "swa": 2})
    linker = MemoryLinker(linked_pools(path, pools), CHUNK, 1)
    with pytest.raises(ConfigurationError, match="not linked are swa"):
        LinkedPrefixes(cache, linker, [], weights_version="v1")
    odd = PrefixCache(components[:1], 6, {"full": 2})
    with pytest.raises(ConfigurationError, match="chunks of 16 tokens are no multiple of pages of 6"):
        LinkedPrefixes(odd, linker, [], weights_version="v1")


def test_what_goes_on_from_a_find_is_stored_alone_and_right() -> None:
    first = Rig()
    first.run("a", prompt(1)[: 3 * CHUNK])
    second = successor(first)
    assert second.run("a", prompt(1)) == 3 * CHUNK
    assert second.link.counters.stored_tokens == 2 * CHUNK
    third = successor(second)
    assert third.run("a", np.append(prompt(1), 7)) == 5 * CHUNK


def test_what_was_computed_before_an_invalidation_is_not_stored_after_it() -> None:
    rig = Rig()
    rig.arrive("a", prompt(1))
    rig.link.poll()
    lease = rig.cache.acquire(Key(prompt(1)))
    rig.cache.allocate(lease, 5 * CHUNK)
    rig.cache.commit(lease, 5 * CHUNK)
    rig.cache.invalidate()
    rig.link.store("a", lease)
    assert not rig.memory._chunks and not rig.link.counters.stores_dropped
    rig.cache.release(lease)


def test_salts_after_an_invalidation_are_nobody_elses() -> None:
    generations = {"": (0, 0), "n": (0, 0)}
    one, other = PrefixSalt("v1", "f", generations.__getitem__), PrefixSalt("v1", "f", generations.__getitem__)
    assert one.of("n") == other.of("n") != one.of("")
    assert one.of("n") != PrefixSalt("v2", "f", generations.__getitem__).of("n")
    generations["n"] = (0, 1)
    assert one.of("n") != other.of("n") and one.of("") == other.of("")
    before = one.of("n")
    generations["n"] = (0, 2)
    assert one.of("n") != before


def test_beside_a_host_tier_only_what_both_lack_is_retrieved() -> None:
    from unified_tree.controllers import HostTier
    from unified_tree.controllers.transfer_engines import NullEngine

    second = warmed()
    second.cache = PrefixCache(
        COMPONENTS,
        PAGE,
        {"full": PAGES},
        host=HostTier(page_counts=dict.fromkeys(("full", "indexer", "draft"), PAGES), engine=NullEngine()),
    )
    second.link = LinkedPrefixes(second.cache, second.linker, second.tensors.linked, weights_version="v1")
    ids = prompt(1)[: 2 * CHUNK + 1]
    assert second.run("a", ids) == 2 * CHUNK
    second.cache.flush()
    filler = second.cache.acquire(Key(prompt(7)))
    second.cache.allocate(filler, PAGES * PAGE)  # evicts it to host
    second.cache.release(filler)
    before = second.link.counters.retrieved_tokens
    second.arrive("b", ids)
    second.link.poll()
    assert second.link.is_ready("b") and second.link.counters.retrieved_tokens == before, "it is on host"
    second.arrive("c", prompt(1))
    second.link.poll()
    assert second.link.counters.retrieved_tokens == before + 4 * CHUNK, "longer than what is on host"
    lease = second.cache.acquire(Key(prompt(1)))
    assert lease.cached_tokens == 4 * CHUNK and not lease.is_loading
    second.check(lease, prompt(1), "")
    second.cache.release(lease)
    second.cache.drain()
    assert not second.cache.tree.check()
    second.cache.close()


@pytest.mark.parametrize(
    "given",
    [
        {"weights_version": None},
        {"wait_s": float("nan")},
        {"wait_s": -1.0},
        {"wait_s": True},
        {"min_tokens": 0},
        {"min_tokens": 1.5},
        {"store_limit": 0},
        {"store_limit": True},
    ],
)
def test_numbers_that_cannot_be(given: dict[str, Any]) -> None:
    rig = Rig()
    with pytest.raises(ConfigurationError, match=f"{next(iter(given))} must be"):
        LinkedPrefixes(rig.cache, rig.memory, rig.tensors.linked, **({"weights_version": "v1"} | given))
    for numbers in ((0, 1), (CHUNK, 0), (CHUNK, True), (CHUNK + 1, 1)):
        with pytest.raises(ConfigurationError, match=r"must be|no multiple"):
            MemoryLinker(rig.tensors.linked, *numbers)
