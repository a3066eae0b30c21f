"""One change of the metadata service's state, as it stands in the journal.

    u32 length of what follows the next field, u32 its CRC-32, a byte for the kind of change, u16 + rank, u16 + namespace

(a journal's first record, BEGUN, has no names, but the journal's generation and how many bytes of the journal before it count)
and then of ADDED: keys (32 bytes each), pages (i64 each); of REMOVED: keys; of CLEARED: nothing; of OPENED: JSON of the rank's
epoch and namespaces. A record that is torn or damaged ends the journal.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence

from unified_tree.controllers.storage.hf3fs.metadata.rank_image import NamespaceImage, RankImage
from unified_tree.controllers.storage.storage_engine import KEY_BYTES

_HEAD = struct.Struct("<II")
_U16 = struct.Struct("<H")
_BEGIN = struct.Struct("<8sQQ")
_MAGIC = b"UT3FSjn\x01"
_ADDED, _REMOVED, _CLEARED, _OPENED, _BEGUN = b"A", b"R", b"C", b"O", b"B"
BEGUN_BYTES = _HEAD.size + 1 + _BEGIN.size
"""Of a journal's first record."""


def begun(generation: int, follows_bytes: int) -> bytes:
    """A journal begins; of the one before it so many bytes count."""
    return _framed(_BEGUN + _BEGIN.pack(_MAGIC, generation, follows_bytes))


def beginning(journal: bytes) -> tuple[int, int] | None:
    """Generation and `follows_bytes` of a journal that this service has begun; None for anything else."""
    payload = next(iter(_payloads(journal[:BEGUN_BYTES])), b"")
    if payload[:1] != _BEGUN or len(payload) != 1 + _BEGIN.size:
        return None
    magic, generation, follows_bytes = _BEGIN.unpack_from(payload, 1)
    return (generation, follows_bytes) if magic == _MAGIC else None


def valid_bytes(journal: bytes) -> int:
    """Up to where a journal's records are whole."""
    return sum(_HEAD.size + len(payload) for payload in _payloads(journal))


def added(rank: str, namespace: str, keys: Sequence[bytes], pages: Sequence[int]) -> bytes:
    """These keys have these pages now."""
    return _record(_ADDED, rank, namespace, b"".join(keys) + struct.pack(f"<{len(pages)}q", *pages))


def removed(rank: str, namespace: str, keys: Sequence[bytes]) -> bytes:
    """These keys have no page any more."""
    return _record(_REMOVED, rank, namespace, b"".join(keys))


def cleared(rank: str, namespace: str) -> bytes:
    """No key of the namespace has a page."""
    return _record(_CLEARED, rank, namespace, b"")


def opened(image: RankImage) -> bytes:
    """The rank has this epoch and these namespaces, without any keys; those of the image are not written."""
    shapes = {name: [of.format, of.stride_bytes, of.page_count] for name, of in image.namespaces.items()}
    said = json.dumps({"epoch": image.epoch, "shapes": shapes})
    return _record(_OPENED, image.rank, "", said.encode())


def replay(journal: bytes, ranks: dict[str, RankImage]) -> int:
    """Apply the records of a journal to images, in order; how many there were, without its first."""
    count = 0
    for payload in _payloads(journal[BEGUN_BYTES:]):
        _apply(payload, ranks)
        count += 1
    return count


def _record(kind: bytes, rank: str, namespace: str, rest: bytes) -> bytes:
    names = b"".join(_U16.pack(len(name)) + name for name in (rank.encode(), namespace.encode()))
    return _framed(b"".join((kind, names, rest)))


def _framed(payload: bytes) -> bytes:
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def _payloads(journal: bytes) -> Iterator[bytes]:
    at = 0
    while at + _HEAD.size <= len(journal):
        length, checksum = _HEAD.unpack_from(journal, at)
        payload = journal[at + _HEAD.size : at + _HEAD.size + length]
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return
        yield payload
        at += _HEAD.size + length


def _apply(payload: bytes, ranks: dict[str, RankImage]) -> None:
    rank, at = _name(payload, 1)
    namespace, at = _name(payload, at)
    kind, rest = payload[:1], payload[at:]
    if kind == _OPENED:
        ranks[rank] = _opened(rank, json.loads(rest))
        return
    image = ranks[rank].namespaces[namespace]
    if kind == _CLEARED:
        image.held.clear()
        return
    count = len(rest) // (KEY_BYTES + 8 if kind == _ADDED else KEY_BYTES)
    keys = [rest[KEY_BYTES * index : KEY_BYTES * (index + 1)] for index in range(count)]
    if kind == _REMOVED:
        for key in keys:
            image.held.pop(key, None)
        return
    for key, page in zip(keys, struct.unpack_from(f"<{count}q", rest, KEY_BYTES * count), strict=True):
        image.held.pop(key, None)
        image.add(key, page)


def _opened(rank: str, said: dict[str, object]) -> RankImage:
    shapes = said["shapes"]
    assert isinstance(shapes, dict) and isinstance(said["epoch"], int)
    namespaces = {
        name: NamespaceImage(format=form, stride_bytes=stride_bytes, page_count=page_count)
        for name, (form, stride_bytes, page_count) in shapes.items()
    }
    return RankImage(rank=rank, epoch=said["epoch"], namespaces=namespaces)


def _name(payload: bytes, at: int) -> tuple[str, int]:
    start = at + _U16.size
    end = start + _U16.unpack_from(payload, at)[0]
    return payload[start:end].decode(), end
