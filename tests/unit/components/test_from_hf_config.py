"""Bytes, windows, ratios and shares of each family, against arithmetic written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import transformers as hf

from unified_tree.components import Composition, from_hf_config
from unified_tree.components.layers import AttentionLayer, compose
from unified_tree.components.serving import Serving
from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Path, Point, Trailing
from unified_tree.declare.page_format import Part
from unified_tree.terms.errors import ConfigurationError


def parts(composition: Composition) -> dict[str, Component]:
    return {component.name: component for component in composition.components}


def linear_flops(composition: Composition) -> float:
    return sum(component.flops_per_token for component in composition.components)


def test_llama_keeps_keys_and_values_of_every_layer() -> None:
    config = hf.LlamaConfig(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8)
    model = from_hf_config(config.to_dict())
    assert model.page_size == 64
    assert parts(model)["full"].coverage == Path()
    assert model.bytes_per_token() == {"full": 32 * 8 * (128 + 128) * 2}
    assert parts(model)["full"].page_bytes == 64 * 131072
    attention = 4096 * 32 * 128 + 2 * 4096 * 8 * 128 + 32 * 128 * 4096
    assert parts(model)["full"].flops_per_token == 2 * 32 * (attention + 3 * 4096 * 11008)
    assert model.rebuild_tokens == 0


QWEN3_NEXT = hf.Qwen3NextConfig().to_dict()
NEMOTRON = hf.NemotronHConfig(layers_block_type=["linear_attention", "full_attention"]).to_dict()
QWEN3_5_STATES = 24 * (8192 * 3 * 2 + 32 * 128 * 128 * 4)


@pytest.mark.parametrize(
    ("config", "options", "of_a_token", "of_a_state"),
    [
        (hf.LlamaConfig().to_dict() | {"num_key_value_heads": None, "head_dim": None}, {}, {"full": 32 * 32 * 256 * 2}, 0),
        (hf.LlamaConfig(num_key_value_heads=8).to_dict(), {"tensor_parallel": 4}, {"full": 32 * 2 * 256 * 2}, 0),
        (hf.LlamaConfig(num_key_value_heads=8).to_dict(), {"tensor_parallel": 16}, {"full": 32 * 1 * 256 * 2}, 0),
        (
            hf.Qwen3Config(num_hidden_layers=64, num_key_value_heads=8, head_dim=128).to_dict(),
            {},
            {"full": 64 * 8 * 256 * 2},
            0,
        ),
        (hf.MistralConfig(sliding_window=None).to_dict(), {}, {"full": 32 * 8 * 256 * 2}, 0),
        (hf.MixtralConfig(sliding_window=None).to_dict(), {}, {"full": 32 * 8 * 256 * 2}, 0),
        (hf.MiMoV2FlashConfig().to_dict(), {"tensor_parallel": 8}, {"full": 9 * 320 * 2, "swa": 39 * 320 * 2}, 0),
        (hf.Qwen3_5Config().to_dict(), {}, {"full": 8 * 4 * (256 + 256) * 2}, QWEN3_5_STATES),
        (hf.Qwen3_5TextConfig().to_dict(), {}, {"full": 8 * 4 * (256 + 256) * 2}, QWEN3_5_STATES),
        (hf.Qwen3_5MoeConfig().to_dict(), {}, {"full": 10 * 2 * (256 + 256) * 2}, None),
        (hf.KimiLinearConfig().to_dict(), {}, {"full": 6 * 576 * 2}, 21 * (3 * 32 * 128 * 3 * 2 + 32 * 128 * 128 * 4)),
        (
            hf.BambaConfig(attn_layer_indices=[9, 18, 27]).to_dict(),
            {},
            {"full": 3 * 8 * 256 * 2},
            29 * (8704 * 3 * 2 + 128 * 64 * 256 * 4),
        ),
        (hf.FalconH1Config().to_dict(), {}, {"full": 32 * 8 * 256 * 2}, 32 * ((1024 + 2 * 256) * 3 * 2 + 1024 * 256 * 4)),
        (hf.JambaConfig().to_dict(), {}, {"full": 4 * 8 * 256 * 2}, 28 * (8192 * 3 * 2 + 8192 * 16 * 4)),
        (hf.JambaConfig().to_dict(), {"tensor_parallel": 2}, None, 28 * (4096 * 3 * 2 + 4096 * 16 * 4)),
        (NEMOTRON | {"mamba_ssm_cache_dtype": "bfloat16"}, {}, None, 10240 * 3 * 2 + 128 * 64 * 128 * 2),
        (NEMOTRON, {"tensor_parallel": 16}, None, (8 * 64 + 2 * 1 * 128) * 3 * 2 + 8 * 64 * 128 * 4),
        (QWEN3_NEXT, {"tensor_parallel": 4}, None, 36 * ((2 * 4 * 128 + 8 * 128) * 3 * 2 + 8 * 128 * 128 * 4)),
        (QWEN3_NEXT, {"state_dtype": "bfloat16", "conv_dtype": "float32"}, None, 36 * (8192 * 3 * 4 + 32 * 128 * 128 * 2)),
        (hf.DeepseekV3Config().to_dict() | {"first_k_dense_replace": 3}, {}, {"full": 61 * 576 * 2}, 0),
        (hf.DeepseekV32Config().to_dict(), {"tensor_parallel": 8}, {"full": 61 * 576 * 2, "indexer": 61 * 132}, 0),
    ],
    ids=lambda given: given.get("model_type") if isinstance(given, dict) else None,
)
def test_bytes(config: Any, options: Any, of_a_token: dict[str, int] | None, of_a_state: int | None) -> None:
    model = from_hf_config(config, **options)
    assert of_a_token in (None, model.bytes_per_token())
    assert of_a_state in (None, model.bytes_per_state().get("mamba", 0))


def test_kv_dtype_halves_the_bytes() -> None:
    config = hf.LlamaConfig(num_key_value_heads=8).to_dict()
    assert from_hf_config(config, kv_dtype="float8_e4m3fn").bytes_per_token() == {"full": 32 * 8 * 256}
    assert from_hf_config(config, kv_dtype="torch.float32").bytes_per_token() == {"full": 32 * 8 * 256 * 4}
    assert from_hf_config(config, kv_dtype="fp8_e4m3") == from_hf_config(config, kv_dtype="fp8")
    assert from_hf_config(config, kv_dtype="fp8_e5m2") != from_hf_config(config, kv_dtype="fp8")


def test_qwen2_windows_start_at_max_window_layers() -> None:
    config = hf.Qwen2Config(
        num_hidden_layers=10,
        num_key_value_heads=4,
        use_sliding_window=True,
        sliding_window=512,
        max_window_layers=7,
    )
    model = from_hf_config(config.to_dict())
    published = {key: value for key, value in config.to_dict().items() if key != "layer_types"}
    assert model == from_hf_config(published)
    assert model.bytes_per_token() == {"full": 7 * 4 * 256 * 2, "swa": 3 * 4 * 256 * 2}
    assert parts(model)["swa"].coverage == Trailing(511)


def test_qwen2_ignores_a_window_it_does_not_use() -> None:
    published = {**hf.Qwen2Config(num_key_value_heads=4).to_dict(), "sliding_window": 131072, "layer_types": None}
    assert [c.name for c in from_hf_config(published).components] == ["full"]


def test_mistral_with_a_window_everywhere_stands_on_a_path_of_tokens() -> None:
    model = from_hf_config(hf.MistralConfig(sliding_window=4096).to_dict(), page_size=32)
    assert [c.name for c in model.components] == ["tokens", "swa"]
    assert parts(model)["tokens"].coverage == Path()
    assert model.pool_page_bytes() == {"tokens": 1, "swa": 32 * 32 * 8 * 256 * 2}
    assert parts(model)["swa"].coverage == Trailing(4095)
    assert model.rebuild_tokens == 32 * 4095


@pytest.mark.parametrize("draft", [1, hf.LlamaConfig(num_hidden_layers=1).to_dict()])
def test_a_draft_needs_a_layer_whose_pages_it_shares(draft: Any) -> None:
    with pytest.raises(ConfigurationError, match="mistral: no layer attends to the whole prefix"):
        from_hf_config(hf.MistralConfig(sliding_window=4096).to_dict(), draft=draft)


@pytest.mark.parametrize(
    "config", [hf.MambaConfig().to_dict() | {"intermediate_size": None}, hf.FalconMambaConfig().to_dict() | {"expand": 16}]
)
def test_mamba_alone_stands_on_a_path_of_tokens(config: Any) -> None:
    model = from_hf_config(config, page_size=16)
    assert [c.name for c in model.components] == ["tokens", "mamba"]
    assert model.bytes_per_state() == {"mamba": 32 * (1536 * 3 * 2 + 1536 * 16 * 4)}
    assert linear_flops(model) == 2 * 32 * 1536 * (3 * 768 + 4 + 2 * 48 + 2 * 16)
    assert model.rebuild_tokens is None


def test_a_path_without_state_takes_no_share_of_a_budget() -> None:
    model = from_hf_config(hf.MambaConfig().to_dict(), page_size=16)
    state = model.bytes_per_state()["mamba"]
    pages = model.split_budget(1000 * state, tokens_between_boundaries=4096, running_requests=10)
    assert 980 <= pages["mamba"] <= 1000
    assert pages["tokens"] * 16 <= (pages["mamba"] - 10) * 4096 < (pages["tokens"] + 4096) * 16


def test_qwen3_moe_counts_active_experts() -> None:
    model = from_hf_config(hf.Qwen3MoeConfig(num_hidden_layers=2, mlp_only_layers=[0]).to_dict())
    attention = 2048 * 32 * 64 * 2 + 2 * 2048 * 4 * 64
    routed = 2048 * 128 + 8 * 3 * 2048 * 768
    assert linear_flops(model) == 2 * (2 * attention + 3 * 2048 * 6144 + routed)


def test_gpt_oss_alternates_windows() -> None:
    model = from_hf_config(hf.GptOssConfig().to_dict())
    per_layer = 8 * (64 + 64) * 2
    assert model.bytes_per_token() == {"full": 18 * per_layer, "swa": 18 * per_layer}
    assert parts(model)["swa"].coverage == Trailing(127)
    assert parts(model)["swa"].rebuild_tokens == model.rebuild_tokens == 18 * 127 == 2286
    attention = 2880 * 64 * 64 * 2 + 2 * 2880 * 8 * 64
    assert linear_flops(model) == 2 * 36 * (attention + 2880 * 128 + 4 * 3 * 2880 * 2880)


def test_gemma3_five_windows_to_one() -> None:
    config = hf.Gemma3TextConfig(
        hidden_size=5376,
        intermediate_size=21504,
        num_hidden_layers=62,
        num_attention_heads=32,
        num_key_value_heads=16,
        head_dim=128,
        sliding_window=1024,
    )
    model = from_hf_config(config.to_dict())
    per_layer = 16 * (128 + 128) * 2
    assert model.bytes_per_token() == {"full": 10 * per_layer, "swa": 52 * per_layer}
    assert parts(model)["swa"].coverage == Trailing(1023)
    assert model.rebuild_tokens == 52 * 1023
    wrapped = hf.Gemma3Config(text_config=config)
    assert from_hf_config(wrapped.to_dict()) == model


def test_gemma3_wrapper_leaves_out_what_its_class_defaults_to() -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    published = {"model_type": "gemma3", "text_config": text}
    assert from_hf_config(published) == from_hf_config(hf.Gemma3Config(text_config=text).to_dict())
    assert from_hf_config(published).bytes_per_token()["full"] == 5 * 4 * (256 + 256) * 2


def test_bidirectional_gemma3_is_refused() -> None:
    config = hf.Gemma3TextConfig(use_bidirectional_attention=True)
    with pytest.raises(ConfigurationError, match="use_bidirectional_attention"):
        from_hf_config(config.to_dict())


def test_mimo_v2_flash_has_wider_keys_and_more_heads_in_windows() -> None:
    model = from_hf_config(hf.MiMoV2FlashConfig().to_dict())
    assert model.bytes_per_token() == {"full": 9 * 4 * (192 + 128) * 2, "swa": 39 * 8 * (192 + 128) * 2}
    assert parts(model)["swa"].coverage == Trailing(128)
    assert model.rebuild_tokens == 39 * 128


def test_mimo_v2_flash_published_fields_mean_the_same() -> None:
    kept = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"]
    kept += ["head_dim", "v_head_dim", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "model_type"]
    config = hf.MiMoV2FlashConfig().to_dict()
    published = {key: config[key] for key in kept} | {
        "swa_num_key_value_heads": 8,
        "sliding_window": 128,
        "sliding_window_size": 128,
        "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0] + [1, 1, 1, 1, 1, 0] * 7,
        "moe_layer_freq": [0] + [1] * 47,
        "n_shared_experts": None,
    }
    assert from_hf_config(published) == from_hf_config(config)


def test_windows_of_several_sizes_are_components_of_their_own() -> None:
    kv = (Part("k", "int8", (4,)), Part("v", "int8", (4,)))
    windows = (None, 127, 127, 511)
    stack = [[AttentionLayer(parts=kv, weights=1, flops_per_entry=1, window_tokens=window)] for window in windows]
    model = compose("test", stack, Serving(name="test"))
    assert model.bytes_per_token() == {"full": 8, "swa127": 16, "swa511": 8}
    assert model.rebuild_tokens == 2 * 127 + 511


def test_qwen3_next_states() -> None:
    model = from_hf_config(hf.Qwen3NextConfig().to_dict())
    assert model.bytes_per_token() == {"full": 12 * 2 * (256 + 256) * 2}
    conv, recurrent = (2 * 16 * 128 + 32 * 128) * 3 * 2, 32 * 128 * 128 * 4
    assert model.bytes_per_state() == {"mamba": 36 * (conv + recurrent)}
    assert parts(model)["mamba"].coverage == Point()
    assert parts(model)["mamba"].save_grid_tokens == 64
    assert model.rebuild_tokens is None


def test_save_grid_is_a_multiple_of_page_and_chunk() -> None:
    config = hf.Qwen3NextConfig().to_dict()
    assert [parts(from_hf_config(config, page_size=p))["mamba"].save_grid_tokens for p in (1, 48, 256)] == [64, 192, 256]
    bamba = from_hf_config(hf.BambaConfig(attn_layer_indices=[9, 18, 27]).to_dict())
    assert parts(bamba)["mamba"].save_grid_tokens == 256, "its chunk"
    assert parts(from_hf_config(hf.JambaConfig().to_dict(), page_size=16))["mamba"].save_grid_tokens == 16, "it has no chunks"


def test_kimi_linear_published_schedule_counts_layers_from_one() -> None:
    linear = {"full_attn_layers": [3], "kda_layers": [1, 2], "head_dim": 64, "num_heads": 8, "short_conv_kernel_size": 4}
    config = hf.KimiLinearConfig(num_hidden_layers=3).to_dict()
    for name in ("layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim"):
        del config[name]
    model = from_hf_config(config | {"linear_attn_config": linear, "first_k_dense_replace": 1})
    published: dict[str, Any] = {"num_hidden_layers": 3, "linear_attn_config": linear}
    assert model == from_hf_config(hf.KimiLinearConfig(**published).to_dict())
    assert model.bytes_per_token() == {"full": (512 + 64) * 2}
    assert model.bytes_per_state() == {"mamba": 2 * (3 * 8 * 64 * 3 * 2 + 8 * 64 * 64 * 4)}
    with pytest.raises(ConfigurationError, match="linear_attn_config"):
        from_hf_config(config | {"linear_attn_config": linear | {"kda_layers": [1]}, "first_k_dense_replace": 1})
    both = config | {"linear_attn_config": linear, "first_k_dense_replace": 1}
    kinds = ["linear_attention", "linear_attention", "full_attention"]
    assert from_hf_config(both | {"layer_types": kinds}) == model
    with pytest.raises(ConfigurationError, match="'layer_types' names other kinds of layers than 'linear_attn_config'"):
        from_hf_config(both | {"layer_types": kinds[::-1]})


def test_nemotron_h_blocks_without_state_count_towards_the_one_before() -> None:
    pattern = {"hybrid_override_pattern": "-M-*E", "layers_block_type": None}
    config = hf.NemotronHConfig(layers_block_type=["mlp", "mamba", "mlp", "attention", "moe"]).to_dict()
    model = from_hf_config(config)
    assert from_hf_config(config | pattern) == model
    assert model.bytes_per_token() == {"full": 8 * (128 + 128) * 2}
    channels = 128 * 64 + 2 * 8 * 128
    assert model.bytes_per_state() == {"mamba": channels * 3 * 2 + 128 * 64 * 128 * 4}
    assert parts(model)["mamba"].save_grid_tokens == 128
    mamba = 4096 * (128 * 64 + channels + 128) + channels * 4 + 128 * 64 * 4096
    assert parts(model)["mamba"].flops_per_token == 2 * (mamba + 2 * 2 * 4096 * 21504)
    attention = 2 * 4096 * 32 * 128 + 2 * 4096 * 8 * 128
    experts = 4096 * 8 + (2 + 1) * 2 * 4096 * 7688
    assert parts(model)["full"].flops_per_token == 2 * (attention + experts)


def test_bamba_without_attention_stands_on_a_path_of_tokens() -> None:
    assert [c.name for c in from_hf_config(hf.BambaConfig().to_dict()).components] == ["tokens", "mamba"]


def test_deepseek_v32_index_keys_share_the_latents_pages() -> None:
    model = from_hf_config(hf.DeepseekV32Config().to_dict())
    assert model.bytes_per_token() == {"full": 61 * (512 + 64) * 2, "indexer": 61 * 132}
    index = parts(model)["indexer"]
    assert (index.shares, index.required, index.coverage) == ("full", True, Path())
    assert model.pool_page_bytes() == {"full": 64 * 61 * (576 * 2 + 132)}


def test_glm_shared_indexers_keep_no_keys() -> None:
    every = from_hf_config(hf.GlmMoeDsaConfig().to_dict())
    assert every.bytes_per_token() == {"full": 78 * 576 * 2, "indexer": 78 * 132}
    sparse_indexers: dict[str, Any] = {"index_topk_freq": 4}
    some = hf.GlmMoeDsaConfig(**sparse_indexers).to_dict()
    own = some["indexer_types"].count("full")
    assert 0 < own < 78
    assert from_hf_config(some).bytes_per_token()["indexer"] == own * 132
    published = {key: value for key, value in some.items() if key != "indexer_types"}
    assert from_hf_config(published | {"index_topk_freq": 4}) == from_hf_config(some)
    assert from_hf_config(published | {"index_topk_pattern": "F" + "S" * 77}).bytes_per_token()["indexer"] == 132


V4_LAYERS = ["sliding_attention"] * 2 + ["compressed_sparse_attention", "heavily_compressed_attention"] * 20
V4_LAYERS.append("compressed_sparse_attention")


def test_deepseek_v4_components() -> None:
    model = from_hf_config(hf.DeepseekV4Config(layer_types=V4_LAYERS).to_dict())
    assert model.page_size == 128
    assert model.bytes_per_token() == {
        "c4": 21 * 512 * 2 / 4,
        "c128": 20 * 512 * 2 / 128,
        "indexer": 21 * 128 * 2 / 4,
        "swa": 43 * 512 * 2,
        "overlap": 21 * 2 * 4 * (512 + 128) * 4 / 128,
    }
    shape = {c.name: (c.coverage, c.tokens_per_slot, c.shares, c.required) for c in model.components}
    assert shape == {
        "c4": (Path(), 4, None, True),
        "c128": (Path(), 128, "c4", True),
        "indexer": (Path(), 4, "c4", True),
        "swa": (Trailing(127), 1, None, True),
        "overlap": (Trailing(4), 1, "swa", True),
    }
    assert model.rebuild_tokens is None


def test_deepseek_v4_published_ratios_are_the_same_schedule() -> None:
    config = hf.DeepseekV4Config(layer_types=V4_LAYERS).to_dict()
    published = {key: value for key, value in config.items() if key not in ("layer_types", "compress_rates")}
    ratios = [0, 0] + [4, 128] * 20 + [4, 0]
    assert from_hf_config(published | {"compress_ratios": ratios}) == from_hf_config(config)
    default = from_hf_config(published)
    assert default == from_hf_config(hf.DeepseekV4Config().to_dict())


def test_deepseek_v4_without_one_kind_of_layer() -> None:
    heavy = ["sliding_attention", "heavily_compressed_attention"]
    model = from_hf_config(hf.DeepseekV4Config(num_hidden_layers=2, layer_types=heavy).to_dict())
    assert {c.name: c.shares for c in model.components} == {"c128": None, "swa": None}
    sparse = ["compressed_sparse_attention"] * 2
    model = from_hf_config(hf.DeepseekV4Config(num_hidden_layers=2, layer_types=sparse).to_dict())
    assert (model.page_size, {c.name: c.shares for c in model.components}) == (
        64,
        {"c4": None, "indexer": "c4", "swa": None, "overlap": "swa"},
    )
    with pytest.raises(ConfigurationError, match="'layer_types' has windows only"):
        from_hf_config(hf.DeepseekV4Config(num_hidden_layers=1, layer_types=["sliding_attention"]).to_dict())


def test_deepseek_v4_page_size_and_other_rates() -> None:
    config = hf.DeepseekV4Config(layer_types=V4_LAYERS).to_dict()
    with pytest.raises(ConfigurationError, match="page_size 64 is not a multiple of tokens_per_slot 128"):
        from_hf_config(config, page_size=64)
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16}
    model = from_hf_config(config | {"compress_rates": rates})
    assert (model.page_size, model.bytes_per_token()["c16"]) == (64, 20 * 512 * 2 / 16)
    same = from_hf_config(config | {"compress_rates": {**rates, "heavily_compressed_attention": 4}})
    assert same.bytes_per_token()["c4"] == 41 * 512 * 2 / 4


def test_flops_do_not_depend_on_ranks() -> None:
    config = hf.Qwen3NextConfig().to_dict()
    assert linear_flops(from_hf_config(config, tensor_parallel=4)) == linear_flops(from_hf_config(config))


@pytest.mark.parametrize(
    ("config", "ranks", "field"),
    [
        (hf.LlamaConfig(num_attention_heads=32), 3, "num_attention_heads"),
        (hf.LlamaConfig(num_attention_heads=24, hidden_size=3072, num_key_value_heads=8), 12, "num_key_value_heads"),
        (hf.Qwen3NextConfig(num_key_value_heads=16, linear_num_key_heads=2), 4, "linear_num_key_heads"),
        (hf.KimiLinearConfig(linear_num_heads=6), 4, "linear_num_heads"),
        (hf.FalconH1Config(mamba_n_groups=4, mamba_n_heads=24, mamba_d_ssm=192), 6, "num_attention_heads"),
    ],
)
def test_an_indivisible_share_names_the_field(config: Any, ranks: Any, field: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"'{field}' .*{ranks} tensor-parallel ranks"):
        from_hf_config(config.to_dict(), tensor_parallel=ranks)


def test_draft_layers_look_like_the_models_own() -> None:
    model = from_hf_config(hf.LlamaConfig(num_key_value_heads=8).to_dict(), draft=1)
    eagle = parts(model)["draft"]
    assert (eagle.shares, eagle.required, eagle.coverage) == ("full", False, Path())
    assert eagle.page_bytes == 64 * 8 * 256 * 2
    assert eagle.flops_per_token == parts(model)["full"].flops_per_token / 32
    assert model.pool_page_bytes() == {"full": 64 * (32 + 1) * 8 * 256 * 2}
    mtp = from_hf_config(hf.DeepseekV32Config().to_dict(), draft=2)
    assert mtp.bytes_per_token()["draft"] == 2 * (576 * 2 + 132)


def test_draft_follows_the_window_in_deepseek_v4() -> None:
    mtp = parts(from_hf_config(hf.DeepseekV4Config(layer_types=V4_LAYERS).to_dict(), draft=1))["draft"]
    assert (mtp.shares, mtp.required, mtp.coverage, mtp.page_bytes) == ("swa", False, Trailing(127), 128 * 512 * 2)


def test_draft_from_its_own_config() -> None:
    eagle = hf.LlamaConfig(num_hidden_layers=1, hidden_size=2880, num_attention_heads=45, num_key_value_heads=5, head_dim=64)
    model = from_hf_config(hf.GptOssConfig().to_dict(), draft=eagle.to_dict(), page_size=32)
    assert parts(model)["draft"].page_bytes == 32 * 5 * (64 + 64) * 2
    v4 = from_hf_config(hf.DeepseekV4Config(layer_types=V4_LAYERS).to_dict(), draft=eagle.to_dict())
    assert (parts(v4)["draft"].shares, parts(v4)["draft"].coverage) == ("c4", Path())
    with pytest.raises(ConfigurationError, match="only a draft of full attention and windows"):
        from_hf_config(hf.LlamaConfig().to_dict(), draft=hf.BambaConfig(attn_layer_indices=[1]).to_dict())
    for wrong in (-1, True):
        with pytest.raises(ConfigurationError, match="draft must be"):
            from_hf_config(hf.LlamaConfig().to_dict(), draft=wrong)
