"""Nothing of a model's file is read past: what could change what is cached is understood, or is an error that names it."""

from __future__ import annotations

from typing import Any

import pytest

from unified_tree.components import from_hf_config
from unified_tree.components.models import MODEL_FACTS
from unified_tree.declare.coverage import Chunked
from unified_tree.terms.errors import ConfigurationError

LLAMA: dict[str, Any] = {**MODEL_FACTS["llama-3.1-8b"], "num_hidden_layers": 4, "vocab_size": 1000}
MIXED = ["sliding_attention"] * 3 + ["full_attention"]


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_kinds_that_engines_read_differently_are_refused(model_type: str) -> None:
    given = {**LLAMA, "model_type": model_type, "layer_types": MIXED, "sliding_window": 128}
    with pytest.raises(ConfigurationError, match=r"'layer_types' names layers .* vLLM follows it .* SGLang"):
        from_hf_config(given)
    whole = from_hf_config({**given, "layer_types": None, "sliding_window": None})
    assert whole.bytes_per_token() == {"full": 4 * 8 * 256 * 2}


@pytest.mark.parametrize(
    "quantized",
    [
        {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"}},
        {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"},
        {"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}},
    ],
)
def test_a_quantized_cache_has_the_engines_bytes(quantized: Any) -> None:
    model = from_hf_config({**LLAMA, "quantization_config": quantized})
    assert model.bytes_per_token() == {"full": 4 * 8 * 256}
    assert "fp8" in model.notes[0]
    assert from_hf_config({**LLAMA, "quantization_config": quantized}, kv_dtype="bf16").bytes_per_token() == {
        "full": 4 * 8 * 512
    }


@pytest.mark.parametrize("scheme", [{"num_bits": 4, "type": "int"}, {"num_bits": 8, "type": "float", "strategy": "token"}])
def test_an_unknown_quantized_cache_is_refused(scheme: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"quantization_config\.kv_cache_scheme"):
        from_hf_config({**LLAMA, "quantization_config": {"kv_cache_scheme": scheme}})


def test_the_dtype_of_states_is_the_files() -> None:
    given = MODEL_FACTS["qwen3-next-80b-a3b"]
    half = from_hf_config({**given, "mamba_ssm_dtype": "bfloat16"})
    assert half.bytes_per_state() == {"mamba": 36 * (8192 * 3 * 2 + 32 * 128 * 128 * 2)}
    assert from_hf_config({**given, "mamba_ssm_dtype": "float32"}) == from_hf_config(given)


def test_shared_indexers_keep_no_keys_in_any_sparse_model() -> None:
    model = from_hf_config({**MODEL_FACTS["deepseek-v3.2"], "index_topk_freq": 4})
    assert model.bytes_per_token()["indexer"] == 16 * 132


def test_published_names_of_known_types() -> None:
    kimi, mimo, v3 = (MODEL_FACTS[name] for name in ("kimi-linear-48b-a3b", "mimo-v2-flash", "deepseek-r1"))
    assert from_hf_config({"model_type": "kimi_k3", "text_config": kimi}) == from_hf_config(kimi)
    assert from_hf_config({**mimo, "model_type": "mimo_v2"}) == from_hf_config(mimo)
    plain = from_hf_config(v3)
    assert from_hf_config({**v3, "model_type": "kimi_k2"}) == plain
    assert from_hf_config({"model_type": "kimi_k25", "text_config": {**v3, "model_type": "kimi_k2"}}) == plain


ANSWERED: list[tuple[str, dict[str, Any]]] = [
    ("llama-3.1-8b", {"attention_dropout": 0.1, "use_cache": False, "attention_bias": True}),
    ("llama-3.1-8b", {"layer_types": ["full_attention"] * 32}),
    ("llama-3.1-8b", {"rope_scaling": {"factor": 8}, "unheard_of": 1}),
    ("llama-3.1-8b", {"attention_sink_size": None, "kv_share_every": 0, "sliding_window": False}),
    ("gpt-oss-20b", {"layer_types": ["sliding_attention", "full_attention"] * 12, "swiglu_limit": 7.0}),
    ("deepseek-r1", {"num_nextn_predict_layers": 1, "num_key_value_heads": 128, "n_group": 8}),
    ("qwen3-next-80b-a3b", {"partial_rotary_factor": 0.25}),
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama-3.1-8b", {"sliding_window": 4096}, "sliding_window"),
    ("llama-3.1-8b", {"attention_chunk_size": 8192}, "attention_chunk_size"),
    ("llama-3.1-8b", {"attention_sink_size": 4}, "attention_sink_size"),
    ("llama-3.1-8b", {"num_sink_tokens": 4}, "num_sink_tokens"),
    ("llama-3.1-8b", {"num_kv_shared_layer": 4}, "num_kv_shared_layer"),
    ("llama-3.1-8b", {"cla_share_factor_kv": 2}, "cla_share_factor_kv"),
    ("llama-3.1-8b", {"kv_compression_ratio": 4}, "kv_compression_ratio"),
    ("llama-3.1-8b", {"kv_lora_rank": 512}, "kv_lora_rank"),
    ("llama-3.1-8b", {"v_head_dim": 64}, "v_head_dim"),
    ("llama-3.1-8b", {"index_head_dim": 128}, "index_head_dim"),
    ("llama-3.1-8b", {"dual_chunk_attention_config": {"chunk_size": 8192}}, "dual_chunk_attention_config"),
    ("llama-3.1-8b", {"sparse_attention_config": {"block": 64}}, "sparse_attention_config"),
    ("llama-3.1-8b", {"ssm_state_size": 128}, "ssm_state_size"),
    ("llama-3.1-8b", {"num_key_value_heads": None, "num_kv_heads": 8}, "num_kv_heads"),
    ("llama-3.1-8b", {"head_dimension_kv": 64}, "head_dimension_kv"),
    ("llama-3.1-8b", {"per_layer_config": {"3": {"cache_heads": 2}}}, "per_layer_config"),
    ("llama-3.1-8b", {"num_key_value_heads": [8, 8]}, "num_key_value_heads"),
    ("qwen3-32b", {"use_sliding_window": True, "sliding_window": 4096}, "max_window_layers"),
    ("gpt-oss-20b", {"sliding_window": None, "window_size": 128}, "sliding_window"),
    ("gpt-oss-20b", {"local_attention_window": 64}, "local_attention_window"),
    ("gpt-oss-20b", {"swa_layer_ratio": 3}, "swa_layer_ratio"),
    ("deepseek-v3.2", {"index_kpool_stride": 4}, "index_kpool_stride"),
    ("deepseek-r1", {"qk_rope_head_dim": None, "rope_head_dim_qk": 64}, "qk_rope_head_dim"),
    ("qwen3-next-80b-a3b", {"linear_conv_kernel_dim": None}, "linear_conv_kernel_dim"),
    ("qwen3-next-80b-a3b", {"linear_state_groups": 2}, "linear_state_groups"),
    ("kimi-linear-48b-a3b", {"linear_attn_config": {"num_heads": 2, "head_dim": 8, "state_pool": 2}}, "linear_attn_config"),
    ("nemotron-h-8b", {"mamba_n_groups": 4}, "given twice"),
    ("nemotron-h-8b", {"n_shared_mamba_states": 2}, "n_shared_mamba_states"),
    ("mimo-v2-flash", {"hybrid_layer_pattern": [2] * 48}, "hybrid_layer_pattern"),
    ("gemma-3-27b", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
]


@pytest.mark.parametrize(("name", "change"), ANSWERED)
def test_a_field_that_changes_nothing_is_no_error(name: str, change: dict[str, Any]) -> None:
    assert from_hf_config({**MODEL_FACTS[name], **change}) == from_hf_config(MODEL_FACTS[name])


@pytest.mark.parametrize(("name", "change", "named"), REFUSED)
def test_a_field_that_is_not_understood_is_named(name: str, change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        from_hf_config({**MODEL_FACTS[name], **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("gpt-oss-20b", "num_key_value_heads"),
        ("gemma-3-27b", "head_dim"),
        ("mimo-v2-flash", "v_head_dim"),
        ("nemotron-h-8b", "num_key_value_heads"),
        ("qwen3-next-80b-a3b", "head_dim"),
    ],
)
def test_a_missing_field_that_nothing_says_is_an_error(name: str, field: str) -> None:
    """The class has a number of its own for it, which other fields do not give."""
    with pytest.raises(ConfigurationError, match=f"{field}' is missing"):
        from_hf_config({key: value for key, value in MODEL_FACTS[name].items() if key != field})


def test_who_knows_better_ignores_a_field() -> None:
    given = {**LLAMA, "attention_sink_size": 4, "num_sink_tokens": 2}
    with pytest.raises(
        ConfigurationError, match=r"--ignore attention_sink_size --ignore num_sink_tokens; if so, describe .* full"
    ):
        from_hf_config(given)
    assert from_hf_config(given, ignore=["attention_sink_size", "num_sink_tokens"]) == from_hf_config(LLAMA)
    nested = {"model_type": "llava", "text_config": given}
    assert from_hf_config(nested, ignore=["text_config.attention_sink_size", "num_sink_tokens"]) == from_hf_config(LLAMA)
    for wrong in (["head_cache"], ["text_config.x"]):
        with pytest.raises(ConfigurationError, match="ignore: the file has no field"):
            from_hf_config(given, ignore=wrong)
    with pytest.raises(ConfigurationError, match="ignore must be a list"):
        from_hf_config(given, ignore="x")


def test_an_unknown_type_is_read_by_its_standard_fields_and_says_so() -> None:
    model = from_hf_config({**LLAMA, "model_type": "llama9", "layer_types": MIXED, "sliding_window": 128})
    assert model.bytes_per_token() == {"full": 8 * 512, "swa": 3 * 8 * 512}
    assert any("'llama9' is not known" in note for note in model.notes)
    with pytest.raises(
        ConfigurationError, match=r"layer_types.* is missing.*components: \[\{name: full, coverage: path, layers: 0-3"
    ):
        from_hf_config({**LLAMA, "model_type": "llama9", "sliding_window": 128})
    for change in ({"num_key_value_heads": None}, {"vocab_size": None}, {"is_encoder_decoder": True}, {"patch_size": 14}):
        with pytest.raises(ConfigurationError, match="this model type is not known"):
            from_hf_config({**LLAMA, "model_type": "llama9", **change})
    linear = ["linear_attention"] * 3 + ["full_attention"]
    with pytest.raises(ConfigurationError, match="whose state the fields do not say"):
        from_hf_config({**LLAMA, "model_type": "llama9", "layer_types": linear})


def test_llama_4_attends_in_chunks() -> None:
    given = {**LLAMA, "model_type": "llama4_text", "attention_chunk_size": 8192, "head_dim": 128, "num_local_experts": 16}
    model = from_hf_config(given | {"num_experts_per_tok": 1})
    assert {c.name: c.coverage for c in model.components if c.name != "full"} == {"chunked": Chunked(8192)}
    assert model.bytes_per_token() == {"full": 8 * 512, "chunked": 3 * 8 * 512}


def test_layers_of_other_sizes_and_shared_kv() -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    text = {**LLAMA, "model_type": "gemma4_text", "head_dim": 256, "layer_types": kinds, "sliding_window": 512}
    own = from_hf_config(text | {"num_global_key_value_heads": 2, "attention_k_eq_v": True, "global_head_dim": 512})
    assert own.bytes_per_token() == {"full": 2 * 2 * 1024 * 2, "swa": 2 * 8 * 512 * 2}
    shared = from_hf_config(text | {"num_kv_shared_layers": 2})
    assert shared.bytes_per_token() == {"full": 8 * 1024 * 2, "swa": 8 * 512 * 2}
    uneven = from_hf_config({**LLAMA, "num_key_value_heads": [8, 8, 4, 8]})
    assert uneven.bytes_per_token() == {"full": 3 * 8 * 512, "full_2": 4 * 512}
    assert {c.name: c.shares for c in uneven.components} == {"full": None, "full_2": "full"}


def test_sparse_mla_in_the_engines_fp8() -> None:
    model = from_hf_config(MODEL_FACTS["deepseek-v3.2"], kv_dtype="fp8_ds_mla", index_dtype="fp8_scaled")
    assert model.bytes_per_token() == {"full": 61 * 656, "indexer": 61 * 132}
