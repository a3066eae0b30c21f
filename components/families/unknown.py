"""A model type that is not known, read by the fields that most decoders share, and the way out where they do not say enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unified_tree.components.composition import Composition
from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.families import states
from unified_tree.components.families.schedules import FULL, INDEXED, KINDS, LINEAR, LIST_FIELDS, RECURRENT
from unified_tree.components.families.stack import LATENT, Rules, read_stack
from unified_tree.components.serving import Serving

NOT_DECODERS = ("is_encoder_decoder", "image_size", "patch_size", "num_mel_bins", "type_vocab_size", "num_channels")
"""Fields of encoders, and of models of images and sound."""


def read_unknown(fields: ConfigFields, serving: Serving) -> Composition:
    """Full attention of KV heads or latents in every layer, or the kinds that `layer_types` gives them.

    Raises ConfigurationError for a file that does not look like a decoder's, and where fields do not say enough.
    """
    for name in NOT_DECODERS:
        if fields.get(name):
            raise fields.error(name, "is not of a decoder, and this model type is not known")
    if fields.get("vocab_size") is None and fields.get("architectures") is None:
        raise fields.error("vocab_size", "is missing, and this model type is not known; is this a language model?")
    has_latent = fields.get("kv_lora_rank") is not None
    if not has_latent and fields.get("num_key_value_heads") is None:
        raise fields.error("num_key_value_heads", "is missing, and this model type is not known")
    kinds = next((fields.get(name) for name in LIST_FIELDS if isinstance(fields.get(name), list)), None)
    if kinds is None and fields.get("sliding_window") is not None:
        raise fields.error("layer_types", "is missing: sliding_window does not say which layers have the window")
    rules = Rules(kinds=KINDS, known=False, wide=True, attention=LATENT if has_latent else "grouped")
    if kinds is not None:
        named = {str(kind) for kind in kinds}
        rules = replace(rules, otherwise=None, state=_state(fields) if named & {*RECURRENT, "mamba"} else None)
    elif any(fields.get(name) is not None for name in ("index_head_dim", "indexer_types")):
        rules = replace(rules, otherwise=lambda _, layers: [INDEXED] * layers)
    made = read_stack(fields, serving, rules)
    how = "latents" if has_latent else "KV heads"
    fields.notes.append(
        f"the model type {fields.model_type!r} is not known: its standard fields were read ({how}"
        f"{'' if kinds is None else ', ' + LIST_FIELDS[0]}); compare them with the engine's pools"
    )
    return made


def _state(fields: ConfigFields) -> Any:
    """The function that reads the model's recurrent states, where the fields are those of one known kind only."""
    found = []
    if fields.get("linear_num_value_heads") is not None:
        found.append(states.gated_delta_net)
    if fields.get("linear_num_heads", "linear_attn_config") is not None:
        found.append(states.kda)
    if fields.get(*states.GROUPS) is not None and fields.get(*states.HEADS[:3]) is not None:
        found.append(states.mamba2)
    if fields.get("conv_L_cache") is not None:
        found.append(states.short_conv)
    if len(found) != 1:
        raise fields.error("layer_types", f"names {LINEAR} layers whose state the fields do not say")
    return found[0]


def way_out(fields: ConfigFields) -> str:
    """A file that describes the model, filled in as far as the fields say, in one line of YAML, and how to use it."""
    kv, layers = _number(fields, "num_key_value_heads"), fields.get("num_hidden_layers")
    heads, hidden = _number(fields, "num_attention_heads"), _number(fields, "hidden_size")
    dim = _number(fields, "head_dim")
    if dim == "?" and heads != "?" and hidden != "?" and int(heads):
        dim = str(int(hidden) // int(heads))
    parts = f"{{k: [kv, {kv}, {dim}], v: [kv, {kv}, {dim}]}}"
    if fields.get("kv_lora_rank") is not None:
        rank, rope = fields.get("kv_lora_rank"), fields.get("qk_rope_head_dim") or 0
        parts = f"{{latent: [kv, {rank + rope if type(rank) is type(rope) is int else '?'}]}}"
    count = layers if type(layers) is int and 0 < layers < 1 << 14 else 0
    kinds = fields.get(LIST_FIELDS[0])
    groups: dict[str, list[int]] = {}
    for layer in range(count):
        kind = kinds[layer] if isinstance(kinds, list) and len(kinds) == count else FULL
        groups.setdefault(str(kind), []).append(layer)
    components = ", ".join(_component(fields, kind, ids, parts) for kind, ids in (groups or {FULL: []}).items())
    return (
        f"describe its layers in a file and give that in place of the model (--model FILE): "
        f"{{name: {fields.model_type}, page_size: 64, components: [{components}]}}"
    )


def _component(fields: ConfigFields, kind: str, layers: list[int], parts: str) -> str:
    name, coverage = {
        "sliding_attention": ("swa", f"{{window: {_less_one(fields.get('sliding_window'))}}}"),
        "chunked_attention": ("chunked", f"{{chunk: {fields.get('attention_chunk_size') or '?'}}}"),
        "linear_attention": ("mamba", "state"),
        "mamba": ("mamba", "state"),
        "conv": ("conv", "state"),
    }.get(kind, ("full", "path"))
    kept = "{conv: [model, ?, ?], ssm: [state, ?, ?, ?]}" if coverage == "state" else parts
    return f"{{name: {name}, coverage: {coverage}, layers: {numbered(layers)}, parts: {kept}}}"


def numbered(layers: list[int]) -> str:
    """Layer numbers as a file writes them: `0-31`, `3-47:4`, or a list."""
    if not layers:
        return "?"
    step = layers[1] - layers[0] if len(layers) > 1 else 1
    if layers == list(range(layers[0], layers[-1] + 1, step)):
        return f"{layers[0]}-{layers[-1]}" + (f":{step}" if step > 1 else "")
    return str(layers)


def _number(fields: ConfigFields, name: str) -> str:
    value = fields.get(name)
    return str(value) if type(value) is int and value > 0 else "?"


def _less_one(value: Any) -> str:
    return str(value - 1) if type(value) is int and value > 1 else "?"
