"""Formats of the usual kinds of state, for components that are written by hand: `Component(..., format=mha_format(...))`.

Write out any other kind as a PageFormat. Without a `shard` pages stay on device and host: no store accepts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.declare.page_format import PageFormat, Part, Shard
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.components import Composition
    from unified_tree.declare.component import Component


def mha_format(
    component: str,
    *,
    layer_ids: tuple[int, ...],
    page_size: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int | None = None,
    dtype: str = "bfloat16",
    shard: Shard | None = None,
) -> PageFormat:
    """Keys and values of multi-head or grouped-query attention, windows and drafts included; heads are those of one rank.

    >>> mha_format("full", layer_ids=tuple(range(32)), page_size=64, kv_heads=8, head_dim=128).page_bytes
    8388608
    """
    parts = (Part("k", dtype, (kv_heads, head_dim)), Part("v", dtype, (kv_heads, head_dim if value_dim is None else value_dim)))
    return PageFormat(component=component, layer_ids=layer_ids, parts=parts, slots_per_page=page_size, shard=shard)


def mla_format(
    component: str,
    *,
    layer_ids: tuple[int, ...],
    page_size: int,
    latent_dim: int,
    tokens_per_slot: int = 1,
    dtype: str = "bfloat16",
    shard: Shard | None = None,
) -> PageFormat:
    """One vector a slot: MLA's latent (`kv_lora_rank + qk_rope_head_dim`), or compressed KV of several tokens a slot."""
    slots = _slots(component, page_size, tokens_per_slot)
    return PageFormat(
        component=component,
        layer_ids=layer_ids,
        parts=(Part("latent", dtype, (latent_dim,)),),
        slots_per_page=slots,
        shard=shard,
    )


def indexer_format(
    component: str,
    *,
    layer_ids: tuple[int, ...],
    page_size: int,
    key_dim: int,
    tokens_per_slot: int = 1,
    dtype: str = "float8_e4m3fn",
    scale_dtype: str | None = "float32",
    shard: Shard | None = None,
) -> PageFormat:
    """Index keys of sparse attention, with one scale a key unless `scale_dtype` is None."""
    scales = () if scale_dtype is None else (Part("scale", scale_dtype, (1,)),)
    return PageFormat(
        component=component,
        layer_ids=layer_ids,
        parts=(Part("key", dtype, (key_dim,)), *scales),
        slots_per_page=_slots(component, page_size, tokens_per_slot),
        shard=shard,
    )


def state_format(
    component: str,
    *,
    layer_ids: tuple[int, ...],
    conv_shape: tuple[int, ...],
    state_shape: tuple[int, ...],
    conv_dtype: str = "bfloat16",
    state_dtype: str = "float32",
    shard: Shard | None = None,
) -> PageFormat:
    """A recurrent state: `conv` (channels, columns) and `ssm`, e.g. (heads, head_dim, state_dim). One slot a page."""
    parts = (Part("conv", conv_dtype, conv_shape), Part("ssm", state_dtype, state_shape))
    return PageFormat(component=component, layer_ids=layer_ids, parts=parts, slots_per_page=1, shard=shard)


def raw_format(component: Component) -> PageFormat:
    """A page of which only the size is known: one layer, one slot, one part of `page_bytes` bytes; of no stated shard."""
    if not component.page_bytes:
        raise ConfigurationError(f"{component.name}: page_bytes is 0, so there is nothing to keep in a pool")
    return PageFormat(
        component=component.name, layer_ids=(0,), parts=(Part("raw", "uint8", (component.page_bytes,)),), slots_per_page=1
    )


def formats_of(composition: Composition) -> dict[str, PageFormat]:
    """The format of every component's pools: the declared one, else a raw one of its `page_bytes`.

    Raises ConfigurationError for a component that declares neither.
    """
    return {c.name: raw_format(c) if c.format is None else c.format for c in composition.components}


def _slots(component: str, page_size: int, tokens_per_slot: int) -> int:
    if type(tokens_per_slot) is not int or tokens_per_slot <= 0 or page_size % tokens_per_slot:
        raise ConfigurationError(
            f"{component}: page_size {page_size!r} is not a multiple of tokens_per_slot {tokens_per_slot!r}"
        )
    return page_size // tokens_per_slot
