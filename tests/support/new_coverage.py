"""A coverage of a kind that the library does not have, to go through the random machines.

Nothing but the class and its place in the table of coverages is new, so no module of the tree, the cache or the stores matches
on the kinds of windows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from kinds import FULL, MAMBA, SETS, swa

from unified_tree import Component
from unified_tree.declare import component as declared
from unified_tree.declare.coverage import COVERAGES, _Kind
from unified_tree.declare.suffix import Suffix


@dataclass(frozen=True, slots=True)
class Blocks(_Kind):
    """The block of tokens that lies `back_tokens` before the end, and all behind it."""

    back_tokens: int
    block_tokens: int

    @property
    def suffix(self) -> Suffix:
        """These tokens."""
        return Suffix(self.back_tokens, self.block_tokens)

    @property
    def window_tokens(self) -> int:
        """At most."""
        return self.suffix.most_tokens

    def describe(self) -> str:
        """In words."""
        return f"whole blocks of {self.block_tokens} tokens, {self.back_tokens} back"


def blocks(back: int, size: int, **options: bool) -> Component:
    """A component of it."""
    return Component(name="blocks", coverage=Blocks(back, size), **options)  # type: ignore[arg-type]


NEW = ("blocks", "blocks beside a window", "optional blocks and mamba")


@pytest.fixture(params=NEW)
def new_kinds(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A set of components with such a coverage, by its name in SETS."""
    monkeypatch.setattr(declared, "COVERAGES", (*COVERAGES, Blocks))
    of: dict[str, Callable[[], list[Component]]] = {
        "blocks": lambda: [FULL, blocks(3, 4)],
        "blocks beside a window": lambda: [FULL, blocks(2, 6), swa(5)],
        "optional blocks and mamba": lambda: [FULL, blocks(5, 2, required=False), MAMBA],
    }
    monkeypatch.setitem(SETS, request.param, of[request.param]())
    return str(request.param)
