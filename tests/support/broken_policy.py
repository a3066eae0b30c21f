"""An eviction policy that fails: raises, or gives ranks that nothing can be done with."""

from __future__ import annotations

from math import inf, nan
from random import Random
from typing import Any

from unified_tree import EvictionPolicy, PolicyFactory

NO_RANKS: tuple[Any, ...] = (nan, inf, -inf, (1.0, nan), (0.0, 1.0, 2.0), (), "rank", None, 1j, object(), [3])


class BrokenPolicyError(Exception):
    """What a broken policy raises."""


class BrokenPolicy(EvictionPolicy):
    """Least recently used first, but for a share of its calls."""

    def __init__(self, rng: Random, share: float) -> None:
        self.failures = 0
        self._rng = rng
        self._share = share

    def touched(self, value: Any) -> None:  # noqa: ARG002
        self._maybe_raise()

    def rank(self, value: Any) -> Any:
        self._maybe_raise()
        if self._fails():
            return self._rng.choice(NO_RANKS)
        return value.touched

    def went(self, value: Any, *, is_whole: bool) -> None:  # noqa: ARG002
        self._maybe_raise()

    def _fails(self) -> bool:
        if self._rng.random() < self._share:
            self.failures += 1
            return True
        return False

    def _maybe_raise(self) -> None:
        if self._fails():
            raise BrokenPolicyError("the policy is broken")


def broken_policies(seed: int, made: list[BrokenPolicy]) -> PolicyFactory:
    """A factory of policies that fail now and then, or always; those it made are put into `made`."""
    rng = Random(seed)
    share = rng.choice([0.05, 0.3, 1.0])

    def make(_: object) -> BrokenPolicy:
        made.append(BrokenPolicy(Random(rng.randrange(1 << 20)), share))
        return made[-1]

    return make
