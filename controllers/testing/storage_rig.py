"""A storage engine under check, the pools that it is opened for, and what is put there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeAlias
from uuid import uuid4

from unified_tree.controllers.storage.storage_engine import StorageEngine
from unified_tree.controllers.storage.stored_pool import StoredPool

OpenEngine: TypeAlias = Callable[[Sequence[StoredPool], str], StorageEngine]
"""Opens an engine for these pools on the store of this name: an empty one, but for a name that was opened before."""
SIZES = {"full": 1088, "mamba": 320}


def pools_of_format(name: str, sizes: Mapping[str, int] = SIZES) -> list[StoredPool]:
    """Pools of these sizes, whose format digests follow from a name."""
    return [
        StoredPool(name=pool, format_digest=sha256(f"{name} {pool}".encode()).digest(), value_bytes=size)
        for pool, size in sizes.items()
    ]


POOLS = pools_of_format("checked")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRig:
    """What the checks are told of an engine.

    Attributes:
        open_engine: opens one; see `OpenEngine`. Pools and store are all that it takes from the checks.
        keeps_pages: False of one in which every page is missing and every put is dropped.
        capacity_bytes: how much a store that `open_engine` opens keeps at most, and at least half as much of what was put last;
            None where it is not known, and not checked.
        keeps_other_formats: False where opening a store for other formats replaces what it held, as 3FS's files of a rank do.
    """

    open_engine: OpenEngine
    keeps_pages: bool = True
    capacity_bytes: int | None = None
    keeps_other_formats: bool = True

    @contextmanager
    def engine(self, pools: Sequence[StoredPool] = POOLS, store: str | None = None) -> Iterator[StorageEngine]:
        """An engine, closed in the end; on an empty store if none is named."""
        engine = self.open_engine(pools, new_store() if store is None else store)
        try:
            yield engine
        finally:
            engine.close()


def new_store() -> str:
    """A name that no store has had."""
    return f"check-{uuid4().hex[:12]}"


def keys(*numbers: int) -> list[bytes]:
    """A key a number."""
    return [sha256(str(number).encode()).digest() for number in numbers]


def filled(pool: str, *numbers: int, salt: str = "") -> list[memoryview]:
    """A page a number, its own bytes in each."""
    return [memoryview(bytearray(random.Random(f"{pool} {number}{salt}").randbytes(SIZES[pool]))) for number in numbers]


def empty(pool: str, count: int) -> list[memoryview]:
    """Pages to read into."""
    return [memoryview(bytearray(SIZES[pool])) for _ in range(count)]
