"""What is checked of a transfer's copies before an engine takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.errors import PageError, TransferError
from unified_tree.int64 import INT64

if TYPE_CHECKING:
    from unified_tree.effect import Copy


def check_copies(ticket: int, copies: tuple[Copy, ...]) -> None:
    """See Transfer.check."""
    names: list[str] = []
    for component, source, target in copies:
        _check_ids(component, "source", source)
        _check_ids(component, "target", target)
        if len(source) != len(target):
            raise PageError(f"{component}: {len(source)} source pages for {len(target)} targets")
        names.append(component)
    if len(names) > 1 and len(set(names)) < len(names):
        raise TransferError(f"transfer {ticket}: a component is named twice among {', '.join(names)}")


def _check_ids(component: str, name: str, ids: Any) -> None:
    if type(ids) is np.ndarray and ids.dtype is INT64 and ids.ndim == 1:
        return
    if not isinstance(ids, np.ndarray) or ids.dtype != INT64 or ids.ndim != 1:
        raise PageError(f"{component}: {name} must be a one-dimensional int64 array of page ids, not {ids!r}")
