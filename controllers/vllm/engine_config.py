"""What vLLM's configuration means to the connector: its KV cache groups, and what is refused."""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
from typing import Any

from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from unified_tree.controllers.vllm.block_group import BlockGroup
from unified_tree.coverage import Coverage, Path, Point, Trailing
from unified_tree.errors import ConfigurationError


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
        size = sum(_content_bytes(spec) for spec in specs.values())
        groups.append(BlockGroup(index=index, coverage=coverages.pop(), layer_names=tuple(group.layer_names), block_bytes=size))
    if len(sizes) > 1:
        raise ConfigurationError(f"the KV cache groups have blocks of {sorted(sizes)} tokens; only equal ones are supported")
    if not any(group.coverage.is_path for group in groups):
        raise ConfigurationError("a model without a group of full attention is not supported")
    return groups, sizes.pop()


def refuse_unsupported(vllm_config: Any) -> None:
    """Raise ConfigurationError, naming every part of the configuration that was not tested with the connector."""
    parallel, wrong = vllm_config.parallel_config, []
    if parallel.pipeline_parallel_size > 1:
        wrong.append("pipeline parallelism: its ranks have other layers")
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        wrong.append("context parallelism: it divides blocks among ranks")
    if vllm_config.speculative_config is not None:
        wrong.append("speculative decoding: drafted tokens may be rejected after their blocks are saved")
    if vllm_config.kv_transfer_config.kv_role != "kv_both":
        wrong.append(f"kv_role {vllm_config.kv_transfer_config.kv_role!r}: it must be 'kv_both'")
    if wrong:
        raise ConfigurationError(f"UnifiedTreeConnector does not support {'; nor '.join(wrong)}")


def namespace_of(request: Any) -> str | None:
    """The namespace of a request's keys: its cache salt and its LoRA.

    None if the connector leaves the request alone, because its tokens do not determine what it computes: it has images, or
    embeddings instead of tokens.
    """
    if request.mm_features or request.prompt_embeds is not None:
        return None
    lora = request.lora_request.lora_name if request.lora_request is not None else None
    return json.dumps([request.cache_salt, lora]) if request.cache_salt is not None or lora is not None else ""


def _layer_specs(group: Any) -> dict[str, Any]:
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return {name: spec.kv_cache_specs[name] for name in group.layer_names}
    return dict.fromkeys(group.layer_names, spec)


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
