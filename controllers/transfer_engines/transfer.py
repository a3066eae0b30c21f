"""The requests of a transfer engine, and its completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.errors import PageError, TransferError

if TYPE_CHECKING:
    from unified_tree.effect import Copy, EffectKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transfer:
    """Copies of the tree's that start, end and fail together.

    Attributes:
        ticket: the caller's number for it, never used before with the same engine.
        kind: the direction of all its copies.
        copies: at most one a component, the paths first and then the sidecars. May be empty. A source page may repeat, a target
            page must not. No array may change until the transfer has ended.
    """

    ticket: int
    kind: EffectKind
    copies: tuple[Copy, ...]

    def check(self) -> None:
        """Raise PageError for a copy without two int64 arrays of equal size, TransferError for a component named twice.

        The mover checks whether the pages exist. Cost: O(copies).
        """
        for copy in self.copies:
            for name, ids in (("source", copy.source), ("target", copy.target)):
                if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.ndim != 1:
                    raise PageError(f"{copy.component}: {name} must be a one-dimensional int64 array of page ids, not {ids!r}")
            if copy.source.size != copy.target.size:
                raise PageError(f"{copy.component}: {copy.source.size} source pages for {copy.target.size} targets")
        names = [copy.component for copy in self.copies]
        if len(set(names)) < len(names):
            raise TransferError(f"transfer {self.ticket}: a component is named twice among {', '.join(names)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """How a transfer ended; nothing of it is written any more.

    Attributes:
        ticket: which.
        error: None if all of it was copied; else the reason, and the content of its targets is undefined.
    """

    ticket: int
    error: str | None
