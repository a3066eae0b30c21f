"""What the metadata service keeps on disk about a rank, and the two forms it has there.

A snapshot holds every rank: 8 bytes of magic, u32 length of a JSON head, the head, then for each namespace in the head's
order its pages from the first to as many as the head says, in parts: u32 how many pages, a key for each (32 bytes), and for
each when it was used last (i64; 0 where no key holds the page). A CRC-32 of all that ends it. Little-endian.

Parts are copied one after the other while the service goes on, so they are of different instants: a key may stand in it twice,
or a page hold a key that has left it. Whatever changed since the first of them is in the journal that was begun with the
snapshot, and replaying that puts all of it right, since every record says what is, not what is different.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from unified_tree.controllers.storage.storage_engine import KEY_BYTES
from unified_tree.errors import StorageError

_MAGIC = b"UT3FSmd\x03"
_U32 = struct.Struct("<I")


@dataclass(slots=True, kw_only=True)
class NamespaceImage:
    """One namespace: the form of its pages, and which key has which."""

    format: str
    stride_bytes: int
    page_count: int
    held: dict[bytes, int] = field(default_factory=dict)

    def add(self, key: bytes, page: int) -> None:
        """A key has a page now. Raises ValueError for a page that there is not."""
        if not 0 <= page < self.page_count or len(key) != KEY_BYTES:
            raise ValueError(f"page {page} of {self.page_count} for {key!r}")
        self.held[key] = page

    def without_shared_pages(self) -> NamespaceImage:
        """The same, but of keys that claim the same page none but the last."""
        last = {page: key for key, page in self.held.items()}
        self.held = {key: page for key, page in self.held.items() if last[page] == key}
        return self


@dataclass(slots=True, kw_only=True)
class RankImage:
    """One rank."""

    rank: str
    epoch: int
    namespaces: dict[str, NamespaceImage]


def snapshot_head(ranks: Iterable[RankImage], saved_pages: Iterable[int], *, is_clean: bool, generation: int) -> bytes:
    """What a snapshot begins with.

    Args:
        ranks: the keys that they hold do not matter here.
        saved_pages: of each of their namespaces, in that order, how many pages the parts will tell of.
        is_clean: the service has ended in peace.
        generation: of the journal that the snapshot begins with.
    """
    pages = iter(saved_pages)
    described = [
        {
            "rank": rank.rank,
            "epoch": rank.epoch,
            "namespaces": {
                name: {
                    "format": of.format,
                    "stride_bytes": of.stride_bytes,
                    "page_count": of.page_count,
                    "saved": next(pages),
                }
                for name, of in rank.namespaces.items()
            },
        }
        for rank in ranks
    ]
    text = json.dumps({"clean": is_clean, "generation": generation, "ranks": described}).encode()
    return b"".join((_MAGIC, _U32.pack(len(text)), text))


def snapshot_part(keys: bytes, used: bytes) -> bytes:
    """Some pages of a namespace (`PageTable.saved`)."""
    return b"".join((_U32.pack(len(keys) // KEY_BYTES), keys, used))


def unpacked(data: bytes) -> tuple[list[RankImage], bool, int]:
    """Ranks, whether the service had ended in peace, and the snapshot's generation. Raises StorageError for a damaged file."""
    end = len(data) - _U32.size
    if data[: len(_MAGIC)] != _MAGIC or end < len(_MAGIC) or zlib.crc32(data[:end]) != _U32.unpack_from(data, end)[0]:
        raise StorageError("it is damaged, or no snapshot of this version of the service")
    at = len(_MAGIC) + _U32.size
    head_end = at + _U32.unpack_from(data, len(_MAGIC))[0]
    head, at = json.loads(data[at:head_end]), head_end
    ranks = []
    for described in head["ranks"]:
        namespaces = {}
        for name, of in described["namespaces"].items():
            held, at = _held(data, at, of["saved"])
            namespaces[name] = NamespaceImage(
                format=of["format"], stride_bytes=of["stride_bytes"], page_count=of["page_count"], held=held
            )
        ranks.append(RankImage(rank=described["rank"], epoch=described["epoch"], namespaces=namespaces))
    return ranks, head["clean"], head["generation"]


def _held(data: bytes, at: int, saved_pages: int) -> tuple[dict[bytes, int], int]:
    """The keys of the parts from an offset on, least recently used first, with their pages; and where the parts end."""
    keys: list[bytes] = []
    used = [np.zeros(0, "<i8")]
    while len(keys) < saved_pages:
        count = _U32.unpack_from(data, at)[0]
        keys_end = at + _U32.size + KEY_BYTES * count
        keys += [data[start : start + KEY_BYTES] for start in range(at + _U32.size, keys_end, KEY_BYTES)]
        used.append(np.frombuffer(data, "<i8", count, keys_end))
        at = keys_end + 8 * count
    uses = np.concatenate(used)
    order = np.argsort(uses, kind="stable")
    return {keys[page]: page for page in order[np.count_nonzero(uses == 0) :].tolist()}, at
