"""Where the pages of each pool lie in a rank's file.

A region a pool, one after the other, KV first; in a region page i begins at i * stride. After the last region come 4096
bytes that say which life of the file this is (`RankFile`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unified_tree.controllers.storage.storage_engine import StoredPool
from unified_tree.terms.errors import ConfigurationError

KV_NAMESPACE = "full"
"""The namespace of KV, whose region comes first."""
SECTOR_BYTES = 512
TRAILER_BYTES = 4096
_LARGE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A pool's part of the file.

    Attributes:
        namespace: of the pool's keys: its name.
        format: of its values: the pool's format digest in hex.
        stride_bytes: from one page to the next.
        page_count: of the region.
        offset_bytes: where it begins in the file.
    """

    namespace: str
    format: str
    stride_bytes: int
    page_count: int
    offset_bytes: int

    def page_at(self, page: int) -> int:
        """Where a page begins in the file."""
        return self.offset_bytes + page * self.stride_bytes

    @property
    def end_bytes(self) -> int:
        """Where the region ends."""
        return self.page_at(self.page_count)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """All regions, by namespace, in the order of the file."""

    regions: Mapping[str, Region]

    @property
    def trailer_at(self) -> int:
        """Where the regions end."""
        return max(region.end_bytes for region in self.regions.values())

    @property
    def file_bytes(self) -> int:
        """Of the whole file."""
        return self.trailer_at + TRAILER_BYTES

    def described(self) -> list[dict[str, str | int]]:
        """What the metadata service must know, ready for JSON."""
        return [
            {
                "namespace": region.namespace,
                "format": region.format,
                "stride_bytes": region.stride_bytes,
                "page_count": region.page_count,
            }
            for region in self.regions.values()
        ]


def layout_within(capacity_bytes: int, pools: Sequence[StoredPool]) -> FileLayout:
    """The layout of a file of at most so many bytes.

    The capacity is divided among the pools in proportion to their values' size, but as if none were larger than 64 KiB. The
    same pools in any order have the same layout. Raises ConfigurationError for a capacity in which some pool has no page.
    """
    ordered = sorted(pools, key=lambda pool: (pool.name != KV_NAMESPACE, pool.name))
    strides = {pool.name: -(-pool.value_bytes // SECTOR_BYTES) * SECTOR_BYTES for pool in ordered}
    weights = {name: min(stride, _LARGE_BYTES) for name, stride in strides.items()}
    offset, regions = 0, {}
    for pool in ordered:
        stride = strides[pool.name]
        share = (capacity_bytes - TRAILER_BYTES) * weights[pool.name] // sum(weights.values())
        if share < stride:
            raise ConfigurationError(
                f"hf3fs: {pool.name}: its share of the capacity is {max(share, 0)} bytes, one value needs {stride}; "
                "give more capacity_bytes"
            )
        region = Region(
            namespace=pool.name,
            format=pool.format_digest.hex(),
            stride_bytes=stride,
            page_count=share // stride,
            offset_bytes=offset,
        )
        regions[pool.name] = region
        offset = region.end_bytes
    return FileLayout(regions)
