"""How device pools are told to a daemon: groups of tensors, each with a list of blocks for every chunk.

A daemon with --separate-object-groups keeps a chunk of a window or a state as an object of its own, and only where it has one:
its lookups then find the longest prefix whose every page is there and whose window and state at that very length are. Where
a span names no page of a chunk, its blocks say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool
    from unified_tree.controllers.prefix_linker.prefix_linker import Span

NO_BLOCK = 0
"""The daemon takes a chunk all of whose blocks are this one, of one group of objects, for absent: the default of its
--null-block-id. It is a page of ours as well: a chunk of a single page that happens to lie there is not stored, a miss."""


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """Tensors under the same page ids, of one shape and coverage.

    Attributes:
        info: the daemon's description.
        pool: one of the pools.
    """

    info: Any
    pool: LinkedPool

    def blocks(self, span: Span, chunk_tokens: int) -> list[int]:
        """Block ids of all chunks of a span: its pages, and what stands for none."""
        ids: list[int] = span.pages[self.pool.name].tolist()
        chunks = (span.end - span.first_token(chunk_tokens)) // chunk_tokens
        if self.pool.coverage.is_exact:
            return [NO_BLOCK] * (chunks - 1) + ids
        a_chunk = chunk_tokens // self.pool.page_tokens
        absent = chunks * a_chunk - len(ids)
        beside = absent % a_chunk  # in the chunk of the window's first page; what the daemon leaves out, but not the null block
        return [NO_BLOCK] * (absent - beside) + [ids[0] or 1] * beside + ids


def block_groups(pools: Sequence[LinkedPool], chunk_tokens: int) -> list[BlockGroup]:
    """The daemon's groups, in the order of its own."""
    group_info = import_module("lmcache.v1.multiprocess.group_view").EngineGroupInfo
    spaces = list(dict.fromkeys((pool.owner, pool.coverage) for pool in pools))
    alike: dict[tuple[Any, ...], list[int]] = {}
    pool_of = {(pool.owner, pool.coverage): pool for pool in pools}
    owned = [((pool.owner, pool.coverage), tensor) for pool in pools for tensor in pool.tensors]
    for index, (space, tensor) in enumerate(owned):
        alike.setdefault((space, tuple(tensor.shape)), []).append(index)
    return [
        BlockGroup(
            group_info(
                engine_group_id=spaces.index(space), layer_indices=tuple(indices), **_kind(pool_of[space], chunk_tokens)
            ),
            pool_of[space],
        )
        for (space, _), indices in alike.items()
    ]


def _kind(pool: LinkedPool, chunk_tokens: int) -> dict[str, Any]:
    if pool.coverage.is_exact:
        return {"tokens_per_block": chunk_tokens, "sw_size_tokens": chunk_tokens, "recurrent_state": True}
    window = pool.coverage.window_tokens
    return {"tokens_per_block": pool.page_tokens, **({} if window is None else {"sw_size_tokens": window})}
