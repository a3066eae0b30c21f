"""What vLLM's configuration means to the connector: its KV cache groups, and what is refused."""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import vllm
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from unified_tree.controllers.adapters.vllm.block_group import NO_LAYER, NO_LAYER_BYTES, BlockGroup
from unified_tree.declare.coverage import Coverage, Path, Point, Trailing
from unified_tree.terms.errors import ConfigurationError

DRAFTS_WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix")
"""Methods of speculative decoding that draft from known tokens, and keep nothing in blocks."""
DRAFTS_OF_TOKENS = ("draft_model",)
"""Methods whose draft model reads tokens alone, as the target does."""
DRAFTS_OF_PAIRS = ("eagle", "eagle3", "mtp")
"""Methods whose draft model reads a token's hidden state with the token behind it."""


def block_groups(kv_cache_config: Any) -> tuple[list[BlockGroup], int]:
    """The engine's groups, and the tokens of a block.

    Raises ConfigurationError for kinds of cache that the connector does not know, blocks of different lengths, and a model
    without full attention.
    """
    groups, sizes = [], set()
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        specs = _layer_specs(group)
        coverages = {_coverage(spec, index) for spec in specs.values()}
        if len(coverages) > 1:
            raise ConfigurationError(f"KV cache group {index} has layers that need different tokens; this is not supported")
        sizes |= {spec.block_size for spec in specs.values()}
        names = tuple(group.layer_names) or (NO_LAYER,)
        size = sum(_content_bytes(spec) for spec in specs.values()) if group.layer_names else NO_LAYER_BYTES
        groups.append(BlockGroup(index=index, coverage=coverages.pop(), layer_names=names, block_bytes=size))
    if len(sizes) > 1:
        raise ConfigurationError(f"the KV cache groups have blocks of {sorted(sizes)} tokens; only equal ones are supported")
    if not any(group.coverage.is_path for group in groups):
        raise ConfigurationError("a model without a group of full attention is not supported")
    return groups, sizes.pop()


def refuse_unsupported(vllm_config: Any, groups: Sequence[BlockGroup]) -> None:
    """Raise ConfigurationError, naming every part of the configuration that was not tested with the connector."""
    parallel, speculative, wrong = vllm_config.parallel_config, vllm_config.speculative_config, []
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        wrong.append("context parallelism: it divides blocks among ranks")
    known = (*DRAFTS_WITHOUT_MODEL, *DRAFTS_OF_TOKENS, *DRAFTS_OF_PAIRS)
    if speculative is not None and speculative.method not in known:
        wrong.append(f"speculative decoding by {speculative.method}: served are {', '.join(known)}")
    elif speculative is not None and (vllm_config.num_prefill_lookahead_tokens > 1 or speculative.parallel_drafting):
        wrong.append("draft models that read more than one token behind a block, or draft several tokens in one pass")
    if speculative is not None and parallel.pipeline_parallel_size > 1:
        wrong.append("speculative decoding with pipeline stages, with which vLLM does not start on a CPU: it is not tested")
    if speculative is not None and any(group.coverage.is_exact for group in groups):
        wrong.append("speculative decoding with recurrent states, which are of drafted tokens, too")
    if vllm_config.kv_transfer_config.kv_role != "kv_both":
        wrong.append(f"kv_role {vllm_config.kv_transfer_config.kv_role!r}: it must be 'kv_both'")
    if wrong:
        raise ConfigurationError(f"UnifiedTreeConnector does not support {'; nor '.join(wrong)}")


def keys_are_pairs(vllm_config: Any) -> bool:
    """Whether what a block holds depends on the token behind it, too."""
    speculative = vllm_config.speculative_config
    return speculative is not None and speculative.method in DRAFTS_OF_PAIRS


def has_weights_on_host(vllm_config: Any) -> bool:
    """Whether some weights stay in host memory."""
    offload = vllm_config.offload_config
    return bool(offload.uva.cpu_offload_gb or offload.prefetch.offload_group_size)


def namespace_of(request: Any, lora_version: str) -> str:
    """The namespace of a request's keys: its cache salt and its LoRA. One without a version has its name, its path and its id,
    since the name may come to mean another path or, after it was unloaded, another id.

    Args:
        lora_version: as `LoraFiles.version` told.
    """
    lora = request.lora_request
    adapter = None if lora is None else lora_version or [lora.lora_name, lora.lora_int_id, lora.lora_path]
    return "" if request.cache_salt is None and adapter is None else json.dumps([request.cache_salt, adapter])


def model_name(vllm_config: Any) -> str:
    """The model's name in a store."""
    return str(vllm_config.model_config.served_model_name or vllm_config.model_config.model)


def config_digest(vllm_config: Any, kv_cache_config: Any) -> str:
    """A digest of what decides, beside the weights, what a block holds.

    It covers the version of vLLM, the configurations of the model and of its draft model, the draft's name and revision, the
    dtypes, the specification of the blocks, and the backends that lay them out.

    Reads the layers, so that only a worker has it.
    """
    model, layers = vllm_config.model_config, vllm_config.compilation_config.static_forward_context
    described = [
        vllm.__version__,  # pyright: ignore[reportAttributeAccessIssue]
        _described(model),
        *_draft(vllm_config.speculative_config),
        model.dtype,
        model.quantization,
        vllm_config.cache_config.cache_dtype,
        vllm_config.cache_config.kv_cache_layout,
        vllm_config.attention_config,
        vllm_config.cache_config.mamba_cache_dtype,
        vllm_config.cache_config.mamba_ssm_cache_dtype,
        {name: _backend(layers[name]) for group in kv_cache_config.kv_cache_groups for name in group.layer_names},
        [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups],
    ]
    return sha256(json.dumps(described, sort_keys=True, default=repr).encode()).hexdigest()


def _described(model: Any) -> dict[str, Any]:
    return {name: value for name, value in model.hf_config.to_dict().items() if name != "_name_or_path"}


def _draft(speculative: Any) -> list[Any]:
    """The fields that decide the content of a draft model's blocks; nothing without one."""
    if speculative is None or speculative.method in DRAFTS_WITHOUT_MODEL:
        return []
    model = speculative.draft_model_config
    return [speculative.method, model.model, model.revision, model.dtype, model.quantization, _described(model)]


def _backend(layer: Any) -> str:
    """The class that decides how a layer's blocks are laid out."""
    backend = layer.get_attn_backend()
    return f"{backend.__module__}.{backend.__qualname__}"


def _layer_specs(group: Any) -> dict[str, Any]:
    """The specification of each layer; in a pipeline stage without layers of the group, those of the whole model."""
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return {name: spec.kv_cache_specs[name] for name in group.layer_names or spec.kv_cache_specs}
    return dict.fromkeys(group.layer_names or (NO_LAYER,), spec)


def _coverage(spec: Any, index: int) -> Coverage:
    """Which tokens a layer needs. vLLM counts the query in a window, the tree does not."""
    if type(spec) in (FullAttentionSpec, MLAAttentionSpec):
        return Path()
    if type(spec) is SlidingWindowSpec and spec.sliding_window > 1:
        return Trailing(spec.sliding_window - 1 + spec.extra_retained_tokens)
    if type(spec) is MambaSpec:
        if spec.mamba_cache_mode != "align":
            raise ConfigurationError(
                f"KV cache group {index} has recurrent states in mode {spec.mamba_cache_mode!r}: start vLLM with "
                "--enable-prefix-caching --mamba-cache-mode align, so that it keeps states at block ends"
            )
        return Point()
    raise ConfigurationError(f"KV cache group {index} is of kind {type(spec).__name__}, which is not supported")


def _content_bytes(spec: Any) -> int:
    """Of a block without padding."""
    size = spec.state_content_size_bytes if type(spec) is MambaSpec else spec.unpadded_page_size_bytes
    return int(size)
