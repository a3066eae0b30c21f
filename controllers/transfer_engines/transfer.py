"""The requests of a transfer engine, and its completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unified_tree.errors import PageError, TransferError
from unified_tree.int64 import INT64

if TYPE_CHECKING:
    from unified_tree.effect import Copy, EffectKind


class Transfer(NamedTuple):
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
        names: list[str] = []
        for component, source, target in self.copies:
            _check_ids(component, "source", source)
            _check_ids(component, "target", target)
            if len(source) != len(target):
                raise PageError(f"{component}: {len(source)} source pages for {len(target)} targets")
            names.append(component)
        if len(names) > 1 and len(set(names)) < len(names):
            raise TransferError(f"transfer {self.ticket}: a component is named twice among {', '.join(names)}")


def _check_ids(component: str, name: str, ids: Any) -> None:
    if type(ids) is np.ndarray and ids.dtype is INT64 and ids.ndim == 1:
        return
    if not isinstance(ids, np.ndarray) or ids.dtype != INT64 or ids.ndim != 1:
        raise PageError(f"{component}: {name} must be a one-dimensional int64 array of page ids, not {ids!r}")


class Completion(NamedTuple):
    """How a transfer ended; nothing of it is written any more.

    Attributes:
        ticket: which.
        error: None if all of it was copied; else the reason, and the content of its targets is undefined.
    """

    ticket: int
    error: str | None
