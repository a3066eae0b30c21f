"""Nemotron-H: Mamba2, full attention, MLP and expert blocks, each a layer of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unified_tree.components.composition import Composition
from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.families.attention_fields import grouped_query, grouped_query_layer
from unified_tree.components.families.schedules import FULL, LINEAR, LIST_FIELDS
from unified_tree.components.families.states import mamba2
from unified_tree.components.layers import AttentionLayer, StateLayer, compose
from unified_tree.components.serving import Serving
from unified_tree.components.weights import plain_mlp

PATTERN_KINDS = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
"""The letters of `hybrid_override_pattern` in published files."""


def read_nemotron_h(fields: ConfigFields, serving: Serving) -> Composition:
    """A block without state counts towards the attention or Mamba2 block before it (the first such block, if none is)."""
    blocks = _blocks(fields)
    fields.understood("num_hidden_layers", "hybrid_override_pattern", "num_query_groups", *LIST_FIELDS)
    if FULL in blocks:
        fields.count("num_key_value_heads")
        fields.count("head_dim", "attention_head_dim")
    attention = grouped_query_layer(fields, serving, grouped_query(fields), 0) if FULL in blocks else None
    recurrent = mamba2(fields, serving) if LINEAR in blocks else None
    stack: list[Sequence[AttentionLayer | StateLayer]] = []
    stateless, last = 0, None
    for number, kind in enumerate(blocks):
        stack.append(())
        if kind == FULL and attention is not None:
            stack[-1], last = [attention], number
        elif kind == LINEAR and recurrent is not None:
            stack[-1], last = [recurrent], number
        else:
            stateless += _stateless_weights(fields, kind)
        if last is not None and stateless:
            [block] = stack[last]
            stack[last] = [replace(block, weights=block.weights + stateless)]
            stateless = 0
    return compose(fields.model_type, stack, serving)


def _blocks(fields: ConfigFields) -> list[str]:
    """`layers_block_type`, or the published `hybrid_override_pattern`; `num_hidden_layers` is ignored, as in `transformers`."""
    for name in reversed(LIST_FIELDS):
        entries = fields.list_of(str, name)
        if entries is not None:
            return fields.kinds(name, len(entries), tuple(PATTERN_KINDS.values()), ())
    pattern = fields.get("hybrid_override_pattern")
    if pattern is None:
        raise fields.error("layers_block_type", "is missing, and so is hybrid_override_pattern")
    if not isinstance(pattern, str) or set(pattern) - set(PATTERN_KINDS):
        raise fields.error("hybrid_override_pattern", f"must be made of the letters {''.join(PATTERN_KINDS)}, not {pattern!r}")
    return [PATTERN_KINDS[letter] for letter in pattern]


def _stateless_weights(fields: ConfigFields, kind: str) -> int:
    """Two matrices an MLP, no gate; experts may work in a latent of `moe_latent_size` between two projections."""
    hidden = fields.count("hidden_size")
    if kind == "mlp":
        return plain_mlp(hidden, fields.count("intermediate_size"))
    latent = fields.optional_count("moe_latent_size")
    experts = fields.count("num_experts_per_tok") * plain_mlp(latent or hidden, fields.count("moe_intermediate_size"))
    shared = plain_mlp(hidden, fields.count("moe_shared_expert_intermediate_size"))
    return hidden * fields.count("n_routed_experts") + experts + shared + 2 * hidden * (latent or 0)
