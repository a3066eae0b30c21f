"""Coverages: which of its pages a component must have for a prefix to be resumable at a boundary.

A *boundary* is a length one can resume from. Code that sizes a pool, stores, links or reports asks a coverage's methods and
never its type. `Coverage` is the union of all coverages. A component refuses any other, subclasses included, because the tree
would not honour what they redefine.

The tree's own machinery does not call these methods for every node: one call a node and component would cost more than the
rest of a match. `ComponentLayout` groups the components once by the three ways in which a value can lie at a node: a path's
value covers its node, a window's covers a suffix of the path, a state's is one page at the node's end. Of a window the tree
asks only its `Suffix`: from which token on a boundary needs it, and up to which length a token is needed. So a new kind of
window is a class here, its name in `COVERAGES` and in `unified_tree/__init__.py`, and a test.

*Leading* pages (those of the first n tokens, which attention sinks beside a window read) are such another shape, and are not
supported. A value holds the *last* pages of its node, and serves boundaries in its node or at most a window behind; a leading
one serves every boundary below, so that matching, locks and the count of stranded values would have to look from each node to
the root. A required path is held by locks on its own nodes, and a leading value would end above them. No served model keeps
such tokens. Declare the layers that read sinks as a `Path`, or as a `Trailing` beside a `Point` that holds the sinks' rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final

from unified_tree.declare.suffix import Suffix
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError


class _Kind(ABC):
    """What all coverages answer.

    Attributes:
        is_path: every page of the prefix is needed, so that boundaries share their pages.
        is_exact: a value is valid only at the exact length where it was saved.

    A `window_tokens` that is not None is how many past tokens some boundary needs of a window, at most.
    """

    __slots__ = ()
    is_path: ClassVar[bool] = False
    is_exact: ClassVar[bool] = False

    @property
    def suffix(self) -> Suffix | None:
        """The last tokens that a boundary needs, for a window of whatever kind; None for all other coverages."""
        return None

    def first_page(self, length_tokens: int, page_size: int) -> int:
        """The index of the first page that a boundary at `length_tokens` needs; the page behind the last one if it needs none.

        >>> Path().first_page(64, 16), Trailing(20).first_page(64, 16), Point().first_page(64, 16)
        (0, 2, 3)
        """
        suffix = self.suffix
        if suffix is not None:
            return suffix.start(length_tokens) // page_size
        return max(0, length_tokens - 1) // page_size if self.is_exact else 0

    def pages_needed(self, length_tokens: int, page_size: int) -> int:
        """How many pages a boundary at `length_tokens`, the end of a page, needs.

        >>> Path().pages_needed(64, 16), Trailing(20).pages_needed(64, 16), Point().pages_needed(64, 16)
        (4, 2, 1)
        """
        suffix, tokens = self.suffix, length_tokens
        if suffix is not None:
            tokens = length_tokens - suffix.start(length_tokens)
        elif self.is_exact:
            tokens = min(1, length_tokens)
        return -(-tokens // page_size)

    def boundary_pages(self, page_size: int) -> int:
        """Pages kept for one boundary, however long; 0 for a path, whose pages all boundaries share."""
        suffix = self.suffix
        return -(-(int(self.is_exact) if suffix is None else suffix.most_tokens) // page_size)

    def why_not_in(self, owner: Coverage) -> str | None:
        """Why a component of this coverage cannot live in the pages of one of coverage `owner`; None if it can."""
        return None if type(owner) is type(self) else "their coverage is of another kind"

    @abstractmethod
    def describe(self) -> str:
        """The pages that a boundary needs, in words.

        >>> Trailing(1023).describe()
        'the last 1,023 tokens'
        """

    def describe_pages(self, page_count: int, page_size: int) -> str:
        """The capacity of so many pages, in words.

        >>> Trailing(1023).describe_pages(64, 64)
        '4,096 tokens, 4 windows'
        """
        return f"{page_count * page_size:,} tokens"


MAX_TOKENS: Final = 1 << 48
"""No window is longer, and no grid of saved states coarser: sums of a few of these are native integers."""
NO_LENGTH: Final = 1 << 62
"""In place of a length where there is none: longer than any text."""


@dataclass(frozen=True, slots=True)
class Path(_Kind):
    """Every page of `[0, p)`: full attention, MLA latents, an indexer's keys, compressed KV."""

    is_path: ClassVar[bool] = True
    window_tokens: ClassVar[None] = None

    def describe(self) -> str:
        """The pages that a boundary needs, in words."""
        return "every token"


@dataclass(frozen=True, slots=True)
class Trailing(_Kind):
    """The pages of the last `min(window_tokens, p)` tokens.

    `window_tokens` counts the *past* tokens the next one needs. A model's `sliding_window` usually counts the query
    itself, so it is one more. It need not be a multiple of the page size.
    """

    window_tokens: int

    def __post_init__(self) -> None:
        _check(self.window_tokens, "Trailing: window_tokens")

    @property
    def suffix(self) -> Suffix:
        """The tokens of the window."""
        return Suffix(self.window_tokens)

    def why_not_in(self, owner: Coverage) -> str | None:
        """As for all coverages; and a window does not fit into the pages of a shorter one."""
        if isinstance(owner, Trailing) and self.window_tokens > owner.window_tokens:
            return f"it needs {self.window_tokens} past tokens, and those pages are kept for {owner.window_tokens} only"
        return _Kind.why_not_in(self, owner)

    def describe(self) -> str:
        """The pages that a boundary needs, in words."""
        return f"the last {self.window_tokens:,} tokens"

    def describe_pages(self, page_count: int, page_size: int) -> str:
        """The capacity of so many pages, in words."""
        tokens = page_count * page_size
        return f"{tokens:,} tokens, {tokens // self.window_tokens:,} windows"


@dataclass(frozen=True, slots=True)
class Point(_Kind):
    """One state saved at exactly `p`: Mamba, gated delta nets, other linear attention."""

    is_exact: ClassVar[bool] = True
    window_tokens: ClassVar[None] = None

    def describe(self) -> str:
        """The pages that a boundary needs, in words."""
        return "one state at its end"

    def describe_pages(self, page_count: int, page_size: int) -> str:  # noqa: ARG002  a state takes a page of any size
        """The capacity of so many pages, in words; a page is a state."""
        return f"{page_count:,} states"


@dataclass(frozen=True, slots=True)
class Chunked(_Kind):
    """The pages of the tokens since the last multiple of `chunk_tokens`: layers whose attention sees only its own chunk.

    At a multiple of `chunk_tokens` nothing is needed, so a prompt can resume there whatever was evicted of these layers.
    """

    chunk_tokens: int

    def __post_init__(self) -> None:
        _check(self.chunk_tokens, "Chunked: chunk_tokens")

    @property
    def suffix(self) -> Suffix:
        """The tokens of the chunk that is not whole."""
        return Suffix(0, self.chunk_tokens)

    @property
    def window_tokens(self) -> int:
        """How many past tokens some boundary needs, at most."""
        return self.chunk_tokens - 1

    def why_not_in(self, owner: Coverage) -> str | None:
        """As for all coverages; and a chunk fits only into those of a multiple of its size."""
        if isinstance(owner, Chunked) and owner.chunk_tokens % self.chunk_tokens:
            return f"its chunks of {self.chunk_tokens} tokens do not divide those of {owner.chunk_tokens}"
        return _Kind.why_not_in(self, owner)

    def describe(self) -> str:
        """The pages that a boundary needs, in words."""
        return f"the tokens since the last multiple of {self.chunk_tokens:,}"

    def describe_pages(self, page_count: int, page_size: int) -> str:
        """The capacity of so many pages, in words."""
        tokens = page_count * page_size
        return f"{tokens:,} tokens, {tokens // self.chunk_tokens:,} chunks"


def _check(tokens: object, what: str) -> None:
    if type(tokens) is not int or tokens <= 0:
        raise ConfigurationError(f"{what} must be a positive integer, not {repr_of(tokens)}")
    if tokens > MAX_TOKENS:
        raise ConfigurationError(f"{what} must be at most 2**48, not {tokens}")


Coverage = Path | Trailing | Chunked | Point
COVERAGES: Final = (Path, Trailing, Chunked, Point)
"""The same, to be gone through."""
