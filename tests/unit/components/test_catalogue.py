"""62 released models, from files with their geometry, against the catalogue of another package."""

from __future__ import annotations

import pytest
from catalogue_files import file_of

from unified_tree.components import Composition, from_hf_config

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
