"""The tokens that a lease knows: a key that grows, against a list."""

from __future__ import annotations

import random

import pytest

from unified_tree import Component, Key, LeaseError, Path
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache.lease_tokens import LeaseTokens


@pytest.mark.parametrize("bigram", [False, True])
def test_they_are_those_of_a_list_that_grows_and_is_cut(bigram: bool) -> None:
    rng = random.Random(5)
    for _ in range(60):
        tokens = [rng.randrange(3) for _ in range(rng.randrange(2, 12))]
        prompt = len(tokens) - bigram
        known = LeaseTokens(Key(tokens, "a", bigram=bigram))
        for _ in range(12):
            whole = Key(tokens, "a", bigram=bigram)
            assert known.length == whole.length
            end = rng.randrange(whole.length + 1)
            begin = rng.randrange(end + 1)
            found = known.key(end, begin)
            assert (found.begin, found.length, found.namespace, found.bigram) == (begin, end, "a", bigram)
            assert elements(found) == elements(whole)[begin:end]
            match rng.randrange(3):
                case 0:
                    begin = rng.randrange(known.length + 1)
                    tokens = tokens + [rng.randrange(3) for _ in range(rng.randrange(6))]
                    piece = tail(tokens, begin, bigram)
                    assert known.agree(piece)
                    known.extend(piece)
                case 1:
                    length = rng.randrange(known.length + 1)
                    known.cut(length)
                    tokens = tokens[: max(length, prompt) + bigram]
                case 2:
                    begin, other = rng.randrange(known.length + 1), list(tokens)
                    at = rng.randrange(len(other))
                    other[at] += 1
                    end = rng.randrange(begin, known.length + 1)
                    expected = elements(Key(other, bigram=bigram))[begin:end] == elements(whole)[begin:end]
                    assert known.agree(tail(other, begin, bigram).prefix(end)) is expected


def elements(key: Key) -> list[bytes]:
    """Of a key, as the tree would read them."""
    count = key.length - key.begin
    return [bytes(key.data[at * key.width_bytes : (at + 1) * key.width_bytes]) for at in range(count)]


def tail(tokens: list[int], begin: int, bigram: bool) -> Key:
    return Key(tokens, "a", bigram=bigram).tail(begin)


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache([Component(name="full", coverage=Path())], page_size=2, page_counts={"full": 20})


def test_what_a_commit_gives_must_go_on_from_what_is_known(cache: PrefixCache) -> None:
    with cache.acquire(Key([1, 2, 3])) as lease:
        cache.allocate(lease, 9)
        cache.commit(lease, [3, 4], begin=2)
        for tokens, begin, message in (
            ([6], 5, "cannot begin at 5"),
            ([5], -1, "begin"),
            ([5], 1.5, "begin"),
            ([9, 5], 3, "token 3 of those committed differs"),
            ([3, 9], 2, "token 3 of those committed differs"),
            ([9] * 20, 2, "has pages for 9 tokens, so 22 cannot be committed"),
            (4, 1, "counts from the first"),
            ([1], 0, "the first 4 tokens of .* are committed, so a commit of the first 1 adds nothing"),
        ):
            with pytest.raises(LeaseError, match=message):
                cache.commit(lease, tokens, begin=begin)  # type: ignore[arg-type]
        assert lease.known_tokens == 4
        cache.commit(lease, [5, 6], begin=4)
    assert cache.explain(Key([1, 2, 3, 4, 5, 6, 7])).device_length == 6
