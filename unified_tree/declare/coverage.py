"""Coverages: which of its pages a component must have for a prefix to be resumable at a boundary.

A *boundary* is a length one can resume from. Code that sizes a pool, stores, links or reports asks a coverage's methods and
never its type. `Coverage` is the union of all coverages. A component refuses any other, subclasses included, because the tree
would not honour what they redefine.

The tree's own machinery does not call these methods for every node. It groups the components once, in `TreeState`, by the
three ways in which a value can lie at a node, and goes through the group that it needs: one call a node and component would
cost more than the rest of a match. A new coverage whose pages also are a suffix of the prefix (a window of some kind) is a
class here and a group there. One of another shape touches these places besides, and no others:

- `TreeState._group_components`: its group.
- `splitting`: how a value is divided when its node is cut; today a suffix of the node's pages goes to the lower part.
- `matching`: what it asks of a length (`deepest_boundary`), and its pages (`collect`); `Locks._lock_all` and
  `OpenEffects._missing`: which values a boundary needs; `explain`: how far it reaches alone.
- `resumability`: the same for a node's end, in O(1), and which values no boundary needs (`mark_values`).
- `insert_plan` and `inserting`: how its pages are given and where they are placed.
- `invariants.shapes`: how many pages a value may have.

*Leading* pages (those of the first n tokens, which attention sinks beside a window read) are such another shape, and are not
supported: a value holds the *last* pages of its node, and what every boundary needs would have to stay when its node is cut,
evicted or loaded. Declare the layers that read sinks as a `Path`: exact, for more memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final

from unified_tree.terms.errors import ConfigurationError


class _Kind(ABC):
    """What all coverages answer.

    Attributes:
        is_path: every page of the prefix is needed, so that boundaries share their pages.
        is_exact: a value is valid only at the exact length where it was saved.
    """

    __slots__ = ()
    is_path: ClassVar[bool] = False
    is_exact: ClassVar[bool] = False

    @property
    @abstractmethod
    def trailing_tokens(self) -> int | None:
        """How many tokens before a boundary the needed pages must hold; None for all of them."""

    def first_page(self, length_tokens: int, page_size: int) -> int:
        """The index of the first page that a boundary at `length_tokens` needs.

        >>> Path().first_page(64, 16), Trailing(20).first_page(64, 16), Point().first_page(64, 16)
        (0, 2, 3)
        """
        tokens = self.trailing_tokens
        return 0 if tokens is None else max(0, length_tokens - tokens) // page_size

    def pages_needed(self, length_tokens: int, page_size: int) -> int:
        """How many pages a boundary at `length_tokens`, the end of a page, needs.

        >>> Path().pages_needed(64, 16), Trailing(20).pages_needed(64, 16), Point().pages_needed(64, 16)
        (4, 2, 1)
        """
        tokens = self.trailing_tokens
        return -(-(length_tokens if tokens is None else min(tokens, length_tokens)) // page_size)

    def boundary_pages(self, page_size: int) -> int:
        """Pages kept for one boundary, however long; 0 for a path, whose pages all boundaries share."""
        return -(-(self.trailing_tokens or 0) // page_size)

    def why_not_in(self, owner: Coverage) -> str | None:
        """Why a component of this coverage cannot live in the pages of one of coverage `owner`; None if it can."""
        return None if type(owner) is type(self) else "their coverage is of another kind"

    @abstractmethod
    def describe(self) -> str:
        """What a boundary needs, in words.

        >>> Trailing(1023).describe()
        'the last 1,023 tokens'
        """

    def describe_pages(self, page_count: int, page_size: int) -> str:
        """What so many pages can hold, in words.

        >>> Trailing(1023).describe_pages(64, 64)
        '4,096 tokens, 4 windows'
        """
        return f"{page_count * page_size:,} tokens"


MAX_TOKENS: Final = 1 << 48
"""No window is longer, and no grid of saved states coarser: sums of a few of these are native integers."""


@dataclass(frozen=True, slots=True)
class Path(_Kind):
    """Every page of `[0, p)`: full attention, MLA latents, an indexer's keys, compressed KV."""

    is_path: ClassVar[bool] = True
    window_tokens: ClassVar[None] = None

    @property
    def trailing_tokens(self) -> None:
        """None: all tokens."""
        return None

    def describe(self) -> str:
        """What a boundary needs, in words."""
        return "every token"


@dataclass(frozen=True, slots=True)
class Trailing(_Kind):
    """The pages of the last `min(window_tokens, p)` tokens.

    `window_tokens` counts the *past* tokens the next one needs. A model's `sliding_window` usually counts the query
    itself, so it is one more. It need not be a multiple of the page size.
    """

    window_tokens: int

    def __post_init__(self) -> None:
        if type(self.window_tokens) is not int or self.window_tokens <= 0:
            raise ConfigurationError(f"Trailing: window_tokens must be a positive integer, not {self.window_tokens!r}")
        if self.window_tokens > MAX_TOKENS:
            raise ConfigurationError(f"Trailing: window_tokens must be at most 2**48, not {self.window_tokens}")

    @property
    def trailing_tokens(self) -> int:
        """The window."""
        return self.window_tokens

    def why_not_in(self, owner: Coverage) -> str | None:
        """As for all coverages; and a window does not fit into the pages of a shorter one."""
        if isinstance(owner, Trailing) and self.window_tokens > owner.window_tokens:
            return f"it needs {self.window_tokens} past tokens, and those pages are kept for {owner.window_tokens} only"
        return _Kind.why_not_in(self, owner)

    def describe(self) -> str:
        """What a boundary needs, in words."""
        return f"the last {self.window_tokens:,} tokens"

    def describe_pages(self, page_count: int, page_size: int) -> str:
        """What so many pages can hold, in words."""
        tokens = page_count * page_size
        return f"{tokens:,} tokens, {tokens // self.window_tokens:,} windows"


@dataclass(frozen=True, slots=True)
class Point(_Kind):
    """One state saved at exactly `p`: Mamba, gated delta nets, other linear attention."""

    is_exact: ClassVar[bool] = True
    window_tokens: ClassVar[None] = None

    @property
    def trailing_tokens(self) -> int:
        """One: the state stands in the place of the last page."""
        return 1

    def describe(self) -> str:
        """What a boundary needs, in words."""
        return "one state at its end"

    def describe_pages(self, page_count: int, page_size: int) -> str:  # noqa: ARG002  a state takes a page of any size
        """What so many pages can hold, in words; a page is a state."""
        return f"{page_count:,} states"


Coverage = Path | Trailing | Point
COVERAGES: Final = (Path, Trailing, Point)
"""The same, to be gone through."""
