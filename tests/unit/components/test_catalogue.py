"""62 released models, from files with their geometry, against the catalogue of `kvcache-simulator`, a test's package."""

from __future__ import annotations

from typing import Any

import pytest

from unified_tree.components import Composition, from_hf_config

MOE = {"hidden_size": 4096, "intermediate_size": 8192, "vocab_size": 1000}
MLA_SIZES = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
MLA_MOE = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "first_k_dense_replace": 1}


def file_of(model: dict[str, Any]) -> dict[str, Any]:
    """A `config.json` with that geometry, by the fields of the family's published files."""
    fields, formula, layers = model["fields"], model["formula"], int(model["fields"]["num_hidden_layers"])
    heads = int(fields.get("num_attention_heads", fields.get("num_key_value_heads", 8)))
    base = {**MOE, "num_hidden_layers": layers, "num_attention_heads": heads}
    mla = {**base, **MLA_MOE, "q_lora_rank": 1536, **{name: fields.get(name, 128) for name in MLA_SIZES}}
    index = {name: fields[name] for name in ("index_head_dim", "index_n_heads", "index_topk") if name in fields}
    index |= {name: fields[name] for name in ("index_topk_freq", "index_skip_topk_offset", "index_kpool") if name in fields}
    grouped = {**base, **{name: fields[name] for name in ("num_key_value_heads", "head_dim") if name in fields}}
    if formula == "standard_gqa":
        kind = {"Qwen3": "qwen3", "Qwen2.5": "qwen2", "Cohere": "cohere", "MiniMax": "minimax_m2"}.get(model["family"], "llama")
        extra = {name: fields[name] for name in ("sliding_window", "use_sliding_window", "max_window_layers") if name in fields}
        return {"model_type": kind, **grouped, **extra}
    if formula == "mla":
        kind = "kimi_k2" if model["family"] == "Kimi" else "deepseek_v3"
        text = {**mla, "num_attention_heads": 64, "model_type": kind}
        return {"model_type": "kimi_k25", "text_config": text} if kind == "kimi_k2" else text
    if formula == "dsa_mla":
        kind = "glm_moe_dsa" if model["family"] == "GLM" else "deepseek_v32"
        return {"model_type": kind, **mla, **index, "num_attention_heads": 64}
    if formula in ("kimi_kda_mla_hybrid", "kimi_kda_dsa_mla_hybrid"):
        whole = int(fields["full_attention_layers"])
        numbers = [4 * (i + 1) for i in range(whole)]
        numbers = [min(number, layers) for number in numbers]
        kda = [number for number in range(1, layers + 1) if number not in numbers]
        linear = {"head_dim": fields["kda_head_dim"], "num_heads": fields["kda_num_heads"]}
        linear |= {"short_conv_kernel_size": fields["kda_conv_kernel_size"], "kda_layers": kda, "full_attn_layers": numbers}
        text = {**mla, **index, "num_attention_heads": 64, "linear_attn_config": linear}
        inner = "kimi_linear" if formula == "kimi_kda_mla_hybrid" else "glm5_next_text"
        outer = "kimi_k3" if formula == "kimi_kda_mla_hybrid" else "glm5_next"
        return {"model_type": outer, "text_config": {**text, "model_type": inner}}
    if formula == "qwen_linear_full_hybrid":
        names = ("conv_kernel_dim", "key_head_dim", "value_head_dim", "num_key_heads", "num_value_heads")
        states = {f"linear_{name}": fields[f"linear_{name}"] for name in names}
        text = {"model_type": "qwen3_5_text", **grouped, **states, "full_attention_interval": 4}
        if "mamba_ssm_dtype" in fields:
            text["mamba_ssm_dtype"] = fields["mamba_ssm_dtype"]
        return {"model_type": "qwen3_5", "text_config": text}
    if formula == "mixed_full_sliding_gqa":
        return _windows(model, grouped)
    if formula == "minimax_msa":
        dense, sparse = int(fields["full_attention_layers"]), int(fields["sparse_attention_layers"])
        published = {
            "sparse_attention_freq": [0] * dense + [1] * sparse,
            "sparse_index_dim": fields["index_head_dim"],
            "sparse_num_index_heads": fields["index_n_heads"],
            "sparse_block_size": fields["index_block_size"],
            "sparse_topk_blocks": fields["index_topk_blocks"],
            "sparse_local_block": fields["index_local_blocks"],
        }
        text = {"model_type": "minimax_m3_vl_text", **grouped, "sparse_attention_config": published}
        return {"model_type": "minimax_m3_vl", "text_config": text}
    if formula == "deepseek_v4_hybrid":
        own = {name: fields[name] for name in ("head_dim", "sliding_window", "compress_ratios", "index_head_dim", "index_topk")}
        more = {"q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024, "hc_mult": 4, "index_n_heads": 64}
        return {"model_type": "deepseek_v4", **base, **own, **more, **MLA_MOE, "num_attention_heads": 64}
    if formula == "inkling_hybrid":
        text = {**grouped, **{name: fields[name] for name in fields if name.startswith("swa_")}, "model_type": "inkling_text"}
        text |= {"sliding_window_size": fields["sliding_window_size"], "sconv_kernel_size": fields["sconv_kernel_size"]}
        return {"model_type": "inkling_mm_model", "text_config": {**text, "hidden_size": fields["hidden_size"]}}
    if formula == "dots3_note_hybrid":
        own = {
            name: fields[name] for name in ("swa_kv_lora_rank", "swa_qk_rope_head_dim", "sliding_window", "sliding_window_size")
        }
        text = {**mla, **index, "index_topk": 2048, **own, "num_attention_heads": 128}
        return {"model_type": "dots3_note", **text}
    own = {
        name: fields[name]
        for name in ("head_dim", "sliding_window", "compress_ratios", "kv_source_layer_ids", "qk_rope_head_dim")
    }
    own |= {name: fields[name] for name in ("index_source_layer_ids", "index_head_dim", "index_n_heads", "index_topk")}
    more = {"q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024, "hc_mult": 4}
    text = {"model_type": "deepseek_v41_text", **base, **own, **more, **MLA_MOE, "num_attention_heads": 64}
    return {"model_type": "deepseek_v41", "text_config": {**text, "num_key_value_heads": 1}}


def _windows(model: dict[str, Any], grouped: dict[str, Any]) -> dict[str, Any]:
    fields = model["fields"]
    layers, whole = int(fields["num_hidden_layers"]), int(fields["full_attention_layers"])
    shared = int(fields.get("num_kv_shared_layers", 0))
    stored = layers - shared
    kinds = ["sliding_attention"] * (stored - whole) + ["full_attention"] * whole
    kinds += ["sliding_attention"] * (shared - 1) + ["full_attention"] * min(1, shared)
    common = {**grouped, "layer_types": kinds, "sliding_window": fields["sliding_window"]}
    if model["family"] == "Gemma":
        text = {
            **common,
            "model_type": "gemma4_text",
            "global_head_dim": fields["global_head_dim"],
            "num_kv_shared_layers": shared,
        }
        if "num_global_key_value_heads" in fields:
            text |= {"num_global_key_value_heads": fields["num_global_key_value_heads"], "attention_k_eq_v": True}
        return {"model_type": "gemma4", "text_config": text}
    if model["family"] == "MiMo":
        own = {name: fields[name] for name in fields if name.startswith(("swa_", "v_head", "sliding_window_size"))}
        text = {**common, **own, **MLA_MOE}
        del text["first_k_dense_replace"], text["layer_types"]
        return {**text, "model_type": "mimo_v2", "hybrid_layer_pattern": [int("sliding" in kind) for kind in kinds]}
    return {"model_type": "cohere2_moe" if "plus" in model["id"] else "cohere2", **common}


calculator = pytest.importorskip("kvcache_sim.calculator", reason="pip install kvcache-simulator==0.1.3")
MODELS = {model["id"]: model for model in calculator.load_models_data()["models"]}
TOKENS = 1 << 20
PAST_ONLY = ("mimo_v2_flash", "cohere2", "cohere2_moe")
"""Types whose files count past tokens in a window; the catalogue counts what the file says."""
OWN_FORMULAS = ("inkling_hybrid", "dots3_note_hybrid", "deepseek_v41_shared")
"""Their command line knows no formula for these; the geometry is checked by itself."""


def our_elements(model: Composition, tokens: int) -> int:
    """Elements of paths and windows at so many tokens, as their calculator counts a window: with the query."""
    total = 0
    for component in model.components:
        assert component.format is not None
        if component.coverage.is_exact or component.name == "overlap":
            continue
        size = sum(part.row_bytes // 2 for part in component.format.parts) * len(component.format.layer_ids)
        window = component.coverage.window_tokens
        kept = tokens if window is None else min(tokens, window + (0 if model.name in PAST_ONLY else 1))
        total += size * (kept // component.tokens_per_slot)
    return total


def test_the_catalogue_is_the_one_that_was_compared() -> None:
    assert len(MODELS) == 62


@pytest.mark.parametrize("name", list(MODELS))
def test_a_released_model_keeps_what_the_catalogue_says(name: str) -> None:
    entry = MODELS[name]
    model = from_hf_config(file_of(entry), kv_dtype="bfloat16", index_dtype="bfloat16")
    fields = entry["fields"]
    components = {component.name: component for component in model.components}
    if entry["formula"] == "deepseek_v41_shared":
        sources = fields["kv_source_layer_ids"]
        kept = {ratio: sum(fields["compress_ratios"][layer] == ratio for layer in sources) for ratio in (1, 2)}
        assert model.bytes_per_token() == {
            **{f"c{ratio}": kept[ratio] * fields["head_dim"] * 2 / ratio for ratio in kept},
            **{f"indexer_{ratio}": kept[ratio] * fields["index_head_dim"] * 2 / ratio for ratio in kept},
            "swa": fields["num_hidden_layers"] * fields["head_dim"] * 2,
        }
        return
    if entry["formula"] in OWN_FORMULAS:
        full, swa = components["full"].format, components["swa"].format
        assert full is not None and swa is not None
        assert len(full.layer_ids) == fields["full_attention_layers"]
        assert len(swa.layer_ids) == fields["sliding_attention_layers"]
        assert components["swa"].coverage.window_tokens == fields["sliding_window"] - 1
        sizes = {name: sum(part.row_bytes for part in each.parts) // 2 for name, each in (("full", full), ("swa", swa))}
        if entry["formula"] == "inkling_hybrid":
            heads = {"full": fields["num_key_value_heads"], "swa": fields["swa_num_key_value_heads"]}
            assert sizes == {name: 2 * count * fields["head_dim"] for name, count in heads.items()}
        else:
            assert sizes == {"full": 512 + 64, "swa": 1024 + 64}
            assert model.bytes_per_token()["indexer"] == 13 * 128 * 2
        return
    if entry["formula"] == "kimi_kda_dsa_mla_hybrid":  # nor for this
        assert our_elements(model, TOKENS) == TOKENS * 11 * 512 + TOKENS // 4 * 11 * 128
        assert model.bytes_per_state() == {"mamba": 34 * (3 * 64 * 128 * 3 * 2 + 64 * 128 * 128 * 4)}
        return
    _, groups = calculator._calculate_byte_groups(entry, TOKENS, False, True, None)
    assert our_elements(model, TOKENS) == sum(group["elements"] for group in groups if "elements" in group)
    states = sum(group["bytes_per_sequence"] for group in groups if "bytes_per_sequence" in group)
    assert sum(model.bytes_per_state().values()) == states
