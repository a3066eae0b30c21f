"""A lease has no pages of an optional state from the commit that publishes its running state."""

from __future__ import annotations

import pytest

from unified_tree import Component, Key, Path, Point
from unified_tree.controllers import PrefixCache


@pytest.mark.parametrize("required", [False, True])
def test_a_commit_of_the_running_state_frees_the_pages_of_an_optional_one(required: bool) -> None:
    components = [Component(name="full", coverage=Path()), Component(name="m", coverage=Point(), required=required)]
    cache = PrefixCache(components, 1, {"full": 20, "m": 3})
    lease = cache.acquire(Key([1, 2, 3]), reserve_tokens=3)
    assert len(lease.save_pages) == 2 and lease.state_page is not None
    cache.commit(lease, 2, {2: lease.state_page})

    kept = 2 if required else 0
    assert lease.given_up == (() if required else ("m",))
    assert len(lease.save_pages) == kept and cache.stats().pools["m"].leased == kept
    if not required:
        cache.allocate(lease, 6)
        cache.commit(lease, 3)
        assert not lease.save_pages and cache.stats().pools["m"].leased == 0
    cache.release(lease)
    cache.drain()
    assert cache.stats().pools["m"].leased == 0
