"""Files of random models that each type's own class wrote, with one field left out or null.

A class fills in what a file leaves out. So such a file must be read as the class completes it, or refused.
"""

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
from unified_tree.terms.errors import ConfigurationError

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
