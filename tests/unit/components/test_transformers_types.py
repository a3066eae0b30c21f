"""Types of `transformers`: what its own cache keeps of tiny models, and which of all its types are read."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel
from transformers.models.auto import modeling_auto

from unified_tree.components import Composition, from_hf_config
from unified_tree.components.class_defaults import WRAPPED
from unified_tree.components.hf_config import READERS
from unified_tree.terms.errors import ConfigurationError

SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 8,
    "max_position_embeddings": 512,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 14,
    "n_group": 1,
    "topk_group": 1,
    "index_head_dim": 16,
    "index_n_heads": 8,
    "index_topk": 16,
    "sliding_window": 12,
    "sliding_window_size": 12,
    "attention_chunk_size": 16,
    "shared_intermediate_size": 32,
    "expert_ffn_hidden_size": 32,
    "ffn_hidden_size": 96,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 20,
    "linear_num_heads": 4,
    "linear_head_dim": 16,
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 16,
    "chunk_size": 16,
    "vocab_size_per_layer_input": 128,
    "hidden_size_per_layer_input": 16,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 16,
    "head_dim": 16,
    "d_rel": 4,
    "rel_extent": 8,
    "dense_intermediate_size": 96,
    "shared_experts_intermediate_size": 32,
    "intermediate_size_mlp": 96,
    "moe_hidden_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "moe_topk": 2,
    "num_mem_blocks": 1,
    "shared_expert_intermediate_size": 32,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
}
LATENTS = ("hy_v4", "kimi_linear", "longcat_flash", "mistral_large4_text", "glm_moe_dsa", "dots3_note_text", "minicpm3")
ALTERNATE = ["full_attention", "sliding_attention"] * 4
THREES = (["sliding_attention"] * 2 + ["full_attention"]) * 3 + ["full_attention"]
OWN: dict[str, dict[str, Any]] = {
    "cohere2": {},
    "dots3_note_text": {
        "swa_num_attention_heads": 2,
        "swa_num_key_value_heads": 2,
        "swa_kv_lora_rank": 20,
        "swa_head_dim": 24,
        "swa_qk_nope_head_dim": 12,
        "swa_v_head_dim": 10,
        "swa_q_lora_rank": 16,
    },
    "exaone4": {},
    "falcon": {},
    "gemma2": {},
    "gemma3n_text": {"num_kv_shared_layers": 3, "num_hidden_layers": 10},
    "gemma4_text": {
        "num_kv_shared_layers": 3,
        "num_hidden_layers": 10,
        "layer_types": THREES,
        "global_head_dim": 24,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
    },
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 4, "mamba_d_head": 16},
    "hy_v4": {},
    "inkling_text": {},
    "kimi_linear": {},
    "kolibri1": {},
    "laguna": {"layer_types": ALTERNATE, "num_attention_heads_per_layer": [4, 8] * 4},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 4},
    "lfm3": {},
    "llama4_text": {},
    "longcat_flash": {"head_dim": 8, "num_layers": 3, "num_hidden_layers": 6},
    "mellum": {"layer_types": ALTERNATE},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 5,
        "index_block_size": 8,
        "index_topk_blocks": 2,
        "index_local_blocks": 1,
        "index_n_heads": 2,
    },
    "mistral_large4_text": {},
    "muse_spark_text": {},
    "olmo_hybrid": {},
    "olmo3": {},
    "smollm3": {"use_sliding_window": True},
    "starcoder2": {"sliding_window": 12},
    "qwen4_exp_text": {
        "ple_layer_ids": [2, 5],
        "eos_token_id": 2,
        "hc_count": 2,
        "hc_lowrank": 8,
        "ple_conv_kernel_size": 3,
        "indexer_head_dim": 16,
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
        "ngram_vocab_size_base": 64,
        "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 2,
        "heads_per_ngram": 2,
        "ple_embed_dim": 32,
        "output_gate_type": "sigmoid",
    },
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
}
"""Types, and the fields of their tiny models."""

WHOLE_STATES = {"qwen4_exp_text": 1}
"""The convolutions that keep past inputs only, by type."""
PAST_ONLY = ("cohere2",)
"""Types whose windows `transformers` counts with the query, and SGLang and vLLM without."""

Kept = dict[int, dict[str, Any]]


def tiny(model_type: str) -> tuple[dict[str, Any], Kept]:
    """A tiny model's configuration, and what its cache keeps by layer.

    Elements a token, a window's past tokens, and elements of states without the column that the next token does not read.
    """
    known = AutoConfig.for_model(model_type).to_dict()
    fields = {name: value for name, value in SMALL.items() if known.get(name) is not None or name == "num_key_value_heads"}
    if model_type in LATENTS:
        fields["num_key_value_heads"] = 4
    config: Any = AutoConfig.for_model(model_type, **{**fields, **OWN[model_type]})
    config._experts_implementation = "eager"
    make: Any = AutoModel.from_config
    model = make(config, attn_implementation="eager").eval()
    with torch.no_grad():
        cache = model(input_ids=torch.arange(3, 43)[None], use_cache=True).past_key_values
    whole = WHOLE_STATES.get(model_type)
    found = {i: kept for i, layer in enumerate(cache.layers) if (kept := _of_layer(layer, whole))}
    for kept in found.values() if model_type in PAST_ONLY else ():
        elements, window = kept["token"]
        kept["token"] = (elements, None if window is None else window + 1)
    return config.to_dict(), found


def _of_layer(layer: Any, whole: int | None) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    rows = [t for name in ("keys", "values") if isinstance(t := getattr(layer, name, None), torch.Tensor) and t.numel()]
    if rows:
        window = layer.sliding_window - 1 if getattr(layer, "is_sliding", False) else None
        kept["token"] = (sum(t.shape[1] * t.shape[-1] for t in rows), window)
    for name in ("indexer_keys", "idx_keys"):
        if isinstance(keys := getattr(layer, name, None), torch.Tensor):
            kept["index"] = keys.shape[-1]
    # rows of two dims are tokens, which the prompt has
    convs = {i: t for i, t in (getattr(layer, "conv_states", None) or {}).items() if t is not None and t.ndim == 3}
    states = [t for t in (getattr(layer, "recurrent_states", None) or {}).values() if t is not None]
    if convs or states:
        kept["state"] = sum(t.shape[1] * (t.shape[2] - (i != whole)) for i, t in convs.items()) + sum(
            prod(t.shape[1:]) for t in states
        )
    return kept


def said_by(model: Composition) -> Kept:
    """The same of a composition."""
    kept: Kept = {}
    for component in model.components:
        if component.format is None or component.name == "tokens":
            continue
        elements = sum(prod(part.shape) for part in component.format.parts)
        for layer in component.format.layer_ids:
            own = kept.setdefault(layer, {})
            if component.coverage.is_exact:
                own["state"] = own.get("state", 0) + elements
            elif component.name == "indexer":
                own["index"] = elements
            else:
                own["token"] = (elements, component.coverage.window_tokens)
    return kept


@pytest.mark.parametrize("model_type", OWN)
def test_a_tiny_model_keeps_what_its_composition_says(model_type: str) -> None:
    config, kept = tiny(model_type)
    assert said_by(from_hf_config(config)) == kept


def test_every_type_that_generates_is_read_or_refused_in_one_line() -> None:
    """docs/lab/models.md gives these numbers."""
    types = {*modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES}
    found: Counter[str] = Counter()
    for model_type in sorted(types):
        try:
            config = AutoConfig.for_model(model_type).to_dict()
        except Exception:
            continue
        try:
            model = from_hf_config(config)
        except ConfigurationError as error:
            found["refused" if "\n" not in str(error) else "refused in several lines"] += 1
            continue
        found["generic" if any("is not known" in note for note in model.notes) else "known"] += 1
        assert all(component.page_bytes for component in model.components)
    assert found == {"known": 200, "generic": 11, "refused": 73}


def test_each_model_inside_another_is_of_a_type_that_is_read() -> None:
    assert not {inner for inner in WRAPPED.values() if inner not in READERS and inner not in WRAPPED} - {
        "qwen2_5_omni_thinker",
        "qwen3_omni_moe_thinker",
    }
