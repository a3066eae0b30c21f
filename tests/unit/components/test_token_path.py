"""Models without a layer that attends to the whole prefix: a cache over windows alone, or over states alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import FalconMambaConfig, MistralConfig

from unified_tree import Key
from unified_tree.components import Composition, from_hf_config, full, swa, token_path
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.pools.device_pool import DevicePool
from unified_tree.controllers.pools.format_header import format_headers

PAGE = 16
MAMBA = from_hf_config(FalconMambaConfig(num_hidden_layers=2).to_dict(), page_size=PAGE)
WINDOWS = from_hf_config(MistralConfig(num_hidden_layers=2, sliding_window=33).to_dict(), page_size=PAGE)
TOKENS = np.arange(160)


def cache_over(model: Composition, **page_counts: int) -> PrefixCache:
    return PrefixCache(model.components, model.page_size, page_counts)


def serve(cache: PrefixCache, tokens: Any) -> int:
    """Run a prompt; how many of its tokens were cached."""
    with cache.acquire(Key(tokens), checkpoints=(len(tokens) // PAGE * PAGE,)) as lease:
        cache.allocate(lease, len(tokens))
        cache.commit(lease, tokens, dict(lease.save_pages))
        return lease.cached_tokens


def test_states_alone_are_resumed_where_they_were_saved_and_nowhere_else() -> None:
    cache = cache_over(MAMBA, tokens=64, mamba=8)
    assert serve(cache, TOKENS[:90]) == 0
    assert serve(cache, TOKENS) == 80
    assert cache.tree.match_prefix(Key(TOKENS[:70])).device.length == 0, "its tokens are known, a state is not"
    cache.tree.evict({"mamba": 8})
    assert cache.tree.match_prefix(Key(TOKENS)).device.length == 0
    assert not cache.tree.check()


def test_windows_alone_are_resumed_at_any_page_that_they_reach() -> None:
    cache = cache_over(WINDOWS, tokens=64, swa=32)
    assert serve(cache, TOKENS[:90]) == 0
    assert serve(cache, TOKENS) == 80
    assert cache.tree.match_prefix(Key(TOKENS[:20])).device.length == PAGE, "there is room for all windows"
    cache.tree.evict({"swa": 5})
    reached = [cache.tree.match_prefix(Key(TOKENS[:length])).device.length for length in (20, 90, 120, 160)]
    assert reached == [0, 80, 80, 160], "what ends no prompt goes first"
    assert not cache.tree.check()


def test_the_path_bounds_how_much_is_remembered() -> None:
    cache = cache_over(MAMBA, tokens=10, mamba=8)
    serve(cache, TOKENS)
    assert serve(cache, TOKENS + 1_000) == 0
    assert cache.tree.match_prefix(Key(TOKENS)).path_length == 0


@pytest.mark.parametrize("model", [MAMBA, WINDOWS])
def test_pools_and_stores_take_its_pages_as_any_others(model: Composition) -> None:
    component = model.components[0]
    assert component.format is not None
    assert DevicePool(component.format, 100).size_bytes == 100
    assert format_headers(model, None)["tokens"] != format_headers(model, None)[model.components[1].name]


def test_a_path_with_state_keeps_its_share_of_a_budget() -> None:
    window = swa(page_size=PAGE, window_tokens=32, layers=2, bytes_per_token=64)
    with_state = Composition(name="x", page_size=PAGE, components=(full(page_size=PAGE, bytes_per_token=1), window))
    without = Composition(name="x", page_size=PAGE, components=(token_path(), window))
    budget: dict[str, Any] = {"tokens_between_boundaries": 64, "running_requests": 2}
    assert with_state.split_budget(1 << 20, **budget)["full"] * PAGE >= 1 << 19
    pages = without.split_budget(1 << 20, **budget)
    assert pages["swa"] * 1024 + pages["tokens"] <= 1 << 20
    assert pages["swa"] * 1024 > 0.95 * (1 << 20)
