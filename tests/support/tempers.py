"""An eviction policy that raises in the middle of whatever it is asked for, once it has lost its temper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unified_tree import POLICIES, EvictionPolicy, TreeView
from unified_tree.nodes.node import Value
from unified_tree.policies.eviction_policy import Rank


class TemperError(Exception):
    """What it raises."""


class Tempers:
    """Makes such policies over one of the library's own; all of them lose their tempers together.

    Args:
        name: of the policy that ranks while they keep it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._patience: int | None = None

    def __call__(self, view: TreeView) -> EvictionPolicy:
        """As a PolicyFactory."""
        return _Moody(POLICIES[self._name](view), self)

    @contextmanager
    def short(self, patience: int) -> Iterator[None]:
        """After so many questions, raise."""
        self._patience = patience
        try:
            yield
        finally:
            self._patience = None

    def asked(self) -> None:
        """One more question."""
        if self._patience is not None:
            self._patience -= 1
            if self._patience < 0:
                raise TemperError


class _Moody(EvictionPolicy):
    compares_across_pools = True

    def __init__(self, inner: Any, tempers: Tempers) -> None:
        self._inner = inner
        self._tempers = tempers

    def touched(self, value: Value) -> None:
        self._tempers.asked()
        self._inner.touched(value)

    def rank(self, value: Value) -> Rank:
        self._tempers.asked()
        rank: Rank = self._inner.rank(value)
        return rank

    def went(self, value: Value, *, is_whole: bool) -> None:
        self._tempers.asked()
        self._inner.went(value, is_whole=is_whole)
