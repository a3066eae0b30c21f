"""What is checked of a transfer's copies before an engine takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy import ndarray

from unified_tree.inputs.arguments import INT64
from unified_tree.terms.errors import PageError, TransferError

if TYPE_CHECKING:
    from unified_tree.nodes.effect import Copy


ARRAY: Final[Any] = ndarray
"""Looked up once."""


def check_copies(ticket: int, copies: tuple[Copy, ...]) -> int:
    """See Transfer.check; returns how many pages are copied."""
    page_count = 0
    names: list[str] = []
    for component, source, target in copies:
        _check_ids(component, "source", source)
        _check_ids(component, "target", target)
        count = len(source)
        if count != len(target):
            raise PageError(f"{component}: {count} source pages for {len(target)} targets")
        page_count += count
        if component in names:
            every = ", ".join([name for name, _, _ in copies])
            raise TransferError(f"transfer {ticket}: a component is named twice among {every}")
        names.append(component)
    return page_count


def _check_ids(component: str, name: str, ids: Any) -> None:
    if type(ids) is ARRAY and ids.dtype is INT64 and ids.ndim == 1:
        return
    if not isinstance(ids, np.ndarray) or ids.dtype != INT64 or ids.ndim != 1:
        raise PageError(f"{component}: {name} must be a one-dimensional int64 array of page ids, not {ids!r}")
