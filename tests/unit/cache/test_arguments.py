"""Arguments that mean nothing, to every public method of a cache and its settings: the library's own error, nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pytest
from kinds import CARRY_OVER, FULL, MAMBA, swa

from unified_tree import (
    Component,
    ConfigurationError,
    Key,
    LeaseError,
    OutOfPagesError,
    Path,
    Trailing,
    UnifiedTree,
    UnifiedTreeError,
)
from unified_tree.controllers import HostTier, Lease, LoadCost, PrefixCache
from unified_tree.controllers.transfer_engines import NullEngine

KINDS = [FULL, swa(3), MAMBA]
COUNTS = {"full": 20, "swa": 20, "mamba": 8}
TOKENS = np.arange(12)
NO_INTEGERS: list[Any] = [
    1.0, 50.5, float("nan"), float("inf"), True, np.bool_(1), None, "8", [8], -1, 1 << 63, 1 << 200, 10**5000,
]  # fmt: skip
NO_NUMBERS: list[Any] = [float("nan"), float("inf"), -1, True, None, "8", 10**400]
NO_FLAGS: list[Any] = ["no", 0, 1, None, 1.0, []]


def short(value: object) -> str:
    return "huge" if isinstance(value, int) and abs(value) > 1 << 64 else repr(value)


def figures(cache: PrefixCache, lease: Lease) -> tuple[object, ...]:
    stats = cache.stats()
    tables = [lease.pages(name).tolist() for name in ("full", "swa")]
    return cache.tree.dump(), stats.pools, stats.drops, tables, lease.length, lease.committed, lease.computed


@pytest.fixture
def running() -> tuple[PrefixCache, Lease]:
    cache = PrefixCache(KINDS, 2, COUNTS)
    lease = cache.acquire(Key(TOKENS))
    cache.allocate(lease, 8)
    cache.commit(lease, 4)
    return cache, lease


@pytest.mark.parametrize("value", NO_INTEGERS, ids=short)
@pytest.mark.parametrize("method", ["allocate", "advance", "truncate", "wait_layer"])
def test_what_is_no_number_of_tokens(running: tuple[PrefixCache, Lease], method: str, value: Any) -> None:
    cache, lease = running
    before = figures(cache, lease)
    with pytest.raises(LeaseError):
        getattr(cache, method)(lease, value)
    assert figures(cache, lease) == before


@pytest.mark.parametrize("value", [*NO_INTEGERS, np.arange(3)], ids=short)
def test_a_next_stop_is_behind_a_number_of_tokens(running: tuple[PrefixCache, Lease], value: Any) -> None:
    with pytest.raises(LeaseError, match="computed_tokens"):
        running[1].next_stop(value)


@pytest.mark.parametrize("size", [1 << 31, 1 << 32])
def test_a_lease_to_fill_for_which_there_is_no_memory_is_refused(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an unbounded cache with windows it ended in a bare MemoryError."""

    def no_memory(*_: object) -> NoReturn:
        raise MemoryError

    cache = PrefixCache(KINDS, 2)
    monkeypatch.setattr(np, "full", no_memory)
    with pytest.raises(OutOfPagesError, match="no memory for page tables of"):
        cache.acquire_to_fill(Key(TOKENS), size)
    assert cache.stats().pools["mamba"].leased == 0


@pytest.mark.parametrize("value", [None, 3, "lease", 2.5], ids=str)
@pytest.mark.parametrize("method", ["allocate", "advance", "truncate", "wait_layer", "commit", "release"])
def test_what_is_no_lease(running: tuple[PrefixCache, Lease], method: str, value: Any) -> None:
    cache, lease = running
    before = figures(cache, lease)
    with pytest.raises(LeaseError, match="a Lease is needed"):
        getattr(cache, method)(value, *([] if method == "release" else [8]))
    assert figures(cache, lease) == before


@pytest.mark.parametrize("priority", [*NO_INTEGERS[:1], 2.5, 2**53 + 1, -(2**53) - 1, 1 << 60, 1 << 70], ids=short)
def test_a_priority_that_an_insert_would_refuse_is_refused_at_once(running: tuple[PrefixCache, Lease], priority: Any) -> None:
    cache, _ = running
    with pytest.raises(LeaseError, match="priority"):
        cache.acquire(Key(TOKENS), priority=priority)
    for most in (2**53, -(2**53)):
        with cache.acquire(Key(TOKENS), priority=most) as lease:
            cache.allocate(lease, len(TOKENS))
            cache.commit(lease, len(TOKENS))


@pytest.mark.parametrize("namespace", [3, b"tenant", ["tenant"]], ids=str)
def test_what_is_no_namespace(running: tuple[PrefixCache, Lease], namespace: Any) -> None:
    cache, lease = running
    before = figures(cache, lease)
    with pytest.raises(UnifiedTreeError, match="namespace"):
        cache.invalidate(namespace)
    assert figures(cache, lease) == before
    cache.commit(lease, 8)
    assert lease.committed == 8


@pytest.mark.parametrize("field", ["save_limit", "draft_tokens", "page_size"])
@pytest.mark.parametrize("value", NO_INTEGERS, ids=short)
def test_settings_of_a_cache(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        PrefixCache(**{"components": KINDS, "page_size": 2, field: value})


@pytest.mark.parametrize("value", NO_FLAGS, ids=str)
def test_rebuild_is_a_flag(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="rebuild"):
        PrefixCache(KINDS, 2, rebuild=value)


@pytest.mark.parametrize("value", [*NO_INTEGERS, 0], ids=short)
@pytest.mark.parametrize("field", ["selective_hits", "queue_limit", "reclaim_limit"])
def test_counts_of_a_host_tier(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        HostTier(page_counts={}, engine=NullEngine(), **{field: value})


@pytest.mark.parametrize("value", [*NO_NUMBERS, 1.5], ids=short)
@pytest.mark.parametrize("field", ["low_water", "lost_share", "worth_share", "max_backup_share"])
def test_shares_of_a_host_tier(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        HostTier(page_counts={}, engine=NullEngine(), **{field: value})


@pytest.mark.parametrize("value", [*NO_INTEGERS, 0], ids=short)
def test_pages_of_a_host_tier(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="page_counts"):
        HostTier(page_counts={"full": value}, engine=NullEngine())
    with pytest.raises(ConfigurationError, match="page_counts"):
        PrefixCache(KINDS, 2, {"full": value})


@pytest.mark.parametrize("settings", [{"exclusive": "no"}, {"load_cost": 7e9}, {"page_counts": ["full"]}], ids=str)
def test_other_settings_of_a_host_tier(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        HostTier(**{"page_counts": {}, "engine": NullEngine(), **settings})


@pytest.mark.parametrize("name", ["fulll", "", 3])
def test_a_host_has_pages_of_components_there_are(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="there are full, mamba, swa"):
        PrefixCache(KINDS, 2, COUNTS, host=HostTier(page_counts={name: 3}, engine=NullEngine()))
    with pytest.raises(ConfigurationError, match="HostTier"):
        PrefixCache(KINDS, 2, COUNTS, host={"full": 3})  # type: ignore[arg-type]


def test_a_host_tier_keeps_its_own_counts() -> None:
    counts = {"full": 3}
    host = HostTier(page_counts=counts, engine=NullEngine())
    counts["swa"] = 4
    assert host.page_counts == {"full": 3}


@pytest.mark.parametrize("value", NO_NUMBERS, ids=short)
@pytest.mark.parametrize("field", ["bytes_per_s", "flops_per_s", "latency_s"])
def test_rates(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        LoadCost(**{field: value})


@pytest.mark.parametrize("value", NO_INTEGERS, ids=short)
def test_least_tokens(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="min_tokens"):
        LoadCost(min_tokens=value)


def test_numpys_own_are_taken() -> None:
    host = HostTier(
        page_counts={"full": np.int32(9)},  # type: ignore[dict-item]
        engine=NullEngine(),
        low_water=np.float64(0.5),
        queue_limit=np.int64(3),  # type: ignore[arg-type]
        load_cost=LoadCost(bytes_per_s=np.float32(1e9), min_tokens=np.int16(2)),  # type: ignore[arg-type]
    )
    counts = {"full": np.int64(9)}
    cache = PrefixCache(KINDS, np.int64(2), counts, save_limit=np.int8(2), host=host)  # type: ignore[arg-type]
    lease = cache.acquire(Key(TOKENS), checkpoints=np.array([4, 8]), priority=np.int32(-2), save_output=np.bool_(1))  # type: ignore[arg-type]
    assert lease.save_at == (4, 8)
    cache.wait_layer(lease, np.int64(0))  # type: ignore[arg-type]
    assert cache.stats().pools["full"].total == 9
    cache.close()


@pytest.mark.parametrize("value", NO_NUMBERS, ids=short)
def test_flops_of_a_component(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="flops_per_token"):
        Component(name="x", coverage=Path(), flops_per_token=value)


@pytest.mark.parametrize("value", NO_FLAGS, ids=str)
def test_a_component_is_required_or_not(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="required"):
        Component(name="x", coverage=Path(), required=value)


def test_a_coverage_is_what_the_tree_knows() -> None:
    class Sinks(Trailing):
        """A window that needs its first tokens, too."""

        sink_tokens = 4

    with pytest.raises(ConfigurationError, match="coverage must be"):
        Component(name="x", coverage=Sinks(8))


@pytest.mark.parametrize(("window", "fits"), [(2, False), (3, True), (4, True)])
def test_a_sharer_needs_no_more_than_its_owner_keeps(window: int, fits: bool) -> None:
    def make() -> object:
        return UnifiedTree([FULL, swa(window), CARRY_OVER], 2)

    if fits:
        make()
    else:
        with pytest.raises(ConfigurationError, match="needs 3 past tokens"):
            make()


@pytest.mark.parametrize("shares", [3, ["full"], True], ids=str)
def test_a_sharer_names_its_owner(shares: Any) -> None:
    with pytest.raises(ConfigurationError, match="shares"):
        Component(name="x", coverage=Path(), shares=shares)


SHAPELESS: list[Any] = [None, 3, 2.5, "x", [], np.arange(3), np.zeros((2, 2))]


@pytest.mark.parametrize("value", [*SHAPELESS[1:], float("nan")], ids=short)
@pytest.mark.parametrize("name", ["ranks", "time_s", "tenants", "settings", "host", "storage", "page_counts"])
def test_parts_of_a_cache(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError):
        PrefixCache(KINDS, 2, **{name: value})
    with pytest.raises(ConfigurationError):
        PrefixCache(value, 2)


@pytest.mark.parametrize("value", SHAPELESS[1:], ids=short)
@pytest.mark.parametrize("name", ["time_s", "tenants", "settings", "page_counts", "host_page_counts"])
def test_parts_of_a_tree(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError):
        UnifiedTree(KINDS, 2, **{name: value})
    with pytest.raises(ConfigurationError):
        HostTier(engine=NullEngine(), tables=value)


NOTHING_A_TREE_TAKES: dict[str, Callable[[UnifiedTree, Any], object]] = {
    "match": lambda tree, wrong: tree.match_prefix(Key(TOKENS), touch=wrong),
    "unlock": lambda tree, wrong: tree.unlock(wrong),
    "release": lambda tree, wrong: tree.lock(tree.match_prefix(Key(TOKENS)).device).release([wrong]),
    "insert": lambda tree, wrong: tree.insert(Key(TOKENS), wrong),
    "states": lambda tree, wrong: tree.insert(Key(TOKENS), {}, wrong if wrong is not None else ""),  # type: ignore[arg-type]
    "states of one": lambda tree, wrong: tree.insert(Key(TOKENS), {}, {"mamba": wrong}),
    "without": lambda tree, wrong: tree.insert(Key(TOKENS), {}, without=[wrong]),
    "invalidate": lambda tree, wrong: tree.invalidate([wrong]),  # type: ignore[arg-type]
    "misses": lambda tree, wrong: tree.misses(Key(TOKENS), wrong),
    "resumed": lambda tree, wrong: tree.misses(Key(TOKENS), tree.match_prefix(Key(TOKENS)), [wrong]),  # type: ignore[arg-type]
    "dump": lambda tree, wrong: tree.dump(tokens=wrong),
    "backup": lambda tree, wrong: tree.transfers.backup(tree.match_prefix(Key(TOKENS)).device, wrong),
    "load": lambda tree, wrong: tree.transfers.load(tree.match_prefix(Key(TOKENS)).device, wrong),
    "acknowledge": lambda tree, wrong: tree.transfers.acknowledge(wrong),
    "abort": lambda tree, wrong: tree.transfers.abort([wrong]),  # type: ignore[arg-type]
    "pages with loads": lambda tree, wrong: tree.transfers.pages_with_loads(wrong, "full"),
    "graft": lambda tree, wrong: tree.transfers.graft(Key(TOKENS), wrong),
    "bigram": lambda _, wrong: Key(TOKENS, bigram=wrong),
    "copy": lambda _, wrong: Key(TOKENS, copy=wrong),
}


@pytest.mark.parametrize("value", SHAPELESS, ids=short)
@pytest.mark.parametrize("call", NOTHING_A_TREE_TAKES.values(), ids=NOTHING_A_TREE_TAKES.keys())
def test_what_a_tree_refuses(call: Callable[[UnifiedTree, Any], object], value: Any) -> None:
    tree = UnifiedTree([FULL, MAMBA], 2)
    tree.insert(Key(TOKENS), {"full": np.arange(6)}, {"mamba": {12: 1}})
    before = tree.dump()
    with pytest.raises(UnifiedTreeError):
        call(tree, value)
    assert tree.dump().replace("*", "") == before, "but for the lock"
    assert tree.check() == []


def test_a_tree_is_made_of_components() -> None:
    with pytest.raises(ConfigurationError, match="made of Components"):
        UnifiedTree([FULL, "swa"], 2)  # type: ignore[list-item]


def _allocate(cache: PrefixCache, lease: Lease) -> None:
    cache.allocate(lease, 20)


def _commit(cache: PrefixCache, lease: Lease) -> None:
    cache.commit(lease, np.arange(14))


@pytest.mark.parametrize("go_on", [_allocate, _commit])
def test_a_lease_that_gave_its_state_up_goes_no_further(go_on: Callable[[PrefixCache, Lease], None]) -> None:
    cache = PrefixCache(KINDS, 2, COUNTS)
    lease = cache.acquire(Key(TOKENS))
    cache.allocate(lease, 14)
    assert lease.state_page is not None
    cache.commit(lease, TOKENS, {12: lease.state_page})
    before = figures(cache, lease)
    with pytest.raises(LeaseError, match="gave up its running state"):
        go_on(cache, lease)
    with pytest.raises(LeaseError, match="gave up its running state"):
        cache.advance(lease, 13)
    assert figures(cache, lease) == before
    cache.allocate(lease, 12)
    cache.commit(lease, TOKENS)
    cache.release(lease)
    assert cache.acquire(Key([*TOKENS, 1])).cached_tokens == 12


def test_a_place_that_is_passed_without_its_state_is_counted() -> None:
    cache = PrefixCache(KINDS, 2, COUNTS)
    lease = cache.acquire(Key(TOKENS), checkpoints=[4, 8])
    cache.allocate(lease, 12)
    cache.commit(lease, TOKENS[:6])
    assert cache.stats().drops == {"state not saved where it was due": 1}
    cache.commit(lease, TOKENS, {8: lease.save_pages[8]})
    assert cache.stats().drops == {"state not saved where it was due": 1}
    cache.release(lease)
    short = PrefixCache(KINDS, 2, {**COUNTS, "mamba": 2})
    with short.acquire(Key(TOKENS), checkpoints=[4, 8]) as lease:
        short.allocate(lease, 12)
        assert (lease.save_at, len(lease.save_pages)) == ((4, 8), 1)
        short.commit(lease, TOKENS, dict(lease.save_pages))
    assert short.stats().drops == {"no page for a state where it was due": 1}
    optional = PrefixCache([FULL, Component(name="mamba", coverage=MAMBA.coverage, required=False)], 2)
    with optional.acquire(Key(TOKENS)) as lease:
        optional.allocate(lease, 12)
        optional.commit(lease, TOKENS)
    assert optional.stats().drops == {}, "what is optional does not stop a prompt"


TWO, FOUR, SIX = np.int64(2), np.int32(4), np.int64(6)


def test_a_tree_takes_them() -> None:
    tree = UnifiedTree([FULL, MAMBA], 2)
    key = Key(np.arange(6), bigram=np.False_, copy=np.True_).prefix(SIX)
    key.require_tokens(TWO)
    tail = key.tail(FOUR)
    assert (len(tail), tail.begin, type(tail.begin), type(key.bigram)) == (6, 4, int, bool)
    tree.insert(key, {"full": np.arange(3, dtype=np.int32)}, {"mamba": {FOUR: TWO}}, priority=TWO)  # type: ignore[dict-item, arg-type]
    match = tree.match_prefix(key, limit=FOUR)  # type: ignore[arg-type]
    assert match.device.length == 4
    receipt = tree.lock(match.device)
    receipt.release()
    assert tree.evict({"full": TWO}).freed["full"].size >= 2  # type: ignore[dict-item]
    assert tree.check() == []


def test_a_cache_takes_them() -> None:
    tokens = np.arange(8)
    cache = PrefixCache([FULL, swa(3), MAMBA], 2, {"full": 16, "swa": 16, "mamba": 16})
    lease = cache.acquire(Key(tokens), checkpoints=np.array([2, 6]), priority=TWO)  # type: ignore[arg-type]
    cache.allocate(lease, np.int64(8))  # type: ignore[arg-type]
    cache.advance(lease, FOUR)  # type: ignore[arg-type]
    states = {np.int64(length): np.int64(page) for length, page in lease.save_pages.items()}
    cache.commit(lease, tokens, states)  # type: ignore[arg-type]
    cache.allocate(lease, np.int64(11))  # type: ignore[arg-type]
    cache.truncate(lease, np.int64(9))  # type: ignore[arg-type]
    cache.release(lease)
    assert cache.acquire(Key([*tokens[:6], 9])).cached_tokens == 6
    assert cache.tree.check() == []
