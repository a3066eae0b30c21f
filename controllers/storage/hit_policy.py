"""Which lengths of a prefix can be restored from a store: a pure function of what was found there.

The set of restorable lengths is computed for each pool, intersected over pools, then over ranks, and only then its maximum is
taken. The minimum of the pools' own maxima would be wrong, because it may be a length that only one pool can restore. Lengths
are in pages; a set is a boolean array in which index n stands for the first n pages, and index 0 is always true. Cost: O(pages)
a pool, in numpy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from unified_tree.declare.component import Component
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError


class HitPolicy(Enum):
    """Which of a pool's pages a length needs."""

    ALL_PAGES = "all_pages"
    """Every page before it."""
    TRAILING_PAGES = "trailing_pages"
    """The pages of its last tokens, and a restore-point record that attests them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNeed:
    """What a length needs of one pool.

    Attributes:
        policy: all pages or the trailing ones.
        window_tokens: how many tokens before the length the trailing pages must hold; 1 for a state saved at the length.
        grid_tokens: the trailing pages begin at a multiple of so many tokens, at or before that.
    """

    policy: HitPolicy
    window_tokens: int = 1
    grid_tokens: int = 1

    def __post_init__(self) -> None:
        if type(self.grid_tokens) is not int or self.grid_tokens <= 0:
            raise ConfigurationError(f"grid_tokens must be a positive integer, not {repr_of(self.grid_tokens)}")
        if type(self.window_tokens) is not int or self.window_tokens < int(self.grid_tokens == 1):
            raise ConfigurationError(f"window_tokens must be a positive integer, not {repr_of(self.window_tokens)}")

    def first_page(self, length_tokens: int, page_size: int) -> int:
        """The first page that a length, the end of a page, needs."""
        return int(self.first_pages(length_tokens // page_size, page_size)[-1])

    def first_pages(self, page_count: int, page_size: int) -> NDArray[np.int64]:
        """For each length of 0 … page_count pages the first page it needs. Shape [page_count + 1].

        >>> PoolNeed(policy=HitPolicy.TRAILING_PAGES, window_tokens=5).first_pages(4, 4)
        array([0, 0, 0, 1, 2])
        """
        lengths = np.arange(page_count + 1, dtype=np.int64)
        if self.policy is HitPolicy.ALL_PAGES:
            return np.zeros_like(lengths)
        first: NDArray[np.int64] = lengths * page_size - self.window_tokens
        first -= first % self.grid_tokens
        first_pages: NDArray[np.int64] = np.maximum(0, first) // page_size
        return first_pages


def need_of(component: Component) -> PoolNeed:
    """The need of a component: ALL_PAGES for a path, the window of a trailing one, one page for a state."""
    coverage = component.coverage
    if coverage.is_path:
        return PoolNeed(policy=HitPolicy.ALL_PAGES)
    suffix = coverage.suffix
    if suffix is None:
        return PoolNeed(policy=HitPolicy.TRAILING_PAGES)
    return PoolNeed(policy=HitPolicy.TRAILING_PAGES, window_tokens=suffix.back_tokens, grid_tokens=suffix.grid_tokens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoolFinding:
    """The pages found of one required pool.

    Attributes:
        need: what a length needs of it.
        pages: shape [page_count], bool: which pages are available: stored, or already in host memory.
        attested: shape [page_count], integers, only for TRAILING_PAGES: how many of this pool's pages, up to and with
            page i, the record after page i attests; 0 where there is no record. `attested_pages` makes it.
    """

    need: PoolNeed
    pages: NDArray[np.bool_]
    attested: NDArray[np.int64] | None = None

    def restorable(self, page_size: int) -> NDArray[np.bool_]:
        """The set of lengths that this pool alone can restore, shape [page_count + 1].

        Raises ConfigurationError for trailing pages without `attested`, or of another shape than `pages`.
        """
        count = len(self.pages)
        first = self.need.first_pages(count, page_size)
        missing = np.concatenate((np.zeros(1, np.int64), np.cumsum(~self.pages)))
        whole: NDArray[np.bool_] = missing == missing[first]
        if self.need.policy is HitPolicy.TRAILING_PAGES:
            if self.attested is None or self.attested.shape != self.pages.shape:
                raise ConfigurationError(f"trailing pages need how many of them are attested, an array of {count} counts")
            whole[1:] &= self.attested >= np.arange(1, count + 1) - first[1:]
        return whole


def restorable_lengths(findings: Iterable[PoolFinding], page_count: int, page_size: int) -> NDArray[np.bool_]:
    """The set of lengths that all pools can restore, shape [page_count + 1], on one rank.

    Only required pools belong here; an optional one never shortens a hit.

    >>> kv = PoolFinding(need=PoolNeed(policy=HitPolicy.ALL_PAGES), pages=np.array([True, True, True]))
    >>> state = PoolFinding(
    ...     need=PoolNeed(policy=HitPolicy.TRAILING_PAGES), pages=np.array([False, True, False]), attested=np.array([0, 1, 0])
    ... )
    >>> longest(restorable_lengths([kv, state], 3, 64))
    2
    """
    common = np.ones(page_count + 1, np.bool_)
    for finding in findings:
        if finding.pages.shape != (page_count,):
            raise ConfigurationError(f"a finding of shape {finding.pages.shape} for {page_count} pages")
        common &= finding.restorable(page_size)
    return common


def longest(lengths: NDArray[np.bool_]) -> int:
    """The largest length in the set, in pages; 0 is always in it."""
    return int(np.flatnonzero(lengths)[-1])
