"""Where SGLang keeps the state that the pages of each component name: its tensors, by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.adapters.sglang.device_pools import FULL, STATE, WINDOW
from unified_tree.declare.page_format import PageFormat, Part, Shard
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class EngineTensors:
    """The tensors of one component.

    Attributes:
        format: what a page holds.
        by_part: by part and then by layer, in the format's order; each [page, slot, …], a view of SGLang's memory.
    """

    format: PageFormat
    by_part: Mapping[str, Sequence[torch.Tensor]]

    @property
    def page_count(self) -> int:
        """Pages in the tensors, the padding page 0 among them."""
        return next(iter(self.by_part.values()))[0].shape[0]

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return next(iter(self.by_part.values()))[0].device


def engine_tensors(
    kv_pool: Any, request_pool: Any, page_size: int, shard: Shard, *, has_windows: bool, has_states: bool
) -> dict[str, EngineTensors]:
    """The tensors of every component, by its name.

    Args:
        kv_pool: SGLang's KV pool, `allocator.get_kvcache()`.
        request_pool: SGLang's `req_to_token_pool`, which holds the recurrent states.
        shard: which part of the heads this rank keeps.

    Raises ConfigurationError for pools whose layout is not known here.
    """
    found = {}
    if has_windows:
        layers: dict[bool, list[int]] = {False: [], True: []}
        for layer, (_, is_window) in sorted(kv_pool.layers_mapping.items()):
            layers[bool(is_window)].append(layer)
        found[FULL] = _attention(FULL, kv_pool.full_kv_pool, layers[False], page_size, shard)
        found[WINDOW] = _attention(WINDOW, kv_pool.swa_kv_pool, layers[True], page_size, shard)
    elif has_states:
        found[FULL] = _attention(FULL, kv_pool.full_kv_pool, sorted(kv_pool.full_attention_layer_id_mapping), page_size, shard)
    else:
        ids = range(kv_pool.start_layer, kv_pool.start_layer + kv_pool.layer_num)
        found[FULL] = _attention(FULL, kv_pool, list(ids), page_size, shard)
    if has_states:
        found[STATE] = _states(request_pool.mamba_pool, shard)
    return found


def _attention(component: str, pool: Any, layer_ids: list[int], page_size: int, shard: Shard) -> EngineTensors:
    """The keys and values of attention layers, or their latents and index keys."""
    kind = type(pool).__name__
    by_part: dict[str, list[torch.Tensor]]
    if kind == "MHATokenToKVPool" and pool.kv_cache_layout == "nhd" and pool.k_scale_buffer is None:
        by_part = {"k": list(pool.k_buffer), "v": list(pool.v_buffer)}
    elif kind == "MLATokenToKVPool":
        by_part = {"latent": list(pool.kv_buffer)}
        shard = Shard(0, 1)  # every rank keeps all of it
    else:
        raise ConfigurationError(
            f"{component}: a host tier behind SGLang's {kind} is not supported; leave --enable-hierarchical-cache out"
        )
    paged = {}
    for name, tensors in by_part.items():
        rows = tensors[0].shape[0] // page_size * page_size
        paged[name] = [tensor[:rows].view(-1, page_size, *tensor.shape[1:]) for tensor in tensors]
    return _described(component, tuple(layer_ids), paged, page_size, shard, pool.dtype)


def _states(pool: Any, shard: Shard) -> EngineTensors:
    """The convolution windows and the recurrent states; a page is one state."""
    cache = pool.mamba_cache
    by_part = {f"conv{index}": list(tensor.unsqueeze(2)) for index, tensor in enumerate(cache.conv)}
    by_part["temporal"] = list(cache.temporal.unsqueeze(2))
    if getattr(pool, "_slot_siblings", None):
        raise ConfigurationError("mamba: a host tier for states with side states is not supported")
    return _described(STATE, tuple(pool.mamba_layer_ids), by_part, 1, shard)


def _described(
    component: str,
    layer_ids: tuple[int, ...],
    by_part: dict[str, list[torch.Tensor]],
    slots: int,
    shard: Shard,
    dtype: torch.dtype | None = None,
) -> EngineTensors:
    """The tensors with their format.

    Args:
        dtype: of their elements, where SGLang keeps those of several dtypes as plain bytes (fp8): a store tells them apart by
            this. None for the tensors' own.
    """
    parts = []
    for name, tensors in by_part.items():
        shape = tuple(tensors[0].shape[2:])
        if any(not tensor.is_contiguous() for tensor in tensors):
            raise ConfigurationError(f"{component}: the pages of {name} are not contiguous; a host tier cannot copy them")
        parts.append(Part(name, str(dtype or tensors[0].dtype).removeprefix("torch."), shape))
    page_format = PageFormat(component=component, layer_ids=layer_ids, parts=tuple(parts), slots_per_page=slots, shard=shard)
    return EngineTensors(page_format, by_part)
