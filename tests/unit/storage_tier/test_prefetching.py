"""Prefetches from the call to the graft: what starts one, who waits how long, and how it may be broken off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from kinds import FULL, SETS
from stored_cache import STEP_NS, Kept, StoredCache, policy

from unified_tree import ConfigurationError, Key, Tier
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.ranks.rank_agreement import SingleRank
from unified_tree.controllers.storage import Capabilities, MemoryStorage, Outcome
from unified_tree.controllers.storage_tier import PrefetchMode
from unified_tree.terms.errors import RankError, StorageError

PROMPT = list(range(41))
OTHER = [*range(20), *range(100, 121)]


def stored(kinds: str = "full", **settings: Any) -> StoredCache:
    """A server over a store that has the prompts, knowing nothing."""
    cache = StoredCache(SETS[kinds])
    cache.compute(PROMPT, checkpoints=[20, 30, 40])
    cache.compute(OTHER, checkpoints=[20, 30, 40])
    cache.cache.close()
    cache.store.calls.clear()
    return cache.like_this(**settings)


@pytest.mark.parametrize(("least", "begun"), [(40, True), (41, False)])
def test_less_than_the_least_is_not_asked_for(least: int, begun: bool) -> None:
    cache = stored(prefetch=policy(min_tokens=least))
    assert cache.prefetch(PROMPT) is begun
    assert bool(cache.store.calls) is False
    assert cache.cache.prefetched("request") is not begun
    assert cache.fetch(PROMPT) == (40 if begun else 0)


@pytest.mark.parametrize("pages", [1, 2, 3, 5, 10, 19])
def test_a_prefetch_is_shortened_to_the_room_there_is(pages: int) -> None:
    cache = stored(host_pages=pages)
    assert cache.fetch(PROMPT) == 2 * pages
    cache.end()


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 1.0])
def test_open_prefetches_hold_no_more_than_their_share(share: float) -> None:
    cache = stored(host_pages=20, prefetch=policy(max_host_share=share))
    cache.prefetch(PROMPT, request=1)
    for _ in range(30):
        cache.step()
        used = cache.cache.stats().host_pools["full"]
        assert used.used - used.tree <= share * 20
    assert cache.hit(PROMPT, request=1) == 40 * share
    cache.end()


def test_the_share_is_that_of_all_open_prefetches() -> None:
    cache = stored(host_pages=20, prefetch=policy(max_host_share=0.5, batch_pages=1))
    cache.compute([7] * 41, "a")
    cache.compute([8] * 41, "b")
    cache.forget()
    cache.prefetch([7] * 41, "a", request=1)
    cache.prefetch([8] * 41, "b", request=2)
    most = 0
    for _ in range(30):
        cache.step()
        used = cache.cache.stats().host_pools["full"]
        most = max(most, used.used - used.tree)
    assert most == 10
    assert cache.drops() == {"prefetch: no room on host": 1}
    assert sorted([cache.hit([7] * 41, "a"), cache.hit([8] * 41, "b")]) == [0, 20]
    cache.prefetch([8] * 41, "b", request=2)
    cache.cache.drain()
    assert cache.hit([8] * 41, "b") == 20
    cache.end()


def test_two_that_lack_the_same_page_fetch_it_once() -> None:
    cache = stored()
    for request, prompt in enumerate([PROMPT, PROMPT, OTHER]):
        assert cache.prefetch(prompt, request=request)
    assert not any(cache.cache.prefetched(request) for request in range(3))
    assert cache.cache.storage is not None
    assert cache.cache.storage.stats().prefetches_open == 3
    cache.cache.drain()
    figures = cache.cache.storage.stats()
    assert (figures.prefetches, figures.joined, figures.prefetches_open) == (2, 2, 0)
    assert figures.prefetched_tokens == 60
    assert cache.store.count("get", "full") == 30
    assert all(cache.cache.prefetched(request) for request in range(3))
    assert [cache.hit(prompt, request=i) for i, prompt in enumerate([PROMPT, PROMPT, OTHER])] == [40, 40, 40]
    cache.end()


@pytest.mark.parametrize("kinds", ["full", "mamba"])
def test_nothing_is_looked_up_once_for_all_that_wait(kinds: str) -> None:
    cache = StoredCache(SETS[kinds])
    for request in range(50):
        cache.prefetch([*PROMPT, *([request] * request)], request=request)
    cache.cache.drain()
    assert cache.cache.storage is not None
    assert cache.cache.storage.stats().prefetches == 1
    assert all(cache.cache.prefetched(request) for request in range(50))


def test_a_follower_goes_on_where_another_was_given_up() -> None:
    cache = stored()
    cache.prefetch(PROMPT, request=1)
    cache.step()
    cache.prefetch(OTHER, request=2)
    cache.cache.cancel(1)
    cache.cache.drain()
    assert cache.hit(OTHER, request=2) == 40
    cache.end()


def test_the_last_who_cancels_stops_it() -> None:
    cache = stored()
    cache.prefetch(PROMPT, request=1)
    cache.prefetch(PROMPT, request=2)
    cache.step(3)
    before = cache.store.count("get", "full")
    assert 0 < before < 20
    cache.cache.cancel(1)
    cache.step()
    assert cache.store.count("get", "full") == before + 2
    cache.cache.cancel(2)
    cache.cache.drain()
    assert cache.store.count("get", "full") == before + 2
    assert cache.hit(PROMPT) == 0
    cache.end()


def test_a_request_that_asks_again_waits_for_the_new_prompt() -> None:
    cache = stored()
    cache.prefetch(PROMPT)
    cache.prefetch(OTHER)
    cache.cache.drain()
    assert cache.hit(OTHER, request="request") == 40


def test_best_effort_waits_for_nothing() -> None:
    cache = stored(prefetch=policy(mode=PrefetchMode.BEST_EFFORT))
    cache.prefetch(PROMPT)
    cache.step(4)
    assert cache.cache.prefetched("request")
    cache.cache.drain()
    assert 0 < cache.hit(PROMPT, request="request") < 40
    assert not cache.drops()


def test_a_stopped_prefetch_has_its_grace() -> None:
    cache = stored(prefetch=policy(mode=PrefetchMode.BEST_EFFORT, grace_s=1.5 * STEP_NS / 1e9))
    cache.prefetch(PROMPT)
    cache.step(4)
    assert not cache.cache.prefetched("request")
    cache.step()
    assert cache.cache.prefetched("request")
    assert 0 < cache.hit(PROMPT, request="request") < 40


def test_a_timeout_counts_what_is_lacking() -> None:
    settings = policy(mode=PrefetchMode.TIMEOUT, base_s=2.5 * STEP_NS / 1e9, per_token_s=STEP_NS / 1e9 / 10)
    cache = stored(prefetch=settings)
    cache.prefetch(PROMPT[:21], request="first")
    cache.cache.drain()
    assert cache.hit(PROMPT[:21], request="first") == 20
    assert cache.drops() == {"prefetch out of time": 1}, "it took 7 steps of 4.5, and nobody asked meanwhile"
    cache.prefetch(PROMPT)  # 20 tokens: 4.5 steps
    for _ in range(4):
        cache.step()
        assert not cache.cache.prefetched("request")
    cache.step()
    assert cache.cache.prefetched("request")
    assert cache.drops() == {"prefetch out of time": 2}
    cache.cache.drain()
    assert 20 < cache.hit(PROMPT, request="request") < 40
    assert cache.cache.prefetched("request")


@pytest.mark.parametrize("kinds", ["full", "everything"])
@pytest.mark.parametrize("steps", range(0, 26, 2))
def test_leaving_keeps_what_was_read(kinds: str, steps: int) -> None:
    cache = stored(kinds)
    cache.prefetch(PROMPT)
    cache.step(steps)
    first = cache.hit(PROMPT, request="request")  # acquires, and waits for nothing
    assert first in (0, 40)
    got = cache.store.count("get", "full")
    assert cache.reach(PROMPT) in (2 * got, 0) if kinds == "full" else cache.reach(PROMPT) <= 2 * got
    assert cache.fetch(PROMPT) == 40
    if kinds == "full":
        assert cache.store.count("get", "full") == 20  # no page was read twice
    cache.end()


Breaking = Callable[[StoredCache], None]
WAYS: dict[str, Breaking] = {
    "cancelled": lambda cache: cache.cache.cancel("request"),
    "invalidated": lambda cache: cache.runner.invalidate(None, "weights 1"),
    "one namespace invalidated": lambda cache: cache.runner.invalidate(""),
    "detached": lambda cache: cache.cache.detach_storage(),
    "replaced": lambda cache: cache.attach(),
    "closed": lambda cache: cache.cache.close(),
}


@pytest.mark.parametrize("kinds", ["full", "window and mamba", "everything"])
@pytest.mark.parametrize("way", WAYS)
def test_it_may_be_broken_off_at_any_step(kinds: str, way: str) -> None:
    for steps in range(0, 30, 2):
        cache = stored(kinds)
        cache.prefetch(PROMPT)
        cache.prefetch(OTHER, request="other")
        cache.step(steps)
        WAYS[way](cache)
        cache.runner.check()
        assert way == "cancelled" or "invalidated" in way or cache.cache.prefetched("request")
        if way == "closed":
            continue
        cache.cache.drain()
        cache.runner.check()
        host = cache.cache.stats().host_pools
        assert all(pool.used == pool.tree and not pool.protected for pool in host.values())
        again = cache.fetch(PROMPT)
        assert again == (0 if "invalidated" in way else 40 if way != "detached" else again)
        cache.end()


@pytest.mark.parametrize("threads", [False, True])
def test_prefetches_over_threads(threads: bool) -> None:
    cache = stored("everything", threads=threads)
    for request, prompt in enumerate([PROMPT, OTHER, PROMPT, OTHER[:31]]):
        cache.prefetch(prompt, request=request)
    cache.cache.drain()
    found = [cache.hit(prompt, request=i) for i, prompt in enumerate([PROMPT, OTHER, PROMPT, OTHER[:31]])]
    assert found == [40, 40, 40, 30]
    stats = cache.cache.stats()
    assert stats.storage_hit_tokens == stats.host_hit_tokens >= 60
    cache.end()


class Broken(Kept):
    """A store that raises."""

    error: Exception = StorageError("down")
    when = "get"

    def get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        if self.when == "get":
            raise self.error
        return super().get(pool, keys, pages)  # type: ignore[no-any-return]

    def exists(self, pool: str, keys: Sequence[bytes]) -> Any:
        if self.when == "exists":
            raise self.error
        return super().exists(pool, keys)


@pytest.mark.parametrize("when", ["get", "exists"])
@pytest.mark.parametrize("error", [StorageError("down"), RuntimeError("a bug")], ids=["down", "bug"])
@pytest.mark.parametrize("threads", [False, True])
def test_an_engine_that_raises_costs_the_prefetch_only(when: str, error: Exception, threads: bool) -> None:
    cache = stored("mamba", threads=threads)
    engine = Broken(cache.every_pool)
    engine._values = cache.store._values
    engine.error, engine.when = error, when
    cache.attach(engine=engine)
    cache.prefetch(PROMPT)
    cache.cache.drain()
    assert cache.cache.prefetched("request")
    assert cache.hit(PROMPT, request="request") == 0
    assert cache.cache.storage is not None
    if isinstance(error, StorageError):
        assert cache.cache.storage.stats().last_error == "down"
    else:
        assert cache.drops() == {"prefetch failed: RuntimeError": 1}
    cache.end()


def test_storage_hits_are_what_the_store_added() -> None:
    cache = stored()
    cache.fetch(PROMPT[:21])
    assert cache.cache.stats().storage_hit_tokens == 20
    cache.forget()
    cache.fetch(PROMPT[:21])
    cache.fetch(PROMPT)
    assert cache.cache.stats().storage_hit_tokens == 60


def test_a_follower_counts_what_its_leader_brought_for_it() -> None:
    cache = stored()
    cache.prefetch(PROMPT, request=1)
    cache.prefetch(OTHER, request=2)
    cache.prefetch(OTHER[:13], request=3)
    cache.cache.drain()
    assert [cache.cache.prefetched_tokens(request) for request in (1, 2, 3)] == [40, 40, 12]


def test_a_store_needs_a_host_tier() -> None:
    cache = stored()
    with pytest.raises(ConfigurationError, match="host tier"):
        PrefixCache([FULL], 2, storage=cache.make_tier())
    without = PrefixCache([FULL], 2)
    with pytest.raises(ConfigurationError, match="host tier"):
        without.attach_storage(cache.make_tier())
    assert not without.prefetch("request", Key(PROMPT))
    assert without.prefetched("request")
    without.cancel("request")
    without.detach_storage()
    without.close()


class Picky(Kept):
    """A store that takes next to nothing."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(zero_copy=False, largest_value_bytes=64)


@pytest.mark.parametrize("missing", ["restore points", "mamba"])
def test_an_engine_that_was_not_opened_for_every_pool_is_refused(missing: str) -> None:
    cache = stored("mamba")
    attached = cache.cache.storage
    engine = MemoryStorage([pool for pool in cache.every_pool if pool.name != missing])
    with pytest.raises(ConfigurationError, match=f"was not opened for '{missing}', only for 'full'.*stored_pools"):
        cache.attach(engine=engine)
    assert cache.cache.storage is attached
    assert engine.put("full", [], []) == [], "and is still its owner's"
    assert cache.fetch(PROMPT) == 40
    cache.end()


def test_what_cannot_be_kept_is_refused_with_nothing_changed() -> None:
    cache = stored("mamba")
    attached = cache.cache.storage
    bad: list[dict[str, Any]] = [
        {"engine": Picky(cache.every_pool)},
        {"pools": {"full": cache.pools["full"]}},
        {"memory": {}},
        {"memory": {**cache.memory.host_pages, "draft": cache.memory.host_pages["full"]}},
    ]
    said = []
    for settings in bad:
        with pytest.raises(ConfigurationError) as refusal:
            cache.attach(**settings)
        said.append(str(refusal.value))
        assert cache.cache.storage is attached
    assert "largest 64" in said[0] and "mamba" in said[0]
    assert "a stored pool" in said[1] and "host memory" in said[2] and "draft" in said[3]
    assert cache.fetch(PROMPT) == 40


def test_a_store_comes_goes_and_comes_back() -> None:
    cache = stored("mamba", attach=False)
    assert not cache.prefetch(PROMPT)
    assert cache.hit(PROMPT) == 0
    cache.attach()
    assert cache.fetch(PROMPT) == 40
    cache.cache.detach_storage()
    assert cache.cache.stats().storage is None
    assert cache.hit(PROMPT) == 40
    cache.forget()
    assert cache.fetch(PROMPT) == 0
    cache.attach()
    assert cache.fetch(PROMPT) == 40
    cache.end()


@pytest.mark.parametrize("named", ["weights 1", None])
@pytest.mark.parametrize("is_attached", [True, False])
def test_a_namespaces_own_invalidation_outlives_the_store(named: str | None, is_attached: bool) -> None:
    """The settings of the next store name one version for all, which that namespace has no more."""
    cache = StoredCache([FULL])
    cache.compute(PROMPT, "lora")
    if not is_attached:
        cache.cache.detach_storage()
    cache.runner.invalidate("lora", named)
    cache.attach()
    assert cache.fetch(PROMPT, "lora") == 0
    cache.compute(PROMPT, "lora")
    other = cache.like_this()
    assert other.fetch(PROMPT, "lora") == 40  # what was stored under the old weights is still what it was
    other.runner.invalidate("lora", "weights 1")
    other.runner.versions["lora"] = 1
    assert other.fetch(PROMPT, "lora") == (0 if named is None else 40)
    cache.end()
    other.end()


def test_what_a_prefetch_stands_on_stays() -> None:
    cache = stored()
    assert cache.fetch(PROMPT[:21]) == 20
    cache.prefetch(PROMPT)
    cache.step(3)
    cache.forget()
    assert cache.reach(PROMPT) == 20
    cache.cache.drain()
    assert cache.hit(PROMPT) == 40
    cache.end()


def test_that_nothing_was_found_under_old_weights_says_nothing_about_new_ones() -> None:
    cache = stored(weights_version="weights before")
    cache.prefetch(PROMPT, request=1)
    cache.cache.invalidate(None, "weights 0")
    cache.prefetch(PROMPT, request=2)
    cache.cache.drain()
    assert cache.hit(PROMPT, request=2) == 40
    cache.end()


def test_a_store_is_not_attached_twice() -> None:
    """It would be closed as the one that goes, and then be there as the one that comes."""
    cache = StoredCache([FULL])
    storage = cache.cache.storage
    assert storage is not None
    with pytest.raises(ConfigurationError, match="attached already"):
        cache.cache.attach_storage(storage.tier)
    assert cache.cache.storage is storage
    cache.compute(PROMPT)
    assert cache.like_this().fetch(PROMPT) == 40


class Doubting(SingleRank):
    """Other ranks, where nothing optional came."""

    def __init__(self) -> None:
        super().__init__()
        self._identities: list[str] = []

    def open_ticket(self, identity: str, page_count: int) -> int:
        """Numbered, to know it again."""
        del page_count
        self._identities.append(identity)
        return len(self._identities) - 1

    def propose(self, ticket: int, lengths: Any, then: Callable[[Any], None]) -> None:
        """All agree, but on what is optional."""
        then(lengths & (np.arange(len(lengths)) == 0) if self._identities[ticket].endswith("optional") else lengths)


@pytest.mark.parametrize("kinds", ["draft", "draft of its own", "optional mamba", "optional window"])
def test_what_is_optional_is_grafted_if_it_came_on_every_rank(kinds: str) -> None:
    """Or else their trees differ from then on. Seed 20 of the simulated ranks."""
    [optional] = [c.name for c in SETS[kinds] if not c.required]
    for came in (True, False):
        cache = stored(kinds)
        assert cache.cache.storage is not None
        if not came:
            cache.cache.storage.shared.ranks = Doubting()
        assert cache.fetch(PROMPT) == 40
        assert bool(cache.cache.tree.pool(optional, Tier.HOST).used_pages) is came
        cache.end()


class Interrupted(SingleRank):
    """Other ranks that are gone when a ticket of some number is asked for."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._left = number

    def open_ticket(self, identity: str, page_count: int) -> int:
        """Raises RankError, once."""
        self._left -= 1
        if self._left == -1:
            raise RankError("gone")
        return super().open_ticket(identity, page_count)


def prefetch_to_the_end(cache: StoredCache) -> None:
    cache.prefetch(PROMPT)
    cache.cache.drain()


@pytest.mark.parametrize("number", range(4))
def test_a_rank_that_is_gone_leaves_no_page_behind(number: int) -> None:
    """Whatever the prefetch had taken is given back at once, and the next one for the same prompt is none of its followers."""
    cache = stored("everything")
    assert cache.cache.storage is not None
    cache.cache.storage.shared.ranks = Interrupted(number)
    with pytest.raises(RankError, match="gone"):
        prefetch_to_the_end(cache)
    cache.runner.check()
    assert cache.cache.prefetched("request")
    host = cache.cache.stats().host_pools
    assert all(pool.used == pool.tree and not pool.protected for pool in host.values())
    assert cache.fetch(PROMPT) == 40
    cache.end()


def test_an_error_at_the_graft_leaves_no_page_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = stored("everything")
    cache.prefetch(PROMPT, request=1)
    cache.prefetch(OTHER, request=2)

    def fail(key: Key, pages: Any, after: Any) -> Any:
        raise ZeroDivisionError(f"{key} {pages} {after}")

    with monkeypatch.context() as broken:
        broken.setattr(cache.cache.tree.transfers, "graft", fail)
        with pytest.raises(ZeroDivisionError):
            cache.cache.drain()
    cache.runner.check()
    cache.cache.drain()
    assert cache.cache.prefetched(1) and cache.cache.prefetched_tokens(1) == 0
    assert cache.hit(OTHER, request=2) == 40, "it looked again when the one it followed had ended"
    cache.end()


def test_an_error_is_logged_once_and_every_drop_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    cache = stored()
    engine = Broken(cache.every_pool)
    engine.error, engine.when = RuntimeError("a bug"), "exists"
    cache.attach(engine=engine)
    with caplog.at_level("DEBUG", logger="unified_tree.storage_tier"):
        assert [cache.fetch(PROMPT), cache.fetch(PROMPT)] == [0, 0]
    of_prefetches = [record for record in caplog.records if "prefetch" in record.getMessage()]
    assert [(record.levelname, record.getMessage()) for record in of_prefetches] == [
        (
            "WARNING",
            "prefetch of Key(41 tokens, namespace='') broke off: RuntimeError: a bug (logged once; further ones are counted)",
        ),
        ("DEBUG", "dropped: prefetch failed: RuntimeError: Key(41 tokens, namespace='')"),
        ("DEBUG", "dropped: prefetch failed: RuntimeError: Key(41 tokens, namespace='')"),
    ]
