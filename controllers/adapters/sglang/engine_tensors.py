"""SGLang's tensors of each component, by layer, which hold the state that its pages name; and copies between them and a host
pool.

Index keys of sparse attention and the KV of a draft lie in tensors of their own and in the slots of full attention, so they are
components that share its pages. Scales of a quantized cache are parts of a page beside the values that they scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from unified_tree.controllers.adapters.sglang.device_pools import FULL, STATE, WINDOW, PageNumbers
from unified_tree.controllers.pools.copier import index_copier, page_copier
from unified_tree.controllers.pools.cpu_memory import device_view
from unified_tree.controllers.pools.page_moves import Ids, PageMoves, device_index
from unified_tree.controllers.pools.words import word_dtype
from unified_tree.declare.page_format import EVERY_SLOT, ITEM_BYTES, WHOLE, ContextShard, PageFormat, Part, Shard
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

    from unified_tree.controllers.adapters.sglang.device_pools import Names
    from unified_tree.controllers.pools.host_pool import HostPool


INDEXER: Final = "indexer"
DRAFT: Final = "draft"
DRAFT_INDEXER: Final = "draft_indexer"
DRAFT_STATE: Final = "draft_mamba"
PER_HEAD: Final = ("MHATokenToKVPool", "MHATokenToKVPoolFP4", "MHATokenToKVPoolMXFP8")
"""SGLang's pools of keys and values, by head."""
LATENT: Final = ("MLATokenToKVPool", "MLATokenToKVPoolFP4", "DSATokenToKVPool")
"""SGLang's pools of latents, which every rank keeps whole."""
SCALES: Final = (
    ("k_scale", "k_scale_buffer"),
    ("v_scale", "v_scale_buffer"),
    ("k_block_scale", "native_k_scale_buffer"),
    ("v_block_scale", "native_v_scale_buffer"),
    ("latent_scale", "kv_scale_buffer"),
)
"""The scales of quantized caches: our part, SGLang's tensors. A cache that is not quantized has none of them."""


@dataclass(frozen=True, slots=True)
class EngineTensors:
    """The tensors of one component.

    Attributes:
        format: what a page holds.
        by_part: by part and then by layer, in the format's order; each [page, slot, …], a view of SGLang's memory.
        shares: the component whose pages these are, too; None for one with pages of its own.
        is_draft: they are a draft's, whose layers run behind those of the model. A prompt resumes only where it has them, too:
            without, the same tokens would be answered with more steps, and by chance.
    """

    format: PageFormat
    by_part: Mapping[str, Sequence[torch.Tensor]]
    shares: str | None = None
    is_draft: bool = False

    @property
    def page_count(self) -> int:
        """Pages in the tensors, the padding page 0 among them."""
        return next(iter(self.by_part.values()))[0].shape[0]

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return next(iter(self.by_part.values()))[0].device


@dataclass(frozen=True, slots=True)
class RankParts:
    """Which part of the state a rank keeps.

    Under prefill context parallelism SGLang's ranks lie in the order [copy, heads], and each keeps all tokens. Under decode
    context parallelism neighbours divide the tokens of every page.

    Attributes:
        own: its part where no two ranks keep the same: of states, and of a draft.
        heads: its part of the heads of the model's attention, of which other ranks may keep copies.
        context: its slots of each page of full attention.

    >>> ranks = RankParts.of(5, 8, copies=2)
    >>> ranks.heads, ranks.place
    (Shard(index=1, count=4), 3)
    """

    own: Shard
    heads: Shard
    context: ContextShard = EVERY_SLOT

    @classmethod
    def of(cls, rank: int, ranks: int, *, copies: int = 1, division: int = 1) -> RankParts:
        """The part of one of so many ranks.

        Args:
            copies: ranks that keep the same heads and all tokens (`--attn-cp-size`).
            division: neighbouring ranks that divide the tokens (`--dcp-size`).
        """
        heads = ranks // copies
        return cls(Shard(rank, ranks), Shard(rank % heads, heads), ContextShard(rank % division, division))

    @property
    def place(self) -> int:
        """The rank's number where ranks with the same heads are neighbours, as a `Composition` counts them."""
        return self.heads.index * (self.own.count // self.heads.count) + self.own.index // self.heads.count


def engine_tensors(
    kv_pool: Any,
    request_pool: Any,
    page_size: int,
    ranks: RankParts,
    *,
    has_windows: bool,
    has_states: bool,
    draft_pools: Sequence[Any] = (),
    draft_state_pools: Sequence[Any] = (),
) -> dict[str, EngineTensors]:
    """The tensors of every component, by its name.

    Args:
        kv_pool: SGLang's KV pool, `allocator.get_kvcache()`.
        request_pool: SGLang's `req_to_token_pool`, which holds the recurrent states.
        page_size: tokens of a page, those on other ranks too.
        ranks: which part of the state this rank keeps.
        draft_pools: the KV pools of a draft, in the slots of full attention. Their layers count on from those of the model.
        draft_state_pools: its pools of recurrent states, in the slots of those of the model.

    Raises ConfigurationError for pools whose layout is not known here.
    """
    found = {}
    if has_windows:
        layers: dict[bool, list[int]] = {False: [], True: []}
        for layer, (_, is_window) in sorted(kv_pool.layers_mapping.items()):
            layers[bool(is_window)].append(layer)
        found = _attention(FULL, [kv_pool.full_kv_pool], layers[False], page_size, ranks.heads, ranks.context)
        found |= _attention(WINDOW, [kv_pool.swa_kv_pool], layers[True], page_size, ranks.heads)
    elif has_states:
        full = sorted(kv_pool.full_attention_layer_id_mapping)
        found = _attention(FULL, [kv_pool.full_kv_pool], full, page_size, ranks.heads, ranks.context)
    else:
        ids = range(kv_pool.start_layer, kv_pool.start_layer + kv_pool.layer_num)
        found = _attention(FULL, [kv_pool], list(ids), page_size, ranks.heads, ranks.context)
    if has_states:
        found[STATE] = _states(STATE, [request_pool.mamba_pool], request_pool.mamba_pool.mamba_layer_ids, ranks.own)
    next_layer = 1 + last_layer(found)
    if draft_pools:
        ids = range(next_layer, next_layer + sum(pool.layer_num for pool in draft_pools))
        of_draft = _attention(DRAFT, list(draft_pools), list(ids), page_size, ranks.own)
        found |= {name: replace(each, shares=FULL, is_draft=True) for name, each in of_draft.items()}
    if draft_state_pools:
        ids = range(next_layer, next_layer + sum(len(pool.mamba_layer_ids) for pool in draft_state_pools))
        states = _states(DRAFT_STATE, list(draft_state_pools), list(ids), ranks.own)
        found[DRAFT_STATE] = replace(states, shares=STATE, is_draft=True)
    for name, each in found.items():
        owner = found[each.shares or name]
        if each.page_count != owner.page_count:
            raise ConfigurationError(
                f"{name}: SGLang has {each.page_count} pages of it and {owner.page_count} of {each.shares}, whose slots it is "
                "in; a host tier cannot copy it"
            )
    return found


def last_layer(tensors: Mapping[str, EngineTensors]) -> int:
    """The last layer of the model itself that has pages. Those of a draft come behind."""
    return max(layer for each in tensors.values() if not each.is_draft for layer in each.format.layer_ids)


def _attention(
    component: str,
    pools: Sequence[Any],
    layer_ids: Sequence[int],
    page_size: int,
    shard: Shard,
    context: ContextShard = EVERY_SLOT,
) -> dict[str, EngineTensors]:
    """The keys and values of attention layers, or their latents; and the index keys, if there are any.

    Args:
        pools: of one kind, whose layers follow one another.
        context: the slots of a page that they keep; of index keys they keep all.
    """
    if not layer_ids:
        raise ConfigurationError(
            f"{component}: this pipeline stage has no layer of it, which the host tier needs; leave "
            "--enable-hierarchical-cache out"
        )
    kinds = {type(pool).__name__ for pool in pools}
    kind = type(pools[0]).__name__
    is_one = len(kinds) == 1 and getattr(pools[0], "index_kpool", 1) == 1
    if not is_one or not (kind in LATENT or (kind in PER_HEAD and all(pool.kv_cache_layout == "nhd" for pool in pools))):
        raise ConfigurationError(
            f"{component}: a host tier behind SGLang's {', '.join(sorted(kinds))} is not supported; "
            "leave --enable-hierarchical-cache out"
        )
    if context.count > 1 and kind not in LATENT:
        raise ConfigurationError(
            f"{component}: with --dcp-size a host tier keeps latents only (MLA), as in SGLang; "
            "leave --enable-hierarchical-cache out"
        )
    slots = page_size // context.count
    names = ("latent",) if kind in LATENT else ("k", "v")
    buffers = ("kv_buffer",) if kind in LATENT else ("k_buffer", "v_buffer")
    by_part = {name: _layers(pools, buffer) for name, buffer in zip(names, buffers, strict=True)}
    rows = next(iter(by_part.values()))[0].shape[0]
    by_part |= {name: _layers(pools, buffer) for name, buffer in SCALES if getattr(pools[0], buffer, None) is not None}
    paged = {name: [_paged(tensor, rows, slots) for tensor in tensors] for name, tensors in by_part.items()}
    shard = WHOLE if kind in LATENT else shard
    dtypes: dict[str, torch.dtype] = dict.fromkeys(names, pools[0].dtype)
    found = {component: _described(component, tuple(layer_ids), paged, slots, shard, dtypes, context)}
    if kind == "DSATokenToKVPool":
        keys = _layers(pools, "index_k_with_scale_buffer")
        has_keys = [index for index, tensor in enumerate(keys) if len(tensor)]  # the others use the layer's before
        if has_keys:
            name = INDEXER if component == FULL else DRAFT_INDEXER
            pages = [_paged(keys[index], rows * context.count, page_size, context.count) for index in has_keys]
            ids = tuple(layer_ids[index] for index in has_keys)
            part = "key" if context.count == 1 else f"key of {context.count} runs"
            found[name] = replace(_described(name, ids, {part: pages}, page_size, WHOLE), shares=FULL)
    return found


def _layers(pools: Sequence[Any], buffer: str) -> list[torch.Tensor]:
    """The tensors of all layers of some pools."""
    return [tensor for pool in pools for tensor in getattr(pool, buffer)]


def _paged(tensor: torch.Tensor, rows: int, page_size: int, runs: int = 1) -> torch.Tensor:
    """A tensor by slots or by pages as [page, slot, …]. SGLang orders what it keeps by pages as its kernels like; then it is
    bytes, of which each slot gets as many.

    Args:
        rows: slots of the pool.
        runs: SGLang's pages, one behind the other, that a page consists of.
    """
    import torch

    pages = rows // page_size
    if tensor.shape[0] == rows:
        return tensor[: pages * page_size].view(pages, page_size, *tensor.shape[1:])
    assert tensor.shape[0] == pages * runs, f"{tensor.shape[0]} is neither {rows} slots nor {pages} pages of {runs}"
    return tensor.view(torch.uint8).view(pages, page_size, -1)


def _states(component: str, pools: Sequence[Any], layer_ids: Sequence[int], shard: Shard) -> EngineTensors:
    """The convolution windows and the recurrent states; a page is one state."""
    if any(getattr(pool, "_slot_siblings", None) for pool in pools):
        raise ConfigurationError(f"{component}: a host tier for states with side states is not supported")
    caches = [pool.mamba_cache for pool in pools]
    by_part = {
        f"conv{index}": [layer for cache in caches for layer in cache.conv[index].unsqueeze(2)]
        for index in range(len(caches[0].conv))
    }
    by_part["temporal"] = [layer for cache in caches for layer in cache.temporal.unsqueeze(2)]
    return _described(component, tuple(layer_ids), by_part, 1, shard)


def _described(
    component: str,
    layer_ids: tuple[int, ...],
    by_part: dict[str, list[torch.Tensor]],
    slots: int,
    shard: Shard,
    dtypes: Mapping[str, torch.dtype] = MappingProxyType({}),
    context: ContextShard = EVERY_SLOT,
) -> EngineTensors:
    """The tensors with their format.

    Args:
        dtypes: of the elements of some parts, where SGLang keeps those of several dtypes as plain bytes (fp8): a store tells
            them apart by this. Of what has no name of its own here, such as two halves of a byte, the bytes are described.
    """
    parts = []
    for name, tensors in by_part.items():
        shape = tuple(tensors[0].shape[2:])
        if any(not tensor.is_contiguous() for tensor in tensors):
            raise ConfigurationError(f"{component}: the pages of {name} are not contiguous; a host tier cannot copy them")
        if any(tensor.shape != tensors[0].shape or tensor.dtype != tensors[0].dtype for tensor in tensors):
            raise ConfigurationError(f"{component}: the layers of {name} differ; a host tier cannot copy them")
        parts.append(Part(name, _dtype_name(tensors[0], dtypes.get(name)), shape))
    page_format = PageFormat(
        component=component, layer_ids=layer_ids, parts=tuple(parts), slots_per_page=slots, shard=shard, context=context
    )
    return EngineTensors(page_format, by_part)


def _dtype_name(tensor: torch.Tensor, elements: torch.dtype | None) -> str:
    """The dtype of a part, by a name that formats know, of as many bytes as the tensor's."""
    for dtype in (elements, tensor.dtype):
        name = str(dtype).removeprefix("torch.")
        if ITEM_BYTES.get(name) == tensor.element_size():
            return name
    assert tensor.element_size() == 1, f"a host tier has no name for {tensor.dtype}"
    return "uint8"


class EngineMover:
    """A PageMover whose device pages are names. SGLang's tensors are one a layer; the host pool is one for all.

    Where names are page numbers the processor copies. Otherwise kernels do, on the current stream: only the device knows which
    pages the names stand for.

    Args:
        tensors: of the component.
        names: what the names stand for.
        host: of the same format; pinned if the tensors are on a GPU.
    """

    def __init__(self, tensors: EngineTensors, names: Names, host: HostPool) -> None:
        self._format = tensors.format
        self._names = names
        self._host_page_count = host.page_count
        memory = device_view(host.memory, tensors.device)
        on_host = [host.words(part.name, memory) for part in self._format.parts]
        on_device = [[_words(tensor, part) for tensor in tensors.by_part[part.name]] for part in self._format.parts]
        if isinstance(names, PageNumbers):
            self._by_number = page_copier(on_device, on_host, host.memory)
        else:
            self._by_name = index_copier(on_device, on_host, host.memory)

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The model layers whose state these pages hold, ascending."""
        return self._format.layer_ids

    def backup(self, source: Ids, target: Ids) -> None:
        """Copy device pages, by name, to host pages, all layers. Cost: O(bytes)."""
        names, component = self._names, self._format.component
        moves = PageMoves(component, source, target, source_pages=names.capacity, target_pages=self._host_page_count)
        if isinstance(names, PageNumbers):
            self._by_number.back_up(moves)
        else:
            pages = names.pages(moves.source)
            self._by_name.back_up(pages, device_index(moves.target, pages.device))

    def load_layers(self, layer_ids: tuple[int, ...], source: Ids, target: Ids) -> None:
        """Copy some layers of host pages to device pages, by name. Cost: O(bytes of those layers)."""
        names, component = self._names, self._format.component
        some = self._format.layer_slice(layer_ids)
        moves = PageMoves(component, source, target, source_pages=self._host_page_count, target_pages=names.capacity)
        if isinstance(names, PageNumbers):
            self._by_number.load(moves, some)
        else:
            pages = names.pages(moves.target)
            self._by_name.load(device_index(moves.source, pages.device), pages, some)


def _words(tensor: torch.Tensor, part: Part) -> torch.Tensor:
    """A layer's pages as [1, page, slot, word]."""
    return tensor.reshape(*tensor.shape[:2], -1).view(word_dtype(part)).unsqueeze(0)
