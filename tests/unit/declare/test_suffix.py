"""Which tokens a window of any kind needs, against a search over all lengths."""

from __future__ import annotations

import numpy as np
import pytest

from unified_tree import Chunked, Component, ConfigurationError, Key, Path, Trailing
from unified_tree.controllers import PrefixCache
from unified_tree.declare.suffix import Suffix

KINDS = [Suffix(1), Suffix(5), Suffix(64), Suffix(0, 1), Suffix(0, 6), Suffix(0, 64), Suffix(3, 4)]


@pytest.mark.parametrize("suffix", KINDS, ids=lambda s: f"{s.back_tokens}-{s.grid_tokens}")
def test_a_suffix_is_what_its_words_say(suffix: Suffix) -> None:
    for length in range(200):
        starts = [t for t in range(length + 1) if t == 0 or (t % suffix.grid_tokens == 0 and t <= length - suffix.back_tokens)]
        assert suffix.start(length) == starts[-1]
        assert length - suffix.start(length) <= suffix.most_tokens
    assert suffix.starts(np.arange(200)).tolist() == [suffix.start(length) for length in range(200)]
    for position in range(1, 60):
        assert suffix.until(position) == next(p for p in range(position, 400) if suffix.start(p) >= position)
    for size in (1, 4, 16):
        for length in range(0, 200, size):
            assert suffix.pages(length, size) == length // size - suffix.start(length) // size
            free = [at for at in range(0, length + 1, size) if suffix.start(at) == at]
            assert suffix.free_before(length, size) == free[-1]


def test_chunks_fit_only_into_chunks_of_a_multiple() -> None:
    with pytest.raises(ConfigurationError, match="its chunks of 3 tokens do not divide those of 8"):
        PrefixCache(
            [
                Component(name="full", coverage=Path()),
                Component(name="chunk", coverage=Chunked(8)),
                Component(name="odd", coverage=Chunked(3), shares="chunk"),
            ],
            1,
        )
    with pytest.raises(ConfigurationError, match="positive integer"):
        Chunked(0)


def test_a_prompt_resumes_at_a_whole_chunk_whatever_was_evicted() -> None:
    cache = PrefixCache([Component(name="full", coverage=Path()), Component(name="chunk", coverage=Chunked(8))], 2)
    tokens = np.arange(23)
    with cache.acquire(Key(tokens)) as lease:
        cache.allocate(lease, 23)
        cache.commit(lease, tokens)
    found = cache.tree.match_prefix(Key(tokens))
    assert found.device.length == 22
    assert [cache.tree.pages(found.device, name).size for name in ("full", "chunk")] == [11, 3]
    cache.evict({"chunk": 99})
    found = cache.tree.match_prefix(Key(tokens))
    assert found.device.length == 16 and cache.tree.pages(found.device, "chunk").size == 0
    with cache.acquire(Key(tokens)) as lease:
        assert lease.compute_from == 16 and lease.pages("chunk")[:8].tolist() == [-1] * 8
    assert cache.tree.check() == []


def test_a_chunk_needs_less_than_a_window_of_its_size() -> None:
    assert [Chunked(64).pages_needed(length, 16) for length in (48, 64, 80, 128)] == [3, 0, 1, 0]
    assert [Trailing(63).pages_needed(length, 16) for length in (48, 64, 80, 128)] == [3, 4, 4, 4]
