"""What the bytes of a stored page mean. Pages of different formats have different keys, so none is ever taken for another."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from unified_tree.controllers.pools.host_layout import HostLayout
from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_format import PageFormat

REPLICATED = "replicated"
"""The shard of a pool that is the same on every rank (MLA's latents): stored once, by the rank that owns the write."""
VERSION = 1
"""Of this encoding and of the trailer behind a page."""


def rank_shard(rank: int, rank_count: int) -> str:
    """The shard of a pool that holds one rank's heads.

    >>> rank_shard(1, 8)
    'rank 1 of 8'
    """
    if not 0 <= rank < rank_count:
        raise ConfigurationError(f"rank {rank!r} is not one of {rank_count!r} ranks")
    return f"rank {rank} of {rank_count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatHeader:
    """The format of one pool's stored pages.

    Attributes:
        model: a name under which no other architecture runs; weights are told apart by their version, in the chain.
        format: component, layers, and parts with dtypes and shapes.
        layout: of the host pool.
        page_size: tokens a page.
        shard: `REPLICATED` or `rank_shard(rank, count)`.
    """

    model: str
    format: PageFormat
    layout: HostLayout
    page_size: int
    shard: str = REPLICATED

    def encode(self) -> bytes:
        """Canonical JSON, UTF-8: equal headers and only those have equal bytes."""
        fields = {
            "version": VERSION,
            "model": self.model,
            "component": self.format.component,
            "layer_ids": self.format.layer_ids,
            "parts": [[part.name, part.dtype, part.shape] for part in self.format.parts],
            "slots_per_page": self.format.slots_per_page,
            "layout": self.layout.value,
            "page_size": self.page_size,
            "shard": self.shard,
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> bytes:
        """SHA-256 of `encode()`, 32 bytes. Cost: some microseconds; keep it."""
        return sha256(self.encode()).digest()
