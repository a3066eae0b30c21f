"""The kind of each layer: from a list in the file, or by the rule with which a family's class fills in a missing list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from unified_tree.components.config_fields import ConfigFields
from unified_tree.inputs.given_files import shown
from unified_tree.terms.errors import ConfigurationError

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
INDEXED = "indexed_attention"
LINEAR = "linear_attention"
CONV = "conv"
HYBRID = "hybrid"
HYBRID_SLIDING = "hybrid_sliding"
EXPERTS = "moe"
"""A layer that keeps nothing."""
KINDS = (FULL, SLIDING, CHUNKED, INDEXED, LINEAR, CONV, HYBRID, HYBRID_SLIDING)
ATTENDING = (FULL, SLIDING, CHUNKED, INDEXED, HYBRID, HYBRID_SLIDING)
WINDOWED = (SLIDING, HYBRID_SLIDING)
RECURRENT = (LINEAR, CONV, HYBRID, HYBRID_SLIDING)

LIST_FIELDS = ("layer_types", "layers_block_type")

NGRAM_NOTE = "embeddings of n-grams read the tokens before a boundary, which an engine takes from the prompt"

SAYS_KINDS = ("hybrid_layer_pattern", "full_attn_idxs", "attn_type_list", "attn_layer_indices", "local_layer_ids")
"""Fields of published files that say which layers are of which kind."""
WHOLE = {INDEXED: FULL}
"""Files call sparse layers full attention, too."""

Schedule: TypeAlias = Callable[[ConfigFields, int], Sequence[str]]
"""The kinds of so many layers where the file has no list of them."""


def listed(fields: ConfigFields, layers: int, known: Sequence[str], otherwise: Schedule | None) -> list[str]:
    """The file's list, one kind a layer, each of `known`; without it what `otherwise` says, and an error if that is None.

    Lists may go on with the kinds of MTP layers, as many as `num_nextn_predict_layers`.
    """
    contradicted = None
    for name in LIST_FIELDS:
        entries = fields.list_of(str, name)
        if entries is None:
            continue
        extra = fields.get("num_nextn_predict_layers")
        if type(extra) is int and extra > 0 and len(entries) == layers + extra:
            fields = fields.overlaid({name: entries[:layers]})
        kinds = fields.kinds(name, layers, known, ())
        if otherwise is not None:
            with suppress(ConfigurationError):
                said = list(otherwise(fields, layers))  # the class's rule, or the same in another way
                given = next((each for each in SAYS_KINDS if fields.get(each) is not None), _kimi_lists(fields))
                if given is not None and [WHOLE.get(kind, kind) for kind in said] != [WHOLE.get(kind, kind) for kind in kinds]:
                    contradicted = given
        if contradicted is not None:
            raise fields.error(name, f"names other kinds of layers than {contradicted!r}")
        return kinds
    if otherwise is None:
        raise fields.error(LIST_FIELDS[0], "is missing")
    kinds = list(otherwise(fields, layers))
    for position, kind in enumerate(kinds):
        if kind not in known:
            raise fields.error(LIST_FIELDS[0], f"is {kind!r} at layer {position}; known are {', '.join(known)}")
    return kinds


def _kimi_lists(fields: ConfigFields) -> str | None:
    """The field that lists the layers of Kimi Linear, if the file has it."""
    name = "linear_attn_config"
    nested = fields.nested(name)
    return None if nested is None or nested.get("kda_layers") is None else name


def everywhere(kind: str) -> Schedule:
    """Every layer is of one kind."""
    return lambda fields, layers: [kind] * layers  # noqa: ARG005


def every_nth_full(other: str, name: str | None, period: int, *, whole: str = FULL, last_is_full: bool = False) -> Schedule:
    """Every `period`-th layer attends to the whole prefix, unless the field `name` gives another period; the rest are `other`.

    The field may be a string of letters such as `LLLG` (G for global), or a list of window sizes with 0 for none. Both repeat.
    """

    def schedule(fields: ConfigFields, layers: int) -> list[str]:
        given = None if name is None else fields.get(name)
        if isinstance(given, str) and given and set(given) <= {"L", "G"}:
            kinds = [whole if given[layer % len(given)] == "G" else other for layer in range(layers)]
        elif isinstance(given, list) and given and all(type(entry) in (int, bool) for entry in given):
            kinds = [other if given[layer % len(given)] else whole for layer in range(layers)]
        else:
            nth = period if name is None else fields.count(name, default=period)
            kinds = [other if (layer + 1) % nth else whole for layer in range(layers)]
        if last_is_full and kinds:
            kinds[-1] = whole
        return kinds

    return schedule


def first_of_each(other: str, period: int) -> Schedule:
    """Layers 0, `period`, 2 `period` … attend to the whole prefix; the rest are `other`."""
    return lambda fields, layers: [other if layer % period else FULL for layer in range(layers)]  # noqa: ARG005


def counted_from_the_end(other: str, period: int) -> Schedule:
    """The last layer and every `period`-th before it attend to the whole prefix; the rest are `other`."""
    return lambda fields, layers: [other if (layers - 1 - layer) % period else FULL for layer in range(layers)]  # noqa: ARG005


def windowed_if_sized(fields: ConfigFields, layers: int) -> list[str]:
    """A window in every layer if the file names one."""
    return [FULL if fields.get("sliding_window") is None else SLIDING] * layers


def windowed_if_shorter(fields: ConfigFields, layers: int) -> list[str]:
    """A window in every layer if the file names one below the context."""
    return [SLIDING if has_short_window(fields) else FULL] * layers


def has_short_window(fields: ConfigFields) -> bool:
    """Whether `sliding_window` is below the context, as far as the file says how long that is."""
    window, context = fields.get("sliding_window"), fields.get("max_position_embeddings")
    return window is not None and (type(window) is not int or type(context) is not int or window < context)


def windowed_unless_null(fields: ConfigFields, layers: int) -> list[str]:
    """A window in every layer if the file names one, and full attention if it says null (Mistral's first files)."""
    return [SLIDING if has_window(fields) else FULL] * layers


def has_window(fields: ConfigFields) -> bool:
    """Whether `sliding_window` is a number. A file without the field is refused: its class has a window of its own then, and
    not all engines follow that."""
    if fields.get("sliding_window") is None and not fields.says_none("sliding_window"):
        raise fields.error(
            "sliding_window",
            "is missing, for which the class has a window of its own and some engines full attention; add it: null for full "
            "attention, or the window's tokens",
        )
    return fields.get("sliding_window") is not None


def windows_asked_for(fields: ConfigFields) -> bool:
    """`use_sliding_window`, and a window."""
    fields.understood("sliding_window", "max_window_layers")
    if not fields.flag("use_sliding_window") or not has_window(fields):
        return False
    fields.notes.append("SGLang keeps full attention where this file uses a sliding_window; ignore use_sliding_window for that")
    return True


def qwen_windows(fields: ConfigFields, layers: int) -> list[str]:
    """Full attention; with `use_sliding_window`, windows from layer `max_window_layers` on."""
    first = fields.count("max_window_layers", minimum=0) if windows_asked_for(fields) else layers
    return [FULL if layer < first else SLIDING for layer in range(layers)]


def qwen2_moe_windows(fields: ConfigFields, layers: int) -> list[str]:
    """Full attention; with `use_sliding_window`, windows in the even ones of the first `max_window_layers`."""
    last = fields.count("max_window_layers", minimum=0) if windows_asked_for(fields) else 0
    return [SLIDING if layer % 2 == 0 and layer < last else FULL for layer in range(layers)]


def dots1_windows(fields: ConfigFields, layers: int) -> list[str]:
    """Windows from layer `max_window_layers` on, if the file names one."""
    first = layers if fields.get("sliding_window") is None else fields.count("max_window_layers", default=layers, minimum=0)
    return [FULL if layer < first else SLIDING for layer in range(layers)]


def windows_if_used(fields: ConfigFields, layers: int) -> list[str]:
    """Full attention; with `use_sliding_window`, a window in every layer."""
    return [SLIDING if windows_asked_for(fields) else FULL] * layers


def without_rope(fields: ConfigFields, layers: int) -> list[str]:
    """SmolLM3: with `use_sliding_window`, the layers without a rotary embedding have the window."""
    window = fields.get("sliding_window")
    if not fields.flag("use_sliding_window") or window is None:
        return [FULL] * layers
    return [FULL if rope else SLIDING for rope in rope_layers(fields, layers)]


def chunks_with_rope(fields: ConfigFields, layers: int) -> list[str]:
    """Llama 4: layers with a rotary embedding attend within their chunk, every fourth to the whole prefix."""
    return [CHUNKED if rope else FULL for rope in rope_layers(fields, layers)]


def rope_layers(fields: ConfigFields, layers: int) -> list[int]:
    """Whether each layer has a rotary embedding: `no_rope_layers`, or all but every fourth."""
    given = fields.list_of(int, "no_rope_layers")
    if given:
        if len(given) != layers:
            raise fields.error("no_rope_layers", f"has {len(given)} entries for {layers} layers")
        return given
    interval = fields.count("no_rope_layer_interval", default=4)
    return [int((layer + 1) % interval != 0) for layer in range(layers)]


def exaone_windows(fields: ConfigFields, layers: int) -> Sequence[str]:
    """EXAONE 4: every fourth layer full, or all where there is no window."""
    if not has_window(fields):
        fields.understood("sliding_window_pattern")
        return [FULL] * layers
    return every_nth_full(SLIDING, "sliding_window_pattern", 4)(fields, layers)


def cohere2_moe_windows(fields: ConfigFields, layers: int) -> list[str]:
    """The first dense layers have a period of their own."""
    first = fields.count("first_k_dense_replace", default=0, minimum=0)
    prefix = fields.count("prefix_dense_sliding_window_pattern", default=1)
    period = fields.count("sliding_window_pattern", default=4)
    periods = [(layer, prefix) for layer in range(min(first, layers))] + [(layer, period) for layer in range(layers - first)]
    return [SLIDING if (layer + 1) % each else FULL for layer, each in periods]


def mimo_windows(fields: ConfigFields, layers: int) -> list[str]:
    """The published `hybrid_layer_pattern` (1 for a window), or the first and every sixth layer full."""
    pattern = fields.list_of(int, "hybrid_layer_pattern")
    if pattern is None:
        return [FULL if layer == 0 or (layer + 1) % 6 == 0 else SLIDING for layer in range(layers)]
    if len(pattern) != layers or not set(pattern) <= {0, 1}:
        raise fields.error("hybrid_layer_pattern", f"must be {layers} zeros and ones, not {pattern!r}")
    return [SLIDING if entry else FULL for entry in pattern]


def flint_windows(fields: ConfigFields, layers: int) -> list[str]:  # noqa: ARG001
    """The first two layers, every fourth and the last full."""
    return [FULL if i < 2 or i % 4 == 1 or i == layers - 1 else SLIDING for i in range(layers)]


def dots3_windows(fields: ConfigFields, layers: int) -> list[str]:
    """The first two layers and every fourth sparse, windows between them."""
    windows = fields.get("use_sliding_window") is not False
    return [INDEXED if not windows or i < 2 or i % 4 == 1 else SLIDING for i in range(layers)]


def kimi_kinds(fields: ConfigFields, layers: int) -> list[str]:
    """The published lists, which count layers from 1 and must name each exactly once."""
    nested = fields.nested("linear_attn_config")
    if nested is None:
        raise fields.error("layer_types", "is missing, and so is linear_attn_config")
    whole = nested.layer_indices("full_attn_layers", layers, first=1)
    linear = nested.layer_indices("kda_layers", layers, first=1)
    if not whole and not linear:
        raise fields.error("layer_types", "is missing, and linear_attn_config names no layers either")
    if whole & linear or len(whole) + len(linear) != layers:
        raise fields.error("linear_attn_config", f"must name each of {layers} layers once, as full attention or as KDA")
    return [FULL if layer in whole else LINEAR for layer in range(layers)]


def glm5_kinds(fields: ConfigFields, layers: int) -> list[str]:
    """Three KDA layers to one sparse, unless `linear_attn_config` lists them."""
    nested = fields.nested("linear_attn_config")
    if nested is not None and nested.get("kda_layers") is not None:
        return [INDEXED if kind == FULL else kind for kind in kimi_kinds(fields, layers)]
    return [LINEAR if layer % 4 != 3 else INDEXED for layer in range(layers)]


def at_indices(name: str, there: str, other: str, *, otherwise: str | None = None) -> Schedule:
    """Layers whose numbers the field names are of kind `there`; without the field all are `otherwise`."""

    def schedule(fields: ConfigFields, layers: int) -> list[str]:
        if fields.get(name) is None and otherwise is not None:
            return [otherwise] * layers
        named = fields.layer_indices(name, layers)
        return [there if layer in named else other for layer in range(layers)]

    return schedule


def jamba_kinds(fields: ConfigFields, layers: int) -> list[str]:
    """Full attention every `attn_layer_period`."""
    attention = periodic(fields, "attn_layer", layers)
    return [FULL if layer in attention else LINEAR for layer in range(layers)]


def periodic(fields: ConfigFields, prefix: str, layers: int) -> set[int]:
    """The layers that are `{prefix}_offset` modulo `{prefix}_period`."""
    period, offset = fields.count(f"{prefix}_period"), fields.count(f"{prefix}_offset", minimum=0)
    if offset >= period:
        raise fields.error(f"{prefix}_offset", f"must be below {prefix}_period ({period}), not {offset}")
    return set(range(offset, layers, period))


def inkling_kinds(fields: ConfigFields, layers: int) -> list[str]:
    """Windows at `local_layer_ids`, or five to one full layer, all with short convolutions."""
    if fields.get("local_layer_ids") is not None:
        return at_indices("local_layer_ids", HYBRID_SLIDING, HYBRID)(fields, layers)  # type: ignore[return-value]
    return [HYBRID_SLIDING if (layer + 1) % 6 else HYBRID for layer in range(layers)]


def minimax_m3_kinds(fields: ConfigFields, layers: int) -> list[str]:
    """The published `sparse_attention_freq`: 1 for a layer with an indexer."""
    nested = fields.nested("sparse_attention_config")
    pattern = None if nested is None else nested.list_of(int, "sparse_attention_freq")
    if pattern is None:
        return [FULL] * layers
    if len(pattern) != layers or not set(pattern) <= {0, 1}:
        raise fields.error("sparse_attention_config", f"must give {layers} zeros and ones, not {shown(pattern)}")
    return [INDEXED if entry else FULL for entry in pattern]


def minimax_text_kinds(fields: ConfigFields, layers: int) -> list[str]:
    """The published `attn_type_list` (1 for softmax attention, 0 for lightning), or the two in turn as the class has it."""
    pattern = fields.list_of(int, "attn_type_list")
    if pattern is None:
        return [FULL if (layer + 1) % 2 else LINEAR for layer in range(layers)]
    if len(pattern) != layers or not set(pattern) <= {0, 1}:
        raise fields.error("attn_type_list", f"must be {layers} zeros and ones, not {shown(pattern)}")
    return [FULL if entry else LINEAR for entry in pattern]


def bailing_kinds(fields: ConfigFields, layers: int) -> list[str]:
    """Every `layer_group_size`-th layer MLA, KDA between them."""
    period = fields.count("layer_group_size")
    return [LINEAR if (layer + 1) % period else FULL for layer in range(layers)]


def mostly_delta(fields: ConfigFields, layers: int) -> list[str]:
    """OLMo hybrid: every fourth layer full; the last of fewer than four, too."""
    kinds = every_nth_full(LINEAR, None, 4)(fields, layers)
    return list(kinds) if FULL in kinds else [*kinds[:-1], FULL]


def griffin_kinds(fields: ConfigFields, layers: int) -> list[str]:
    """`block_types`, repeated."""
    names = fields.list_of(str, "block_types") or ["recurrent", "recurrent", "attention"]
    if not set(names) <= {"recurrent", "attention"}:
        raise fields.error("block_types", f"must name recurrent and attention blocks, not {shown(names)}")
    return [SLIDING if names[layer % len(names)] == "attention" else LINEAR for layer in range(layers)]


def lfm3_kinds(fields: ConfigFields, layers: int) -> list[str]:  # noqa: ARG001
    """As the class fills them in."""
    return [FULL if i % 4 == 2 else SLIDING if i % 4 == 0 and i > 0 else CONV for i in range(layers)]


def indexer_kinds(fields: ConfigFields, layers: int) -> list[str]:
    """`full` for a layer that runs its own indexer, `shared` for one that reuses the tokens picked before it.

    From `indexer_types`, or `index_topk_pattern` (`F` and `S`), or every `index_topk_freq`-th layer after an offset.
    """
    pattern = fields.get("index_topk_pattern")
    period = max(fields.count("index_topk_freq", default=1, minimum=0), 1)
    offset = fields.count("index_skip_topk_offset", default=2, minimum=0)
    if fields.get("indexer_types") is not None:
        kinds = fields.kinds("indexer_types", layers, ("full", "shared"), ())
    elif isinstance(pattern, str):
        if set(pattern) - {"F", "S"} or len(pattern) != layers:
            raise fields.error("index_topk_pattern", f"must be {layers} letters F or S, not {pattern!r}")
        kinds = ["full" if letter == "F" else "shared" for letter in pattern]
    elif pattern is not None:
        kinds = fields.kinds("index_topk_pattern", layers, ("full", "shared"), ())
    else:
        kinds = ["shared" if max(layer - offset + 1, 0) % period else "full" for layer in range(layers)]
    if kinds[0] == "shared":
        raise fields.error("indexer_types", "makes the first layer share an indexer that no layer before it runs")
    return kinds
