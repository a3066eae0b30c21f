"""The free list of one pool."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from unified_tree import ConfigurationError, OutOfPagesError, PageError
from unified_tree.controllers import PageAllocator


def test_every_page_once() -> None:
    pool = PageAllocator("full", 1000)
    taken = np.concatenate([pool.allocate(count) for count in (1, 0, 600, 399)])
    assert sorted(taken) == list(range(1000))
    assert (pool.free_pages, pool.used_pages) == (0, 1000)


def test_pages_given_back_go_out_again() -> None:
    pool = PageAllocator("full", 4)
    ids = pool.allocate(4)
    pool.free(ids[1:3])
    assert sorted(pool.allocate(2)) == sorted(ids[1:3])


def test_too_many_changes_nothing() -> None:
    pool = PageAllocator("full", 4)
    pool.allocate(3)
    with pytest.raises(OutOfPagesError, match="full: 2 pages asked for, 1 of 4 are free"):
        pool.allocate(2)
    assert (pool.free_pages, pool.allocate(1).size) == (1, 1)


def test_fewer_than_none_are_refused() -> None:
    pool = PageAllocator("full", 4)
    pool.free(pool.allocate(3))
    with pytest.raises(PageError, match="cannot allocate -1 pages"):
        pool.allocate(-1)
    assert (pool.used_pages, pool.allocate(4).size) == (0, 4)


@pytest.mark.parametrize("bad", [[0, 9], [-1], [2]])
def test_a_page_that_is_not_out_cannot_come_back(bad: list[int]) -> None:
    pool = PageAllocator("full", 4)
    pool.allocate(2)
    with pytest.raises(PageError, match="not allocated"):
        pool.free(np.array(bad))
    assert pool.used_pages == 2


def test_a_page_comes_back_once() -> None:
    pool = PageAllocator("full", 4)
    ids = pool.allocate(2)
    with pytest.raises(PageError):
        pool.free(np.array([ids[0], ids[0]]))
    pool.free(ids)
    with pytest.raises(PageError):
        pool.free(ids)
    assert pool.free_pages == 4


def test_one_page_is_the_page_that_an_array_of_one_would_hold() -> None:
    random = Random(0)
    one, many = PageAllocator("full", 600), PageAllocator("full", 600)
    out: list[int] = []
    for _ in range(3000):
        if out and random.random() < 0.45:
            page = out.pop(random.randrange(len(out)))
            one.free_one(page)
            many.free(np.array([page]))
        elif random.random() < 0.1:
            ids = one.allocate(min(20, one.free_pages))
            assert ids.tolist() == many.allocate(ids.size).tolist()
            out += ids.tolist()
        elif one.free_pages:
            out.append(one.allocate_one())
            assert [out[-1]] == many.allocate(1).tolist()
        assert len(out) == one.used_pages == many.used_pages


def test_one_page_more_than_there_are_changes_nothing() -> None:
    pool = PageAllocator("full", 2)
    pages = {pool.allocate_one(), pool.allocate_one()}
    with pytest.raises(OutOfPagesError, match="full: 1 pages asked for, 0 of 2 are free"):
        pool.allocate_one()
    assert pages == {0, 1}
    pool.free_one(0)
    for bad in (0, -1, 2):
        with pytest.raises(PageError, match="not allocated"):
            pool.free_one(bad)
    assert (pool.used_pages, pool.allocate_one()) == (1, 0)


def test_a_pool_without_a_limit() -> None:
    pool = PageAllocator("full", None)
    assert pool.allocate(100_000).size == 100_000
    assert pool.free_pages > 1 << 31


@pytest.mark.parametrize("page_count", [None, 1 << 40, 1 << 62])
def test_an_absurd_request_changes_nothing(page_count: int | None) -> None:
    pool = PageAllocator("full", page_count)
    pool.free(pool.allocate(3))
    for absurd in (1 << 40, 1 << 62):
        with pytest.raises(OutOfPagesError):
            pool.allocate(absurd)
    assert pool.used_pages == 0
    assert sorted(pool.allocate(5)) == [0, 1, 2, 3, 4]


def test_a_want_of_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise MemoryError

    pool = PageAllocator("full", None)
    pool.free(pool.allocate(3))
    with monkeypatch.context() as patch:
        patch.setattr(np, "arange", none_left)
        with pytest.raises(OutOfPagesError, match="no memory"):
            pool.allocate(900)
    assert pool.used_pages == 0
    assert sorted(pool.allocate(900)) == list(range(900))


@pytest.mark.parametrize("count", [0, -1, True, 2.0, "4"])
def test_a_pool_has_a_positive_number_of_pages(count: Any) -> None:
    with pytest.raises(ConfigurationError, match="positive number of pages"):
        PageAllocator("full", count)
