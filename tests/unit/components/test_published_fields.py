"""Fields of published files that change nothing of what is cached, and some that look as if they did."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoConfig

from unified_tree.components import from_hf_config
from unified_tree.components.config_fields import looks_relevant
from unified_tree.components.hf_config import READERS
from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Path, Trailing
from unified_tree.terms.errors import ConfigurationError

PUBLISHED: list[tuple[str, dict[str, Any]]] = [
    (
        "cohere2",
        {
            "cache_implementation": "hybrid",
            "order_of_interleaved_layers": "local_attn_first",
            "rotary_pct": 1.0,
            "use_embedding_sharing": True,
            "use_gated_activation": True,
            "use_parallel_block": True,
            "use_parallel_embedding": True,
        },
    ),
    ("gemma3_text", {"cache_implementation": "hybrid", "sliding_window_pattern": 6, "rope_local_base_freq": 10000.0}),
    ("gemma3n_text", {"cache_implementation": "hybrid", "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 25}),
    ("llama4_text", {"cache_implementation": "hybrid", "attn_scale": 0.1, "floor_scale": 8192, "use_qk_norm": True}),
    ("exaone4", {"sliding_window_pattern": "LLLG"}),
    (
        "lfm2",
        {
            "block_auto_adjust_ff_dim": True,
            "block_dim": 2560,
            "block_ff_dim": 12288,
            "block_use_swiglu": True,
            "block_use_xavier_init": True,
            "conv_dim": 2560,
            "conv_dim_out": 2560,
            "conv_use_xavier_init": True,
            "num_heads": 32,
        },
    ),
    ("minimax_m2", {"attn_type_list": [1] * 62, "num_mtp_modules": 3, "qk_norm_type": "per_layer", "use_mtp": True}),
    ("jamba", {"mamba_inner_layernorms": True, "use_mamba_kernels": True, "num_logits_to_keep": 1}),
    ("ernie4_5", {"compression_ratio": 1.0, "use_flash_attention": True}),
    ("longcat_flash", {"attention_method": "MLA", "mla_scale_q_lora": True, "mla_scale_kv_lora": True}),
    (
        "hunyuan_v1_dense",
        {
            "head_dim": 128,
            "use_cla": False,
            "cla_share_factor": 2,
            "use_mla": False,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
    ),
    (
        "nemotron_h",
        {"num_query_groups": 8, "mamba_hidden_act": "silu", "use_conv_bias": True, "rescale_prenorm_residual": True},
    ),
    ("deepseek_v4", {"kv_lora_rank": 512, "qk_nope_head_dim": 448, "v_head_dim": 512, "expert_dtype": "fp4"}),
    ("hy_v4", {"gated_mla": True, "learnable_sink": True}),
]


@pytest.mark.parametrize(("model_type", "fields"), PUBLISHED, ids=[name for name, _ in PUBLISHED])
def test_a_published_file_is_read_as_without_these_fields(model_type: str, fields: dict[str, Any]) -> None:
    file = {**AutoConfig.for_model(model_type).to_dict(), "model_type": model_type}
    plain = {**file, "head_dim": fields["head_dim"]} if "head_dim" in fields else file
    assert from_hf_config({**file, **fields}).components == from_hf_config(plain).components


@pytest.mark.parametrize(
    ("model_type", "fields", "named"),
    [
        ("minimax_m2", {"attn_type_list": [0, 1] * 31}, "attn_type_list"),
        ("ernie4_5", {"compression_ratio": 2.0}, "compression_ratio"),
        ("hunyuan_v1_dense", {"head_dim": 128, "use_cla": True, "cla_share_factor": 2}, "use_cla"),
        ("deepseek_v2", {"use_mla": False}, "use_mla"),
        ("zaya", {"layer_types": None, "moe_intermediate_size": None}, "layer_types"),
        ("zaya", {"layer_types": None, "ffn_hidden_size": 4096}, "counts blocks of experts"),
        ("zaya", {"layer_types": None, "zaya_layers": ["a", "b"] * 20}, "zaya_layers"),
        ("zaya", {"layer_types": None, "swa_layers": [1, 0] * 20}, "swa_layers"),
        ("starcoder2", {"layer_types": ["full_attention"] * 30, "sliding_window": 512}, "names full attention alone"),
        ("mistral", {"layer_types": ["full_attention"] * 32, "sliding_window": 512}, "names full attention alone"),
        ("glm5_next_text", {"index_kpool": None}, "index_kpool"),
        ("inkling_text", {"swa_head_dim": None}, "swa_head_dim"),
        ("nemotron_h", {"head_dim": None}, "head_dim"),
        ("mimo_v2_flash", {"hybrid_layer_pattern": [0, 1] * 24}, "other kinds of layers than 'hybrid_layer_pattern'"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 32, "sliding_window": 512}, "use_sliding_window is not true"),
    ],
)
def test_a_field_that_may_change_the_cache_is_refused(model_type: str, fields: dict[str, Any], named: str) -> None:
    file = {**AutoConfig.for_model(model_type).to_dict(), "model_type": model_type, **fields}
    with pytest.raises(ConfigurationError, match=named):
        from_hf_config(file)


@pytest.mark.parametrize("model_type", ["mistral", "ministral"])
def test_a_window_that_a_file_does_not_mention_is_not_guessed(model_type: str) -> None:
    file = AutoConfig.for_model(model_type).to_dict() | {"model_type": model_type, "layer_types": None}
    kept = {key: value for key, value in file.items() if key != "sliding_window"}
    with pytest.raises(ConfigurationError, match=r"'sliding_window' is missing.*null for full"):
        from_hf_config(kept)
    whole = from_hf_config({**kept, "sliding_window": None})
    assert [component.coverage for component in whole.components] == [Path()]


def test_cohere_counts_past_tokens_only() -> None:
    model = from_hf_config(AutoConfig.for_model("cohere2").to_dict())
    assert {c.name: c.coverage.window_tokens for c in model.components} == {"full": None, "swa": 4096}


def test_ling_2_5_keeps_lightning_states() -> None:
    file = {
        "model_type": "bailing_hybrid",
        "hidden_size": 4096,
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "layer_group_size": 4,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "group_norm_size": 4,
        "linear_silu": False,
    }
    model = from_hf_config(file)
    assert model.bytes_per_token() == {"full": 2 * 576 * 2}
    assert model.bytes_per_state() == {"mamba": 6 * 32 * 128 * 128 * 4}
    with pytest.raises(ConfigurationError, match="short_conv_kernel_size"):
        from_hf_config({**file, "kda_lower_bound": -5.0})


def test_deepseek_v4_in_the_engines_bytes() -> None:
    file = AutoConfig.for_model("deepseek_v4").to_dict()
    model = from_hf_config(file, kv_dtype="fp8_ds_mla")
    kept = {c.name: len(c.format.layer_ids) for c in model.components if c.format is not None}
    sizes = model.bytes_per_token()
    assert sizes["swa"] == 584 * kept["swa"]
    assert sizes["c4"] == 146 * kept["c4"] and sizes["indexer"] == 33 * kept["indexer"]


V41: dict[str, Any] = {
    **{key: value for key, value in AutoConfig.for_model("deepseek_v4").to_dict().items() if key != "compress_rates"},
    "model_type": "deepseek_v41_text",
    "layer_types": None,
    "num_hidden_layers": 6,
    "compress_ratios": [0, 2, 2, 1, 1, 1],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 5],
}


def test_deepseek_v41_shares_entries_and_index_keys() -> None:
    model = from_hf_config({"model_type": "deepseek_v41", "text_config": V41})
    assert {c.name: (c.tokens_per_slot, c.shares) for c in model.components} == {
        "c1": (1, None),
        "c2": (2, "c1"),
        "indexer_1": (1, "c1"),
        "indexer_2": (2, "c1"),
        "swa": (1, None),
    }
    assert {c.name: c.format.layer_ids for c in model.components if c.format is not None} == {
        "c1": (3,),
        "c2": (1,),
        "indexer_1": (3,),
        "indexer_2": (1,),
        "swa": tuple(range(6)),
    }
    for wrong in ({"kv_source_layer_ids": [3]}, {"kv_source_layer_ids": [1]}, {"compress_ratios": [0, 4, 2, 1, 1, 1]}):
        with pytest.raises(ConfigurationError, match=r"kv_source_layer_ids|compress_ratios"):
            from_hf_config({**V41, **wrong})


ZAYA = {"ffn_hidden_size": 4096, "moe_intermediate_size": None, "layer_types": None}
"""As ZAYA1 is published: blocks of experts are layers, too."""


@pytest.mark.parametrize(
    "fields",
    [
        {**ZAYA, "num_hidden_layers": 80},
        {**ZAYA, "zaya_layers": ["a", 16] * 40, "num_hidden_layers": 40},
        {**ZAYA, "zaya_layers": ["a", 16] * 40, "cca_num_q_heads": [8, 0] * 40, "num_query_groups_list": [2, 0] * 40},
        {"layer_types": None},
    ],
    ids=["every second", "listed", "heads listed", "as in transformers"],
)
def test_zaya_counts_its_blocks_of_experts_or_not(fields: dict[str, Any]) -> None:
    file = {**AutoConfig.for_model("zaya").to_dict(), "model_type": "zaya"}
    plain = from_hf_config(file)
    model = from_hf_config({**file, **fields})
    assert (model.bytes_per_token(), model.bytes_per_state()) == (plain.bytes_per_token(), plain.bytes_per_state())


@pytest.mark.parametrize("model_type", ["starcoder2", "phi3", "phimoe"])
def test_a_window_below_the_context_is_kept_in_every_layer(model_type: str) -> None:
    """`transformers` and vLLM keep it, SGLang does not."""
    file = {**AutoConfig.for_model(model_type).to_dict(), "model_type": model_type, "max_position_embeddings": 4096}
    short, whole = (from_hf_config({**file, "sliding_window": window}) for window in (2047, 4096))
    assert [c.coverage for c in short.components] == [Path(), Trailing(2046)]
    assert any("SGLang keeps full attention" in note for note in short.notes)
    assert [c.coverage for c in whole.components] == [Path()]
    assert short.bytes_per_token()["swa"] == whole.bytes_per_token()["full"]


def test_the_cross_attention_of_mllama_lies_in_the_pages_of_its_images() -> None:
    """SGLang keeps all 40 layers of Llama 3.2 11B for each token, and an image as tokens in front of the prompt."""
    for model_type in ("mllama", "mllama_text_model"):
        model = from_hf_config({**AutoConfig.for_model(model_type).to_dict(), "model_type": model_type})
        assert model.bytes_per_token() == {"full": 40 * 8 * (128 + 128) * 2}
        assert any("in front of the prompt" in note for note in model.notes)


SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim")
NOT_FIELDS = ("model_type", "transformers_version", "architectures")
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
TYPES = sorted(READERS)


def completed(model_type: str, given: dict[str, Any]) -> dict[str, Any] | None:
    """The file that the class makes of such fields; None where the class refuses them."""
    try:
        fields = AutoConfig.for_model(model_type, **{key: value for key, value in given.items() if key not in NOT_FIELDS})
        return {**fields.to_dict(), "model_type": model_type}
    except Exception:
        return None


def read(file: dict[str, Any]) -> list[Component] | None:
    """The components of a file, without their costs; None for a refusal."""
    try:
        return [replace(component, flops_per_token=0.0) for component in from_hf_config(file).components]
    except ConfigurationError:
        return None


def changed(value: Any, rng: random.Random) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if type(value) is int:
        return rng.choice([max(1, value // 2), value * 2, rng.choice(COUNTS)])
    if value is None:
        return rng.choice([None, *COUNTS])
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        return [rng.choice(sorted(set(value))) for _ in value]
    return value


def silent(model_type: str, seed: int, *, most: int) -> Iterator[str]:
    """The fields, of some at most, whose absence is read otherwise than the class reads it."""
    usual = completed(model_type, {})
    if usual is None:
        return
    rng = random.Random(f"{model_type} {seed}")
    relevant = [name for name in usual if (looks_relevant(name) or name in SIZES) and name not in NOT_FIELDS]
    picked = rng.sample(relevant, min(len(relevant), rng.choice((0, 1, 2, 3))))
    file = completed(model_type, {name: changed(usual[name], rng) for name in picked})
    if file is None:
        return
    for name in rng.sample(relevant, min(len(relevant), most)):
        rest = {key: value for key, value in file.items() if key != name}
        for given, how in ((rest, "left out"), ({**rest, name: None}, "null")):
            ours = read(given)
            whole = None if ours is None else completed(model_type, given)
            if whole is not None and (theirs := read(whole)) != ours:
                yield f"{model_type}, {name} {how}, seed {seed}: {ours} instead of {theirs}"


@pytest.mark.parametrize("model_type", TYPES)
def test_a_field_that_is_left_out_is_what_the_class_makes_of_it_or_refused(model_type: str) -> None:
    assert list(silent(model_type, seed=0, most=8)) == []


@pytest.mark.deep
@pytest.mark.parametrize("model_type", TYPES)
def test_many_models_of_each_type(model_type: str) -> None:
    assert [found for seed in range(1, 60) for found in silent(model_type, seed, most=99)] == []
