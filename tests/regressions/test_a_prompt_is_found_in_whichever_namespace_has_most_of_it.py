"""The cause `other_namespace` looked into one namespace alone, the last one with the same first page; and when the later of two
equal prompts under way left, the earlier one was found no more.
"""

from __future__ import annotations

import pytest
from kinds import FULL

from unified_tree import Key
from unified_tree.controllers import Lease, PrefixCache

PAGE = 16


def text(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


A = text(0, 700)


def serve(cache: PrefixCache, tokens: list[int], namespace: str) -> list[tuple[str, int, int, str | None]]:
    with cache.acquire(Key(tokens, namespace)) as lease:
        cache.allocate(lease, len(tokens))
        cache.commit(lease, tokens)
        return parts(lease)


def parts(lease: Lease) -> list[tuple[str, int, int, str | None]]:
    return [(miss.cause.label, miss.begin, miss.end, miss.detail) for miss in lease.misses if miss.cause.label != "last_token"]


def test_the_namespace_that_has_more_is_named_whichever_came_last() -> None:
    cache = PrefixCache([FULL], PAGE)
    serve(cache, A, "n1")
    serve(cache, A[:64] + text(5000, 300), "n2")
    told = serve(cache, A, "n3")
    assert told[0] == ("other_namespace", 0, 688, "n1")


@pytest.mark.parametrize("count", [1, 9, 60])
def test_so_is_one_among_many_that_begin_alike(count: int) -> None:
    cache = PrefixCache([FULL], PAGE)
    for i in range(count):
        serve(cache, A[:64] + text(5000 + 1000 * i, 300), f"before {i}")
    serve(cache, A[:400], "less")
    serve(cache, A, "most")
    for i in range(count):
        serve(cache, A[: 16 * (i % 30 + 1)], f"between {i}")
        serve(cache, A[:64] + text(90_000 + 1000 * i, 300), f"after {i}")
    assert serve(cache, A, "asks")[0] == ("other_namespace", 0, 688, "most")
    assert serve(cache, A[:400] + text(7000, 32), "asks, too")[0][:3] == ("other_namespace", 0, 400)


def test_what_a_namespace_adds_behind_what_others_have_is_found() -> None:
    cache = PrefixCache([FULL], PAGE)
    serve(cache, A[:160], "first")
    serve(cache, A[:320], "second")
    serve(cache, A[:480], "first")
    serve(cache, A[:640], "second")
    assert serve(cache, A, "third")[0] == ("other_namespace", 0, 640, "second")


def test_an_earlier_one_of_equal_prompts_under_way_is_found_when_the_later_one_leaves() -> None:
    cache = PrefixCache([FULL], PAGE)
    first, second = cache.acquire(Key(A)), cache.acquire(Key(A))
    assert parts(second)[0] == ("in_flight", 0, 688, None)
    cache.release(second)
    third = cache.acquire(Key(A))
    assert parts(third)[0] == ("in_flight", 0, 688, None)
    cache.release(first)
    fourth = cache.acquire(Key(A))
    assert parts(fourth)[0] == ("in_flight", 0, 688, None)
    for lease in (third, fourth):
        cache.release(lease)
    assert parts(cache.acquire(Key(A)))[0] == ("never_seen", 0, 688, None)


def test_a_prompt_under_way_is_found_though_another_one_was_published_meanwhile() -> None:
    cache = PrefixCache([FULL], PAGE)
    slow = cache.acquire(Key(A))
    serve(cache, A[:320] + text(9000, 64), "")
    last = cache.acquire(Key(A[:640] + text(8000, 64)))
    assert parts(last)[0] == ("in_flight", 320, 640, None)
    for lease in (slow, last):
        cache.release(lease)
