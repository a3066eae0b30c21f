"""Files and fields that cannot be read with certainty end in one line that names them."""

from __future__ import annotations

import json
from pathlib import Path as FilePath
from typing import Any

import pytest
import transformers as hf

from unified_tree.components import from_hf_config
from unified_tree.terms.errors import ConfigurationError

LLAMA = hf.LlamaConfig(num_key_value_heads=8).to_dict()


def test_reads_a_file_or_its_directory(tmp_path: FilePath) -> None:
    hf.Qwen3NextConfig().save_pretrained(tmp_path)
    expected = from_hf_config(hf.Qwen3NextConfig().to_dict())
    assert from_hf_config(tmp_path) == from_hf_config(str(tmp_path / "config.json")) == expected


def test_files_that_cannot_be_read(tmp_path: FilePath) -> None:
    with pytest.raises(ConfigurationError, match=r"missing\.json: cannot be read: No such file"):
        from_hf_config(tmp_path / "missing.json")
    broken = tmp_path / "config.json"
    for text, problem in (("{", "is not JSON"), ("[1]", "must hold a JSON object"), (b"\xff\xfe\x00", "is not JSON")):
        broken.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(ConfigurationError, match=problem) as caught:
            from_hf_config(tmp_path)
        assert "\n" not in str(caught.value)


def test_extra_fields_are_ignored(tmp_path: FilePath) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"rope_scaling": {"factor": 8}, "unheard_of": [1], **LLAMA}))
    assert from_hf_config(path) == from_hf_config(LLAMA)


@pytest.mark.parametrize("model_type", [None, "", 3])
def test_unknown_architecture(model_type: Any) -> None:
    with pytest.raises(ConfigurationError, match="'model_type'"):
        from_hf_config({**LLAMA, "model_type": model_type})


def test_wrapper_without_its_text_config() -> None:
    with pytest.raises(ConfigurationError, match="gemma3: config field 'text_config' must be an object"):
        from_hf_config({"model_type": "gemma3"})


@pytest.mark.parametrize("inner", [["llama"], {"a": 1}, 3])
def test_a_wrapper_with_a_nonsense_type_inside(inner: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"llava: config field 'text_config\.model_type' must be a string"):
        from_hf_config({"model_type": "llava", "text_config": {**LLAMA, "model_type": inner}})


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"])
@pytest.mark.parametrize("value", ["missing", None, 0, -4, 2.5, "32", True, [32]])
def test_a_missing_or_nonsense_field_is_named(field: Any, value: Any) -> None:
    config = {**LLAMA, field: value, "head_dim": 128}
    if value == "missing":
        del config[field]
    with pytest.raises(ConfigurationError, match=f"llama: config field '{field}'"):
        from_hf_config(config)


@pytest.mark.parametrize(
    ("config", "change", "field"),
    [
        (hf.LlamaConfig(), {"head_dim": None, "num_attention_heads": 24, "num_key_value_heads": 8}, "num_attention_heads"),
        (hf.LlamaConfig(), {"num_key_value_heads": 5}, "num_key_value_heads"),
        (hf.GptOssConfig(), {"layer_types": ["full_attention"] * 35 + ["chunked_attention"]}, "layer_types"),
        (hf.GptOssConfig(), {"layer_types": ["full_attention"]}, "layer_types"),
        (hf.GptOssConfig(), {"layer_types": "full_attention"}, "layer_types"),
        (hf.GptOssConfig(), {"layer_types": [3] * 36}, "layer_types"),
        (hf.GptOssConfig(), {"sliding_window": 1}, "sliding_window"),
        (hf.GptOssConfig(), {"sliding_window": None}, "sliding_window"),
        (hf.Qwen3NextConfig(), {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        (hf.Qwen3NextConfig(), {"mlp_only_layers": [48]}, "mlp_only_layers"),
        (hf.NemotronHConfig(), {"layers_block_type": ["attention", "conv"]}, "layers_block_type"),
        (hf.NemotronHConfig(), {"layers_block_type": None}, "layers_block_type"),
        (hf.NemotronHConfig(), {"layers_block_type": None, "hybrid_override_pattern": "M*x"}, "hybrid_override_pattern"),
        (hf.NemotronHConfig(), {"mamba_ssm_cache_dtype": "float3"}, "mamba_ssm_cache_dtype"),
        (hf.BambaConfig(), {"attn_layer_indices": [32]}, "attn_layer_indices"),
        (hf.BambaConfig(attn_layer_indices=[1]), {"mamba_d_head": 32}, "mamba_d_head"),
        (hf.JambaConfig(), {"attn_layer_offset": 8}, "attn_layer_offset"),
        (hf.DeepseekV32Config(), {"kv_lora_rank": None}, "kv_lora_rank"),
        (hf.DeepseekV32Config(), {"q_lora_rank": None}, "q_lora_rank"),
        (hf.DeepseekV32Config(), {"mlp_layer_types": None, "first_k_dense_replace": None}, "first_k_dense_replace"),
        (hf.GlmMoeDsaConfig(), {"indexer_types": ["shared"] * 78}, "indexer_types"),
        (hf.DeepseekV4Config(), {"layer_types": None, "compress_ratios": [8] * 43}, "compress_ratios"),
        (hf.DeepseekV4Config(), {"layer_types": None, "compress_ratios": [4]}, "compress_ratios"),
        (hf.DeepseekV4Config(), {"compress_rates": {"compressed_sparse_attention": 0}}, "compress_rates"),
    ],
)
def test_the_field_it_stumbled_on_is_named(config: Any, change: Any, field: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        from_hf_config({**config.to_dict(), **change})


@pytest.mark.parametrize("options", [{"page_size": 0}, {"tensor_parallel": 0}, {"tensor_parallel": True}])
def test_nonsense_options(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(options))} must be a positive integer"):
        from_hf_config(LLAMA, **options)


@pytest.mark.parametrize("options", [{"kv_dtype": "int3"}, {"kv_dtype": 2}, {"conv_dtype": 0}, {"state_dtype": 1.5}])
def test_nonsense_dtypes(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(options))}: .* is none of float64"):
        from_hf_config(LLAMA, **options)


@pytest.mark.parametrize("rank", [-1, 2, True, 0.0, "0"])
def test_nonsense_ranks(rank: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"rank must be one of 0 … 1, not"):
        from_hf_config(LLAMA, tensor_parallel=2, rank=rank)


def test_config_of_another_type() -> None:
    with pytest.raises(ConfigurationError, match="must be a dictionary or a path, not list"):
        from_hf_config([LLAMA])  # type: ignore[arg-type]
