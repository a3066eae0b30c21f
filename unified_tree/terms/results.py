"""The results of the tree's operations: boundaries, matches, insert and evict results."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

from unified_tree.terms.errors import StaleBoundaryError
from unified_tree.terms.tier import ROOT_ID, NodeId

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

record = tuple.__new__
"""Makes a NamedTuple of all its fields, without the Python frame of its own constructor: `record(Boundary, (node, length))`."""


class Boundary(NamedTuple):
    """A length one can resume from: every required component is covered there. It has `length` tokens and ends in, or at the
    end of, `node`.

    It stays meaningful while the tree changes; locking it revalidates it. Length zero is a boundary of every key.
    """

    node: NodeId
    length: int


NOWHERE = Boundary(ROOT_ID, 0)


class Match(NamedTuple):
    """What the tree has of a key's prefix.

    Attributes:
        device: the longest boundary covered on device.
        reachable: the longest boundary covered over device and host together.
        rebuild: where a run can resume after rebuilding the windows: it runs `rebuild_tokens` tokens again, reading the cached
            path pages. Equal to `device` where that would not help.
        rebuild_tokens: how many tokens before `rebuild.length` must run again; 0 where `rebuild` is `device`.
        path_length: how far the required path components reach over device and host, the others ignored.
        save_at: lengths at which the next prefill should save states and windows, so that the next prompt with this prefix
            hits: where this key branches off from the tree.
        known: how far the tree's nodes know this key, whatever they still have of it.
    """

    device: Boundary
    reachable: Boundary
    rebuild: Boundary
    rebuild_tokens: int
    path_length: int
    save_at: tuple[int, ...]
    known: Boundary


class InsertResult(NamedTuple):
    """What became of an insert. The caller owns the pages in `duplicates` and `replaced` and frees them.

    Attributes:
        boundary: where the key's whole pages now end; lock it to keep them.
        matched_length: how many tokens the tree knew before.
        duplicates: given pages the tree did not keep, by component, int64.
        replaced: pages the tree gave up for given ones that carry more components, by component, int64.
        canonical: the tree's own pages for the pages given, by component, read-only int64, in the key's order; of windows the
            part that was kept. -1 where an optional path has no page, because its parent has none. Windows have no entry and
            stay the caller's if a policy refused one of them, or if the tree's pages are locked and lack a required sharer's
            state that the given ones have. They may lack an optional one's: `UnifiedTree.pages` of the boundary tells.
    """

    boundary: Boundary
    matched_length: int
    duplicates: dict[str, NDArray[np.int64]]
    replaced: dict[str, NDArray[np.int64]]
    canonical: dict[str, NDArray[np.int64]]


class EvictResult(NamedTuple):
    """What an eviction freed. The caller owns the pages and returns them to their pools.

    Attributes:
        freed: page ids on the tier that was short, by component, int64; components that lost nothing are absent.
        freed_elsewhere: likewise on the other tier, for what could not stand without a victim.
        victims: how many values were chosen; values removed along with them are not counted.
        tombstones: victims whose node stayed in the tree.
        deleted_nodes: nodes that left the tree, or, of a leaf that was cut, its end.
        lost: victims that a boundary needed and that had no copy on the other tier.
    """

    freed: dict[str, NDArray[np.int64]]
    freed_elsewhere: dict[str, NDArray[np.int64]]
    victims: int
    tombstones: int
    deleted_nodes: int
    lost: int


def checked_boundary(boundary: Any) -> Boundary:
    """`boundary` with plain integers. Raises StaleBoundaryError for anything that is not a Boundary."""
    if isinstance(boundary, Boundary) and type(boundary[0]) is type(boundary[1]) is int:
        return boundary
    try:
        node, length = boundary
        return Boundary(NodeId(index(node)), index(length))
    except (TypeError, ValueError):
        raise StaleBoundaryError(f"a Boundary is needed, not this {type(boundary).__name__}; match again") from None
