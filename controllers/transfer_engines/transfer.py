"""What a transfer engine is asked to do, and how it says that it has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from unified_tree.errors import PageError, TransferError


class Direction(Enum):
    """Which way a transfer goes."""

    BACKUP = "device to host"
    LOAD = "host to device"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoolCopy:
    """Copy page `source[i]` of one component's pool to page `target[i]` of its other tier.

    Attributes:
        component: whose pools.
        source: int64 [n] page ids; may repeat.
        target: int64 [n] page ids; must not repeat. Neither array may change until the transfer has ended.

    Raises PageError for arrays that are not such a pair. Whether the pages exist is for the mover to say.
    """

    component: str
    source: NDArray[np.int64]
    target: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name, ids in (("source", self.source), ("target", self.target)):
            if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.ndim != 1:
                raise PageError(f"{self.component}: {name} must be a one-dimensional int64 array of page ids, not {ids!r}")
        if self.source.size != self.target.size:
            raise PageError(f"{self.component}: {self.source.size} source pages for {self.target.size} targets")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transfer:
    """Copies that start, end and fail together.

    Attributes:
        ticket: the caller's number for it, never used before with the same engine.
        direction: of all its copies.
        copies: at most one a component, the paths first and then the sidecars. May be empty.

    Raises TransferError for a component named twice.
    """

    ticket: int
    direction: Direction
    copies: tuple[PoolCopy, ...]

    def __post_init__(self) -> None:
        names = [copy.component for copy in self.copies]
        if len(set(names)) < len(names):
            raise TransferError(f"transfer {self.ticket}: a component is named twice among {', '.join(names)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """How a transfer ended; nothing of it is written any more.

    Attributes:
        ticket: which.
        error: None if all of it was copied; else what went wrong, and then what its targets hold is undefined.
    """

    ticket: int
    error: str | None
