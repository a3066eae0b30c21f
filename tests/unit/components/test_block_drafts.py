"""Drafts with files of their own: DFlash, DSpark, and models of windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unified_tree import Key
from unified_tree.components import Composition, from_hf_config
from unified_tree.controllers import PrefixCache
from unified_tree.declare.coverage import Path, Trailing
from unified_tree.terms.errors import ConfigurationError

MODEL: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
}
DFLASH = {
    **MODEL,
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 3,
    "block_size": 16,
    "num_target_layers": 4,
    "dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 3]},
    "use_sliding_window": False,
}
MIXED = ["sliding_attention", "sliding_attention", "full_attention"]


def drafted(draft: dict[str, Any], **options: Any) -> Composition:
    return from_hf_config(MODEL, draft={**DFLASH, **draft}, page_size=8, **options)


def shown(model: Composition) -> list[Any]:
    found = [c for c in model.components if c.name.startswith("draft")]
    return [(c.name, c.coverage, c.shares, None if c.format is None else c.format.layer_ids) for c in found]


WHOLE = ("draft", Path(), "full", (0, 1, 2))


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, [WHOLE]),
        ({"layer_types": ["full_attention"] * 3, "sliding_window": None}, [WHOLE]),
        ({"sliding_window": 33}, [WHOLE]),  # no layer has it
        (
            {"layer_types": MIXED, "sliding_window": 33},
            [("draft", Path(), "full", (2,)), ("draft_swa", Trailing(32), None, (0, 1))],
        ),
        ({"dflash_config": {"use_swa": True, "swa_window_size": 17}}, [("draft_swa", Trailing(16), None, (0, 1, 2))]),
        (
            {"dflash_config": {"use_swa": True}, "layer_types": MIXED, "sliding_window": 33},
            [("draft", Path(), "full", (2,)), ("draft_swa", Trailing(32), None, (0, 1))],
        ),
        (
            {
                "architectures": ["DSparkDraftModel"],
                "dflash_config": None,
                "dspark_block_size": 8,
                "markov_rank": 4,
                "layer_types": MIXED,
                "sliding_window": 9,
            },
            [("draft", Path(), "full", (2,)), ("draft_swa", Trailing(8), None, (0, 1))],
        ),
    ],
)
def test_the_kinds_of_a_drafts_layers(fields: dict[str, Any], kept: list[Any]) -> None:
    """As in SGLang and vLLM, which follow `layer_types` of such a draft, and `use_swa` where that names no window."""
    model = drafted(fields)
    assert shown(model) == kept
    assert any("windows have pages of their own" in note for note in model.notes) == (len(kept) > 1 or kept[0][0] != "draft")
    assert not any(c.required for c in model.components if c.name.startswith("draft"))
    assert not model.rebuild_tokens  # a draft rebuilds nothing


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"layer_types": MIXED}, "'sliding_window' must be a number of tokens, not null"),
        ({"layer_types": ["linear_attention", *MIXED[1:]], "sliding_window": 9}, "linear_attention"),
        ({"attention_sink_size": 4}, "attention_sink_size"),
    ],
)
def test_what_no_draft_has_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        drafted(fields)


def test_bytes_and_shards_are_those_of_the_draft() -> None:
    model = drafted({"layer_types": MIXED, "sliding_window": 33}, tensor_parallel=2, rank=1)
    assert model.bytes_per_token()["draft"] == 1 * 16 * 2 * 2
    assert model.bytes_per_token()["draft_swa"] == 2 * 16 * 2 * 2
    assert model.pool_page_bytes() == {"full": 8 * (4 + 1) * 64, "draft_swa": 8 * 2 * 64}


def test_a_draft_of_windows_needs_no_layer_of_the_whole_prefix() -> None:
    windows = {**MODEL, "model_type": "mistral", "sliding_window": 64}
    model = from_hf_config(windows, draft={**DFLASH, "layer_types": MIXED[:1] * 3, "sliding_window": 9})
    assert [c.name for c in model.components] == ["tokens", "swa", "draft_swa"]
    with pytest.raises(ConfigurationError, match="no layer attends to the whole prefix"):
        from_hf_config(windows, draft=DFLASH)


def test_a_lost_window_of_the_draft_shortens_no_hit() -> None:
    model = drafted({"layer_types": MIXED, "sliding_window": 33})
    cache = PrefixCache(model.components, 8, model.split_budget(1 << 20))
    prompt = np.arange(200) % 90
    with cache.acquire(Key(prompt)) as lease:
        cache.allocate(lease, len(prompt))
        cache.commit(lease, len(prompt))
    for lost in (False, True):
        if lost:
            cache.device.free_evicted(cache.tree.evict({"draft_swa": cache.tree.pool("draft_swa").evictable_pages}))
        with cache.acquire(Key([*prompt, 1])) as lease:
            assert lease.cached_tokens == 200
            assert bool((lease.pages("draft_swa", 21)[:4] < 0).any()) == lost
    assert cache.tree.check() == []
    cache.close()
