"""Pools, keys and pages of tests of the 3FS engine."""

from __future__ import annotations

import random
from hashlib import sha256
from pathlib import Path
from typing import Any

from hf3fs_service import SETTINGS, MetadataService

from unified_tree.controllers.storage import Outcome, StoredPool
from unified_tree.controllers.storage.hf3fs import Hf3fsSettings, Hf3fsStorage

SIZE = 64 << 10
FULL = StoredPool(name="full", format_digest=sha256(b"full").digest(), value_bytes=SIZE)
MAMBA = StoredPool(name="mamba", format_digest=sha256(b"mamba").digest(), value_bytes=1088)
CAPACITY_BYTES = 40 * SIZE


def settings(service: MetadataService, directory: Path, **other: Any) -> Hf3fsSettings:
    """Brief waits, one rank, and room for 39 pages of each pool."""
    given: dict[str, Any] = {"rank": "r0", "capacity_bytes": CAPACITY_BYTES, **SETTINGS, **other}
    return Hf3fsSettings(metadata=service.url, directory=str(directory), **given)


def opened(service: MetadataService, directory: Path, *, usrbio: Any = None, **other: Any) -> Hf3fsStorage:
    """An engine for both pools."""
    return Hf3fsStorage([FULL, MAMBA], settings(service, directory, **other), usrbio)


def keys(*numbers: int) -> list[bytes]:
    return [sha256(str(number).encode()).digest() for number in numbers]


def value(number: int, size: int = SIZE) -> bytes:
    return random.Random(number).randbytes(size)


def filled(*numbers: int) -> list[memoryview]:
    return [memoryview(bytearray(value(number))) for number in numbers]


def empty(count: int) -> list[memoryview]:
    return [memoryview(bytearray(SIZE)) for _ in range(count)]


def put(engine: Hf3fsStorage, *numbers: int) -> list[Outcome]:
    return engine.put("full", keys(*numbers), filled(*numbers))


def got(engine: Hf3fsStorage, *numbers: int) -> list[Outcome]:
    """Read pages; what is DONE is what was put."""
    pages = empty(len(numbers))
    outcomes = engine.get("full", keys(*numbers), pages)
    for number, page, outcome in zip(numbers, pages, outcomes, strict=True):
        assert outcome is not Outcome.DONE or page == value(number)
    return outcomes
