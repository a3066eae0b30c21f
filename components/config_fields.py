"""Reads a `config.json` field by field; a field with an invalid value raises an error that names it.

The reader records the fields that were asked for. A field that was not asked for, and whose name says that it may change what
is cached, is an error, too: see `unread`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unified_tree.inputs.given_files import shown
from unified_tree.terms.errors import ConfigurationError

LEGACY_LAYER_KINDS = {
    "attention": "full_attention",
    "mamba": "linear_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
    "minimax_m3_sparse": "indexed_attention",
}
"""Names of layer kinds in older files, and what `transformers` 5 calls them."""


PER_LAYER = (
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "v_head_dim",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "sliding_window",
)
"""Fields that may hold for some layers only."""

LAYERS = "num_hidden_layers"
MAX_LAYERS = 1 << 14
MAX_COUNT = 1 << 40
"""More than this is taken for a mistake."""


RELEVANT = frozenset(
    [
        "attention",
        "attn",
        "block",
        "blocks",
        "bidirectional",
        "cache",
        "cached",
        "causal",
        "cca",
        "chunk",
        "chunked",
        "compress",
        "compressed",
        "compression",
        "conv",
        "conv1d",
        "cross",
        "csa",
        "delta",
        "dsa",
        "every",
        "freq",
        "full",
        "gdn",
        "gla",
        "global",
        "group",
        "groups",
        "hca",
        "head",
        "heads",
        "hybrid",
        "index",
        "indexed",
        "indexer",
        "indices",
        "interval",
        "kda",
        "key",
        "keys",
        "kpool",
        "kv",
        "lag",
        "latent",
        "layer",
        "layers",
        "lightning",
        "linear",
        "local",
        "lora",
        "lru",
        "mamba",
        "mem",
        "memory",
        "mixer",
        "mla",
        "nsa",
        "ngram",
        "past",
        "pattern",
        "period",
        "pool",
        "prefix",
        "qk",
        "query",
        "ratio",
        "ratios",
        "recurrent",
        "retention",
        "rwkv",
        "sconv",
        "share",
        "shared",
        "sharing",
        "sink",
        "sinks",
        "sliding",
        "source",
        "sparse",
        "ssd",
        "ssm",
        "state",
        "states",
        "stride",
        "swa",
        "types",
        "value",
        "values",
        "window",
        "windows",
        "xlstm",
    ]
)
"""Words of a name that may be about what is cached."""

HARMLESS = frozenset(
    [
        "act",
        "activation",
        "alpha",
        "audio",
        "aux",
        "beta",
        "bias",
        "capping",
        "cap",
        "clip",
        "decoder",
        "dflash",
        "draft",
        "dropout",
        "dt",
        "eagle",
        "eagle3",
        "embedding",
        "emb",
        "embd",
        "encoder",
        "eps",
        "epsilon",
        "expert",
        "experts",
        "factor",
        "ffn",
        "fp32",
        "gate",
        "gating",
        "hash",
        "image",
        "init",
        "initializer",
        "kernels",
        "label",
        "labels",
        "logit",
        "logits",
        "loss",
        "lowrank",
        "mlp",
        "moe",
        "mtp",
        "multiplier",
        "multipliers",
        "mup",
        "nextn",
        "norm",
        "norms",
        "pdrop",
        "prob",
        "probs",
        "projector",
        "rope",
        "rotary",
        "router",
        "route",
        "routed",
        "routing",
        "scale",
        "scaling",
        "softcap",
        "softcapping",
        "softmax",
        "temperature",
        "theta",
        "token_id",
        "threshold",
        "tower",
        "video",
        "vision",
    ]
)
"""Words that say that a name is about something else."""

STRONG = frozenset(
    ["cache", "cached", "compressed", "compression", "kpool", "kv", "sink", "sinks", "sliding", "swa", "window", "windows"]
)
"""Words that are about what is cached whatever else a name says, but for `PLAIN`."""

PLAIN = frozenset(["bias", "dropout", "init", "norm", "norms", "rope", "rotary", "theta"])
"""Words of what is never cached."""

AROUND = frozenset(["attention", "attn", "cache", "cached", "cross", "kv", "mamba", "sink", "sinks", "sliding", "ssm", "swa"])
"""Those of the words that matter around a language model, in a file of a model of vision or audio."""

ALWAYS_RELEVANT = frozenset({"qk_rope_head_dim", "swa_qk_rope_head_dim", "mamba_ssm_dtype", "mamba_ssm_cache_dtype"})
"""Names with a word of the harmless ones that do change what is cached."""

KNOWN_HARMLESS = re.compile(
    r"(_?attn_implementation.*|use_cache|_?name_or_path|architectures|auto_map|model_type|.*_(token|bos|eos|pad)_(id|ids|index)"
    r"|tie_.*|norm_type|norm_topk_prob|topk_group|n_group|num_expert_group|topk_method|problem_type|torch_dtype|dtype"
    r"|first_k_dense_replace|decoder_sparse_step|mlp_only_layers|mlp_layer_types|moe_layer_freq|moe_layers|num_dense_layers"
    r"|interleave_moe_layer_step|expert_layer_(period|offset)|num_shared_experts|n_shared_experts|shared_intermediate_size"
    r"|query_pre_attn_scalar|attn_temperature_tuning|is_causal|type_vocab_size|key_multiplier|chunk_size_feed_forward"
    r"|max_window_layers|no_rope_layer.*|skip_.*rope.*|use_qk_norm|qk_norm.*|.*qk_layernorm|.*_qk_norm|qk_head_dim"
    r"|use_mem_eff_path|use_memory_efficient_attention|residual_in_fp32|num_logits_to_keep|original_max_position_embeddings"
    r"|scoring_func|vocab_size.*|hidden_size_per_layer_input|attention_bias|pretraining_tp|use_flash_att.*|use_sdpa.*"
    r"|n_embd_per_layer|swiglu.*|ffn_.*|block_(auto_adjust_ff_dim|ffn_dim_multiplier|multiple_of)|time_step_.*|rope.*"
    r"|quantization_config|layer_norm.*|norm_.*|use_parallel_residual|parallel_attn|laurel_rank|altup_.*|mode"
    r"|linear_(a_log|dt)_.*|linear_(allow_neg_eigval|lower_bound)|kda_(safe_gate|lower_bound)|hc_.*|lm_head.*|head_bias"
    r"|cache_implementation|order_of_interleaved_layers|use_parallel_(block|embedding)|mamba_inner_layernorms|gated_linear_unit"
    r"|ignore_index|.*_interp_ratio|mla_use_nope|mla_scale_.*|apply_mla_.*_rescale|gated_mla|.*_attention_gate_type"
    r"|share_expert_dims?|shared_expert.*|share_encoder_decoder_embeddings|mtp_.*|num_mtp_.*|.*_expert_overlap|_.*)"
)
"""Names that hold such a word and are known not to change what is cached."""

NOTHING: tuple[Any, ...] = (None, False, 0, "", [], {})
"""A field of such a value asks for nothing."""


def looks_relevant(name: str, words_of_interest: frozenset[str] = RELEVANT) -> bool:
    """Whether a field could change what is cached, by its name.

    >>> [looks_relevant(name) for name in ("attention_sink_size", "attention_dropout", "hidden_act", "useKVCompression")]
    [True, False, False, True]
    """
    words = set(re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().replace("-", "_").split("_"))
    if name in ALWAYS_RELEVANT:
        return True
    if KNOWN_HARMLESS.fullmatch(name) or words & (PLAIN if words & STRONG else HARMLESS):
        return False
    return bool(words & words_of_interest) or any("kv" in word or "cache" in word for word in words)


class ConfigFields:
    """The fields of one model's configuration. A null counts as missing.

    Several names in one call are spellings of one field: the first that is present is used, and errors name the first spelling.
    Every method raises ConfigurationError naming the field and the `model_type`.

    Attributes:
        model_type: for errors.
        notes: what a reader should tell about how it read the file; readers add to it.
    """

    __slots__ = ("_asked", "_inside", "_nested", "_relevant", "_values", "model_type", "notes")

    def __init__(self, values: Mapping[str, Any], model_type: str, *, inside: str = "") -> None:
        self._values = values
        self._asked: set[str] = set()
        self._nested: dict[str, ConfigFields] = {}
        self._inside = inside
        self._relevant = RELEVANT
        self.model_type = model_type
        self.notes: list[str] = []

    def overlaid(self, values: Mapping[str, Any]) -> ConfigFields:
        """The same fields with `values` in front. Both share the record of the fields that were asked for."""
        over = ConfigFields({**self._values, **values}, self.model_type, inside=self._inside)
        over._asked, over._nested, over.notes = self._asked, self._nested, self.notes
        return over

    def get(self, *names: str) -> Any:
        """The raw value, or None."""
        self._asked.update(names)
        found = [(name, self._values[name]) for name in names if self._values.get(name) is not None]
        if len(found) > 1 and any(value != found[0][1] for _, value in found):
            said = " and ".join(f"{name!r} {shown(value)}" for name, value in found)
            raise self.error(names[0], f"is given twice, and not the same: {said}")
        return found[0][1] if found else None

    def says_none(self, *names: str) -> bool:
        """Whether the file has one of these fields and says null, which a class's own default does not replace."""
        self._asked.update(names)
        return any(name in self._values and self._values[name] is None for name in names)

    def understood(self, *names: str) -> None:
        """Fields whose values change nothing of what is read."""
        self._asked.update(names)

    def nested(self, name: str) -> ConfigFields | None:
        """The fields of an object inside; None where it is missing. `unread` covers these fields, too."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, f"must be an object, not {shown(value)}")
        if name not in self._nested:
            self._nested[name] = ConfigFields(value, self.model_type, inside=f"{self._inside}{name}.")
        return self._nested[name]

    def at_layer(self, layer: int, *, windowed: bool) -> ConfigFields:
        """The fields as they hold for one layer: `per_layer_config`, entries of lists with one entry a layer, and what files
        say of their window layers (`swa_head_dim`, `sliding_num_key_value_heads`) or of the others (`global_head_dim`)."""
        own: dict[str, Any] = {}
        for name in PER_LAYER:
            for spelling in (f"swa_{name}", f"sliding_{name}") if windowed else (f"global_{name}", f"num_global_{name[4:]}"):
                self._asked.add(spelling)
                if self._values.get(spelling) is not None:
                    own[name] = self._values[spelling]
            if isinstance(self._values.get(name), Sequence) and not isinstance(self._values[name], str):
                entries = self._values[name]
                if layer >= len(entries):
                    raise self.error(name, f"has {len(entries)} entries, and none for layer {layer}")
                own[name] = entries[layer]
        by_layer = self.get("per_layer_config")
        if by_layer is not None:
            if not isinstance(by_layer, Mapping):
                raise self.error("per_layer_config", f"must be an object, not {shown(by_layer)}")
            for key, values in by_layer.items():
                if str(key).isdecimal() and int(key) == layer:
                    if not isinstance(values, Mapping):
                        raise self.error("per_layer_config", f"must give an object for layer {layer}, not {shown(values)}")
                    own.update(values)
                    self._check_layer(layer, values)
        return self.overlaid(own) if own else self

    def _check_layer(self, layer: int, values: Mapping[str, Any]) -> None:
        """A field given for one layer only must be one that is read by layer."""
        for name, value in values.items():
            if name not in PER_LAYER and value not in NOTHING and looks_relevant(str(name)):
                raise self.error("per_layer_config", f"gives {name!r} for layer {layer}, which is not read by layer")

    def enclose(self, outer: ConfigFields) -> None:
        """Tell what is left unread of the file around these fields, too."""
        outer._relevant = AROUND
        self._nested[""] = outer

    def unread(self) -> Iterator[str]:
        """The fields that were not asked for, look as if they could change what is cached, and ask for something."""
        for name, value in self._values.items():
            if (
                isinstance(name, str)
                and name not in self._asked
                and value not in NOTHING
                and looks_relevant(name, self._relevant)
            ):
                yield self._inside + name
        for fields in self._nested.values():
            yield from fields.unread()

    def error(self, name: str, problem: str) -> ConfigurationError:
        """The error to raise about field `name`; `problem` continues the sentence."""
        return ConfigurationError(f"{self.model_type}: config field {self._inside + name!r} {problem}")

    def count(self, *names: str, default: int | None = None, minimum: int = 1) -> int:
        """An integer of `minimum` or more; `default` where it is missing and a default is given."""
        value = self.get(*names)
        if value is None:
            if default is None:
                raise self.error(names[0], "is missing")
            return default
        if type(value) is not int or value < minimum:
            raise self.error(names[0], f"must be an integer of {minimum} or more, not {shown(value)}")
        most = MAX_LAYERS if names[0] == LAYERS else MAX_COUNT
        if value > most:
            raise self.error(names[0], f"must be {most} or less, not {value}")
        return value

    def optional_count(self, *names: str) -> int | None:
        """A positive integer, or None where it is missing."""
        return None if self.get(*names) is None else self.count(*names)

    def flag(self, name: str) -> bool:
        """A boolean; False where it is missing."""
        value = self.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, not {shown(value)}")
        return value

    def quotient(self, name: str, dividend: int, divisor: int) -> int:
        """`dividend / divisor`, which must be an integer; `name` is the field that the error names."""
        if dividend % divisor:
            raise self.error(name, f"does not come out even: {dividend} / {divisor}")
        return dividend // divisor

    def list_of(self, kind: type, name: str) -> list[Any] | None:
        """A list whose entries are all of `kind`, or None where it is missing."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.error(name, f"must be a list, not {shown(value)}")
        for position, entry in enumerate(value):
            if type(entry) is not kind:
                raise self.error(name, f"must hold {kind.__name__} entries only, not {shown(entry)} at position {position}")
        return list(value)

    def kinds(self, name: str, length: int, known: Sequence[str], default: Sequence[str]) -> list[str]:
        """One kind a layer, each of `known`; `default` where the field is missing."""
        entries = self.list_of(str, name)
        if entries is None:
            return list(default)
        if len(entries) != length:
            raise self.error(name, f"has {len(entries)} entries for {length} layers")
        kinds = [str(LEGACY_LAYER_KINDS.get(entry, entry)) for entry in entries]
        for position, kind in enumerate(kinds):
            if kind not in known:
                raise self.error(name, f"is {kind!r} at layer {position}; known are {', '.join(known)}")
        return kinds

    def layer_indices(self, name: str, length: int, *, first: int = 0) -> set[int]:
        """Layer numbers counted from `first`, returned counted from 0; empty where the field is missing."""
        entries = self.list_of(int, name) or []
        for entry in entries:
            if not first <= entry < first + length:
                raise self.error(name, f"names layer {entry}; there are {length}")
        return {entry - first for entry in entries}
