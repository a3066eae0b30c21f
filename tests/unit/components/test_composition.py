"""FLOPs against a token-by-token sum, budgets, and the path-only twin."""

from __future__ import annotations

import random
from typing import Any

import pytest

from unified_tree.components import AttentionCost, Composition, composition_for, full, model_names, swa
from unified_tree.declare.coverage import Path, Trailing
from unified_tree.terms.errors import ConfigurationError

GIB = 1 << 30


@pytest.mark.parametrize("tokens_per_entry", [1, 4, 128])
@pytest.mark.parametrize("max_entries", [None, 1, 3, 128])
def test_attention_cost_is_the_sum_over_queries(tokens_per_entry: Any, max_entries: Any) -> None:
    cost = AttentionCost(component="x", flops_per_entry=3.0, tokens_per_entry=tokens_per_entry, max_entries=max_entries)
    limit = max_entries or 10**9
    seen = [min((t + 1) // tokens_per_entry, limit) for t in range(2000)]
    for start, end in [(0, 0), (0, 1), (0, 2000), (3, 4), (127, 129), (383, 1999), (1500, 1500)]:
        assert cost.flops(start, end) == 3.0 * sum(seen[start:end])


def one_token_flops(model: Composition, position: int) -> float:
    """The textbook count for one query: weights twice, and every entry it sees."""
    total = sum(c.flops_per_token for c in model.components)
    for cost in model.attention_costs:
        entries = (position + 1) // cost.tokens_per_entry
        total += cost.flops_per_entry * (entries if cost.max_entries is None else min(entries, cost.max_entries))
    return total


@pytest.mark.parametrize("name", model_names())
def test_prefill_flops_is_the_sum_over_tokens(name: Any) -> None:
    model = composition_for(name, draft=1)
    rng = random.Random(name)
    per_token = [one_token_flops(model, t) for t in range(5000)]
    for _ in range(5):
        start, end = sorted(rng.sample(range(5001), 2))
        assert model.prefill_flops(start, end) == pytest.approx(sum(per_token[start:end]), rel=1e-12)
    assert model.prefill_flops(7, 7) == 0


def test_prefill_flops_by_hand() -> None:
    model = composition_for("gpt-oss-120b")
    weights = 36 * (2880 * 64 * 64 * 2 + 2 * 2880 * 8 * 64 + 2880 * 128 + 4 * 3 * 2880 * 2880)
    score = 2 * 64 * (64 + 64)
    assert model.prefill_flops(1000, 1002) == 2 * 2 * weights + 18 * score * (1001 + 1002) + 18 * score * (128 + 128)
    v4 = composition_for("deepseek-v4-flash")
    at_1023 = v4.prefill_flops(1023, 1024) - sum(c.flops_per_token for c in v4.components)
    score = 2 * 64 * (512 + 512)
    assert at_1023 == 43 * score * 128 + 21 * score * 256 + 20 * score * 8 + 21 * 2 * 64 * 128 * 256


def test_prefill_flops_refuses_a_range_that_is_none() -> None:
    for start, end in ((-1, 3), (5, 4)):
        with pytest.raises(ConfigurationError, match="prefill_flops"):
            composition_for("qwen3-32b").prefill_flops(start, end)


def test_a_rebuild_needs_every_required_window_and_no_state() -> None:
    assert composition_for("gpt-oss-120b").rebuild_tokens == 2286
    assert composition_for("gpt-oss-120b").path_only().rebuild_tokens == 0
    assert composition_for("nemotron-h-8b").rebuild_tokens is None
    assert composition_for("nemotron-h-8b").path_only().rebuild_tokens == 0
    assert composition_for("deepseek-v4-flash", draft=1).rebuild_tokens is None


@pytest.mark.parametrize("name", model_names())
def test_path_only_keeps_the_path_and_frees_the_rest(name: Any) -> None:
    model = composition_for(name, draft=1)
    path_only = model.path_only()
    assert path_only.pool_page_bytes() == model.pool_page_bytes()
    for before, after in zip(model.components, path_only.components, strict=True):
        assert after.required == (before.required and isinstance(before.coverage, Path))
        assert (after.name, after.coverage, after.page_bytes) == (before.name, before.coverage, before.page_bytes)


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("device_bytes", [4 * GIB, 16 * GIB + 12345, 640 * GIB])
def test_split_fits_and_spends_the_budget(name: Any, device_bytes: Any) -> None:
    model = composition_for(name)
    sizes = model.pool_page_bytes()
    pages = model.split_budget(device_bytes)
    assert pages.keys() == sizes.keys()
    assert all(count > 0 for count in pages.values())
    spent = sum(pages[pool] * sizes[pool] for pool in pages)
    assert spent <= device_bytes < spent + 2 * sum(sizes.values()) + max(sizes.values()) * 16
    path = sum(pages[c.name] * sizes[c.name] for c in model.components if c.shares is None and isinstance(c.coverage, Path))
    assert path >= 0.5 * device_bytes - 2 * max(sizes.values())


def test_split_sizes_windows_and_states_by_boundaries() -> None:
    model = composition_for("gpt-oss-120b", page_size=64)
    pages = model.split_budget(64 * GIB, tokens_between_boundaries=4096, running_requests=8)
    boundaries = -(-pages["full"] * 64 // 4096) + 8
    assert pages["swa"] == 2 * boundaries
    model = composition_for("kimi-linear-48b-a3b")
    pages = model.split_budget(64 * GIB, tokens_between_boundaries=16384, running_requests=8)
    assert pages["mamba"] == -(-pages["full"] * 64 // 16384) + 8
    states_only = model.split_budget(64 * GIB, tokens_between_boundaries=16384, running_requests=8, min_path_share=0.9)
    assert states_only["full"] > pages["full"]
    assert states_only["mamba"] < pages["mamba"]


def test_split_never_keeps_more_window_than_path() -> None:
    model = composition_for("gemma-3-27b")
    pages = model.split_budget(64 * GIB, tokens_between_boundaries=64, min_path_share=0.0)
    assert pages["swa"] == pages["full"]


def test_split_is_monotone_in_the_budget() -> None:
    model = composition_for("qwen3-next-80b-a3b")
    paths = [model.split_budget(gib * GIB)["full"] for gib in range(1, 60)]
    assert paths == sorted(paths)


@pytest.mark.parametrize("name", model_names())
def test_the_least_budget_named_is_enough(name: Any) -> None:
    model = composition_for(name)
    with pytest.raises(ConfigurationError, match="are needed") as caught:
        model.split_budget(1000)
    needed = int(str(caught.value).split(": ")[-1].split()[0])
    sizes = model.pool_page_bytes()
    pages = model.split_budget(needed)
    assert sum(pages[pool] * sizes[pool] for pool in pages) == needed
    with pytest.raises(ConfigurationError, match="are needed"):
        model.split_budget(needed - 1)
    for component in model.components:
        if component.shares is None:
            window = component.coverage.window_tokens if isinstance(component.coverage, Trailing) else 0
            assert pages[component.name] * model.page_size >= window


def test_split_takes_page_counts_as_they_are() -> None:
    model = composition_for("gpt-oss-20b")
    pages = model.split_budget(8 * GIB, page_counts={"swa": 77})
    assert pages["swa"] == 77
    sizes = model.pool_page_bytes()
    assert pages["full"] == (8 * GIB - 77 * sizes["swa"]) // sizes["full"]
    assert model.split_budget(8 * GIB, page_counts={"full": 1000})["full"] == 1000


def test_split_request_tokens_sets_the_least() -> None:
    model = composition_for("llama-3.1-8b")
    with pytest.raises(ConfigurationError, match=f"request of 8192 tokens: {8192 * 131072} are needed"):
        model.split_budget(GIB // 2, request_tokens=8192)


@pytest.mark.parametrize(
    "options",
    [
        {"tokens_between_boundaries": 0},
        {"running_requests": -1},
        {"min_path_share": 1.5},
        {"request_tokens": 0},
        {"page_counts": {"nothing": 1}},
        {"page_counts": {"full": 0}},
    ],
)
def test_split_refuses_nonsense(options: Any) -> None:
    with pytest.raises(ConfigurationError, match="split_budget"):
        composition_for("llama-3.1-8b").split_budget(GIB, **options)
    with pytest.raises(ConfigurationError, match="device_bytes"):
        composition_for("llama-3.1-8b").split_budget(0)


def test_split_refuses_pages_without_bytes() -> None:
    model = Composition(name="x", page_size=1, components=(full(page_size=1, bytes_per_token=0),))
    with pytest.raises(ConfigurationError, match="page_bytes is 0"):
        model.split_budget(GIB)


def test_a_composition_is_checked_when_built() -> None:
    window = swa(page_size=4, window_tokens=3, layers=2, bytes_per_token=8)
    with pytest.raises(ConfigurationError, match="at least one required Path"):
        Composition(name="x", page_size=4, components=(window,))
    with pytest.raises(ConfigurationError, match="page_size"):
        Composition(name="x", page_size=0, components=(full(page_size=1, bytes_per_token=1),))
