"""What the metadata service keeps on disk about a rank, and the two forms it has there.

A snapshot holds every rank: 8 bytes of magic, u32 length of a JSON head, the head, then for each namespace in the head's
order its keys (32 bytes each) and their pages (i64 each), least recently used first; a CRC-32 of all that ends it.
Little-endian.

A file from before namespaces existed is JSON: `{rank: {"num_pages": n, "key_to_index": {key in hex: page}}}`. Its keys are
KV, and the form of its pages becomes known when the rank is opened.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unified_tree.controllers.storage.hf3fs.file_layout import KV_NAMESPACE
from unified_tree.controllers.storage.storage_engine import KEY_BYTES
from unified_tree.errors import StorageError

_MAGIC = b"UT3FSmd\x02"
_U32 = struct.Struct("<I")


@dataclass(slots=True, kw_only=True)
class NamespaceImage:
    """One namespace: the form of its pages, and which key has which; a stride of 0 is not known yet."""

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
    """One rank; an epoch of 0 was never opened."""

    rank: str
    epoch: int
    namespaces: dict[str, NamespaceImage]


def packed(ranks: Iterable[RankImage], *, is_clean: bool, generation: int) -> bytes:
    """A snapshot. Cost: O(keys), about a tenth of a microsecond each."""
    head: dict[str, Any] = {"clean": is_clean, "generation": generation, "ranks": []}
    body: list[bytes] = []
    for rank in ranks:
        described = {
            name: {"format": of.format, "stride_bytes": of.stride_bytes, "page_count": of.page_count, "held": len(of.held)}
            for name, of in rank.namespaces.items()
        }
        head["ranks"].append({"rank": rank.rank, "epoch": rank.epoch, "namespaces": described})
        for image in rank.namespaces.values():
            body += [*image.held, np.fromiter(image.held.values(), "<i8", len(image.held)).tobytes()]
    text = json.dumps(head).encode()
    whole = b"".join((_MAGIC, _U32.pack(len(text)), text, *body))
    return whole + _U32.pack(zlib.crc32(whole))


def unpacked(data: bytes) -> tuple[list[RankImage], bool, int]:
    """Ranks, whether the service had ended in peace, and the snapshot's generation. Raises StorageError for a damaged file."""
    if data[:1] == b"{":
        return _before_namespaces(data), True, 0
    end = len(data) - _U32.size
    if data[: len(_MAGIC)] != _MAGIC or end < len(_MAGIC) or zlib.crc32(data[:end]) != _U32.unpack_from(data, end)[0]:
        raise StorageError("it is damaged, or no snapshot of this service")
    at = len(_MAGIC) + _U32.size
    head_end = at + _U32.unpack_from(data, len(_MAGIC))[0]
    head, at = json.loads(data[at:head_end]), head_end
    ranks = []
    for described in head["ranks"]:
        namespaces = {}
        for name, of in described["namespaces"].items():
            keys_end = at + KEY_BYTES * of["held"]
            keys = [data[start : start + KEY_BYTES] for start in range(at, keys_end, KEY_BYTES)]
            pages = np.frombuffer(data, "<i8", of["held"], keys_end).tolist()
            at = keys_end + 8 * of["held"]
            held = dict(zip(keys, pages, strict=True))
            namespaces[name] = NamespaceImage(
                format=of["format"], stride_bytes=of["stride_bytes"], page_count=of["page_count"], held=held
            )
        ranks.append(RankImage(rank=described["rank"], epoch=described["epoch"], namespaces=namespaces))
    return ranks, head["clean"], head["generation"]


def _before_namespaces(data: bytes) -> list[RankImage]:
    """Ranks of an old file; keys that are none of ours, and pages that there are not, are left out."""
    try:
        old = json.loads(data)
        ranks = []
        for rank, of in old.items():
            image = NamespaceImage(format="", stride_bytes=0, page_count=int(of["num_pages"]))
            for name, page in of["key_to_index"].items():
                key = _key_of(name)
                if key is not None and type(page) is int and 0 <= page < image.page_count:
                    image.add(key, page)
            namespaces = {KV_NAMESPACE: image.without_shared_pages()}
            ranks.append(RankImage(rank=rank, epoch=0, namespaces=namespaces))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StorageError(f"it is JSON, but not of a metadata service: {error!r}") from error
    return ranks


def _key_of(name: str) -> bytes | None:
    try:
        key = bytes.fromhex(name)
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None
