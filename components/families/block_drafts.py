"""Draft models with files of their own: what their layers keep, and how the files of DFlash and DSpark say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unified_tree.components.composition import Composition
from unified_tree.components.draft import DraftModel
from unified_tree.components.families.schedules import SLIDING
from unified_tree.components.kinds import is_token_path
from unified_tree.declare.coverage import Trailing
from unified_tree.inputs.given_files import shown
from unified_tree.terms.errors import ConfigurationError

WINDOW_NOTE = (
    "the draft's windows have pages of their own, as in vLLM; SGLang keeps them for every token in the slots of full attention"
)
NESTED = ("dflash_config", "dspark_config")
HARMLESS = (
    "block_size",
    "draft_vocab_size",
    "markov_head_type",
    "markov_rank",
    "mask_token_id",
    "num_target_layers",
    "sample_from_anchor",
    "target_layer_ids",
)
"""Fields of the blocks that such a draft proposes, and of the layers of the model whose states it reads."""


def block_draft(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The file of a DFlash or DSpark draft as that of a model of its type; any other file as it is.

    `layer_types` says which layers have a window, whatever `use_sliding_window` says. If it names none, `use_swa` gives every
    layer the window `swa_window_size`. Raises ConfigurationError for a window without tokens.
    """
    names = [str(name) for name in (values.get("architectures") or ())]
    nested = next((values[name] for name in NESTED if isinstance(values.get(name), Mapping)), None)
    if nested is None and not any(name.startswith(("DFlash", "DSpark")) for name in names):
        return values
    nested = {} if nested is None else nested
    dropped = (*NESTED, *HARMLESS, *(name for name in values if name.startswith(("dflash_", "dspark_"))))
    made = {name: value for name, value in values.items() if name not in dropped}
    kinds, layers = made.get("layer_types"), made.get("num_hidden_layers")
    if nested.get("use_swa") and not (isinstance(kinds, list) and SLIDING in kinds) and type(layers) is int:
        kinds = [SLIDING] * layers
    if not isinstance(kinds, list) or SLIDING not in kinds:
        return {**made, "use_sliding_window": False} if "use_sliding_window" in made else made
    window = nested.get("swa_window_size", made.get("sliding_window"))
    if type(window) is not int:
        raise ConfigurationError(f"draft: config field 'sliding_window' must be a number of tokens, not {shown(window)}")
    used = {"use_sliding_window": True} if str(made.get("model_type")).startswith("qwen") else {}
    return {**made, "layer_types": kinds, "sliding_window": window, **used}


def drafts_of(model: Composition) -> tuple[DraftModel, ...]:
    """A draft's layers by reach: those that attend to the whole prefix first, then one entry a window.

    Raises ConfigurationError for states and chunks, and for layers of the whole prefix that keep different things.
    """
    costs: dict[str, float] = {}
    for cost in model.attention_costs:
        costs[cost.component] = costs.get(cost.component, 0.0) + cost.flops_per_entry
    kept = [(c, c.format) for c in model.components if c.format is not None and not is_token_path(c)]
    paths = [(c, form) for c, form in kept if c.coverage.is_path]
    drafts: list[DraftModel] = []
    for component, form in kept:
        if component.coverage.is_path:
            continue
        if not isinstance(component.coverage, Trailing):
            raise ConfigurationError(
                f"draft {model.name}: has states or chunks, and only a draft of full attention and windows is read here; "
                "describe it beside the model in a file, as a component with required: false (docs/models.md)"
            )
        drafts.append(
            DraftModel(
                layer_ids=form.layer_ids,
                parts=form.parts,
                shard=form.shard,
                flops_per_token=component.flops_per_token,
                flops_per_entry=costs.get(component.name, 0.0),
                name=f"draft_{component.name}",
                window_tokens=component.coverage.window_tokens,
            )
        )
    if not paths:
        return tuple(drafts)
    layer_ids, shard = paths[0][1].layer_ids, paths[0][1].shard
    if any((form.layer_ids, form.shard) != (layer_ids, shard) for _, form in paths):
        raise ConfigurationError(f"draft {model.name}: keeps index keys or other shapes in some of its layers only")
    whole = DraftModel(
        layer_ids=layer_ids,
        parts=tuple(part for _, form in paths for part in form.parts),
        shard=shard,
        flops_per_token=sum(component.flops_per_token for component, _ in paths),
        flops_per_entry=sum(costs.get(component.name, 0.0) for component, _ in paths),
    )
    return (whole, *drafts)
