"""A component could say that fewer tokens than its window rebuild the window. The lease's table then had holes within what the
next token needs. And what is optional, an own window or one in a rebuilt window's pages, counted as rebuilt by a run that was
long enough for the required ones only.
"""

from __future__ import annotations

import numpy as np
import pytest
from kinds import FULL, swa

from unified_tree import Component, ConfigurationError, Trailing
from unified_tree import Key as Prompt
from unified_tree.controllers import Lease, PrefixCache

PROMPT = np.arange(41)


def rebuilding(windows: list[Component], page_size: int) -> tuple[PrefixCache, Lease]:
    """A hit of all whole pages, whose windows are gone."""
    cache = PrefixCache([FULL, *windows], page_size)
    with cache.acquire(Prompt(PROMPT)) as lease:
        cache.allocate(lease, 40)
        cache.commit(lease, 40, resumable=True)
    for window in windows:
        cache.evict({window.name: 40})
    lease = cache.acquire(Prompt(PROMPT))
    assert (lease.cached_tokens, lease.rebuilt_tokens > 0) == (40 // page_size * page_size, True)
    return cache, lease


def test_a_rebuild_of_less_than_a_window_is_refused() -> None:
    for window in range(1, 12):
        for rebuild in range(1, window):
            with pytest.raises(ConfigurationError, match=f"{rebuild}, but so few tokens do not fill a window of {window}"):
                swa(window, rebuild_tokens=rebuild)


@pytest.mark.parametrize("page_size", [1, 2, 3, 8])
def test_whatever_is_rebuilt_has_no_holes(page_size: int) -> None:
    for window in range(1, 12):
        for rebuild in (window, window + 1, 2 * window):
            cache, lease = rebuilding([swa(window, rebuild_tokens=rebuild), swa(3, rebuild_tokens=3, name="other")], page_size)
            cache.allocate(lease, 41)
            for name, wanted in (("swa", window), ("other", 3)):
                first = (lease.cached_tokens - wanted) // page_size
                assert (lease.pages(name, first) >= 0).all(), (name, window, rebuild)
                assert lease.compute_from <= lease.write_from[name] == first * page_size


def test_an_optional_window_is_not_rebuilt_along_with_a_required_one() -> None:
    cache, lease = rebuilding([swa(3, rebuild_tokens=3), swa(8, required=False, name="draft")], 2)
    cache.allocate(lease, 40)
    assert lease.write_from["draft"] == 40
    assert (lease.pages("draft") < 0).all()
    cache.commit(lease, 40, resumable=True)
    cache.release(lease)
    again = cache.acquire(Prompt(PROMPT))
    assert (again.compute_from, bool((again.pages("draft") < 0).all())) == (40, True)
    assert cache.tree.check() == []


def test_nor_is_one_in_its_pages() -> None:
    draft = Component(name="draft", coverage=Trailing(3), required=False, shares="swa")
    cache = PrefixCache([FULL, swa(4, rebuild_tokens=4), draft], 2)
    for tokens, drafted in ((20, True), (20, False), (23, False), (30, True)):
        cache.evict({"swa": 40})
        lease = cache.acquire(Prompt(PROMPT[:21]))
        assert (lease.rebuilt_tokens > 0) == (lease.cached_tokens == 20)
        cache.allocate(lease, tokens)
        cache.commit(lease, PROMPT[:tokens], resumable=True)
        cache.release(lease)
        again = cache.acquire(Prompt(PROMPT[: tokens + 1]))
        assert again.compute_from == tokens // 2 * 2
        assert (again.pages("draft")[-2:] >= 0).all() == drafted
        cache.release(again)
    assert cache.tree.check() == []
