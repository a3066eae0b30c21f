"""Types of `transformers`: what its own cache keeps of tiny models, and which of all its types are read."""

from __future__ import annotations

from collections import Counter

import pytest
from tiny_caches import OWN, said_by, tiny
from transformers import AutoConfig
from transformers.models.auto import modeling_auto

from unified_tree.components import from_hf_config
from unified_tree.components.class_defaults import WRAPPED
from unified_tree.components.hf_config import READERS
from unified_tree.terms.errors import ConfigurationError


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
