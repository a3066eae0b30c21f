"""A snapshot of a tree as a page draws it: runs of nodes, their sums, and their children by size.

A *run* is a chain of nodes none of which branches, such as the turns of one session. A tree of a million nodes is a few array
operations: runs are found by pointer doubling, and sums go up level by level of runs.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.inspector.tree_walk import (
    COLUMNS,
    COMPONENT_MASK,
    COPYING,
    LOCKED,
    ON_HOST,
    PAGES_SHIFT,
    STRANDED,
)
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]


CIRCLE = "nodes stand below themselves"
TIERS = ("device", "host", "both")


def _most_rounds(count: int) -> int:
    """How often pointers are doubled until all of a path of so many are followed, and it is seen that they are."""
    return count.bit_length() + 2


class TreePicture:
    """One snapshot.

    Args:
        rows, values: as of TreeWalk, all of them.
        roots: (namespace, whether its keys are bigrams, whether it was invalidated).
        page_bytes: by component index.
        clock, at_s: of the tree when the snapshot began.

    Attributes:
        run_of: the run of each node; behind the runs come the roots, as runs without nodes.
        first, last: the first and the last node of each run, by index.
        start, end: of each run, in tokens; touched: its last use, or of what hangs on it.
        parent: of each run; -1 for roots.
        node_count, token_count: nodes and tokens in each run's subtree.
        own, total: bytes of each run and of its subtree, by tier.
    """

    def __init__(
        self,
        rows: Int64s,
        values: Int64s,
        roots: Sequence[tuple[str, bool, bool]],
        page_bytes: Sequence[int],
        clock: int,
        at_s: float,
    ) -> None:
        self.rows = rows.reshape(-1, COLUMNS)
        self.values = values
        self.roots = list(roots)
        self.clock = clock
        self.at_s = at_s
        self._page_bytes = np.array(page_bytes, np.int64)
        self.value_node = np.repeat(np.arange(len(self.rows)), self.rows[:, 7])
        self._link()
        self._sum()

    @property
    def run_count(self) -> int:
        """Runs with nodes; those behind are the roots."""
        return len(self.first)

    def _link(self) -> None:
        """Find the runs."""
        count = len(self.rows)
        ids, parents = self.rows[:, 0], self.rows[:, 1]
        order = np.argsort(ids, kind="stable")
        self._by_id = order
        at = np.minimum(np.searchsorted(ids, parents, sorter=order), max(count - 1, 0))
        index = order[at] if count else at
        above = np.where((parents != 0) & (ids[index] == parents), index, -1) if count else index
        children = np.bincount(above[above >= 0], minlength=count)
        head = np.arange(count)
        goes_on = (above >= 0) & (children[above] == 1)
        head[goes_on] = above[goes_on]
        for _ in range(_most_rounds(count)):
            further = head[head]
            if np.array_equal(further, head):
                break
            head = further
        else:
            raise ConfigurationError(CIRCLE)
        self.first = np.flatnonzero(head == np.arange(count))
        number = np.empty(count, np.int64)
        number[self.first] = np.arange(len(self.first))
        self.run_of = number[head]
        by_end = np.argsort(self.rows[:, 3], kind="stable")
        self.last = np.empty(len(self.first), np.int64)
        self.last[self.run_of[by_end]] = by_end
        self.start, self.end = self.rows[self.first, 2], self.rows[self.last, 3]
        over = above[self.first]
        root = self.run_count + self.rows[self.first, 4]
        self.parent = np.concatenate([np.where(over >= 0, self.run_of[over], root), np.full(len(self.roots), -1)])

    def _sum(self) -> None:
        """Add up bytes, nodes and uses, from the deepest level of runs upwards."""
        count = self.run_count + len(self.roots)
        component = self.values & COMPONENT_MASK
        size = (self.values >> PAGES_SHIFT) * self._page_bytes[component]
        on_host = (self.values & ON_HOST) != 0
        run = self.run_of[self.value_node]
        self.own = {
            "device": np.bincount(run[~on_host], size[~on_host], count),
            "host": np.bincount(run[on_host], size[on_host], count),
        }
        self.own["both"] = self.own["device"] + self.own["host"]
        self.total = {tier: own.copy() for tier, own in self.own.items()}
        self.node_count = np.bincount(self.run_of, minlength=count)
        self.token_count = np.concatenate([self.end - self.start, np.zeros(len(self.roots), np.int64)])
        self.touched = np.zeros(count, np.int64)
        np.maximum.at(self.touched, self.run_of, self.rows[:, 6])
        for level in self._levels():
            above = self.parent[level]
            for total in self.total.values():
                np.add.at(total, above, total[level])
            for below in (self.node_count, self.token_count):
                np.add.at(below, above, below[level])
            np.maximum.at(self.touched, above, self.touched[level])

    def _levels(self) -> list[Int64s]:
        """The runs by depth, the deepest first, roots left out."""
        count = len(self.parent)
        is_root = self.parent < 0
        jump = np.where(is_root, np.arange(count), self.parent)
        depth = (~is_root).astype(np.int64)
        for _ in range(_most_rounds(count)):
            added = depth[jump]
            if not added.any():
                break
            depth = depth + added
            jump = jump[jump]
        else:
            raise ConfigurationError(CIRCLE)
        order = np.argsort(depth, kind="stable")
        edges = np.searchsorted(depth[order], np.arange(1, depth.max(initial=0) + 2))
        return [order[begin:end] for begin, end in pairwise(edges.tolist())][::-1]

    def children(self, run: int, tier: str) -> Int64s:
        """The children of a run or of a root, the largest first. Cost: O(log runs)."""
        order, parents = self._by_size[tier]
        begin, end = np.searchsorted(parents, (run, run + 1))
        return order[begin:end]

    @cached_property
    def _by_size(self) -> dict[str, tuple[Int64s, Int64s]]:
        """All runs by parent and then by size; and their parents in that order."""
        found = {}
        for tier in TIERS:
            order = np.lexsort((-self.total[tier], self.parent))
            found[tier] = (order, self.parent[order])
        return found

    def prepare(self) -> None:
        """Sort what `children` needs."""
        _ = self._by_size, self._nodes_by_run

    @cached_property
    def _nodes_by_run(self) -> tuple[Int64s, Int64s]:
        order = np.lexsort((self.rows[:, 3], self.run_of))
        return order, self.run_of[order]

    def nodes(self, run: int) -> Int64s:
        """The nodes of a run, by index, from its start on."""
        order, runs = self._nodes_by_run
        begin, end = np.searchsorted(runs, (run, run + 1))
        return order[begin:end]

    def run_of_node(self, node_id: int) -> int | None:
        """The run of a node; None for one that the snapshot lacks."""
        ids = self.rows[:, 0]
        at = int(np.searchsorted(ids, node_id, sorter=self._by_id))
        if at == len(ids) or ids[self._by_id[at]] != node_id:
            return None
        return int(self.run_of[self._by_id[at]])

    @cached_property
    def _values_at(self) -> Int64s:
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.rows[:, 7])])

    def values_of(self, node: int) -> Int64s:
        """The values of a node, by its index."""
        return self.values[self._values_at[node] : self._values_at[node + 1]]

    def holdings(self, run: int) -> list[dict[str, Any]]:
        """What the nodes of a run hold, by component and tier, in pages and bytes."""
        sums: dict[tuple[int, int], list[int]] = {}
        for node in self.nodes(run).tolist():
            for value in self.values_of(node).tolist():
                pages = value >> PAGES_SHIFT
                held = sums.setdefault((value & COMPONENT_MASK, int(bool(value & ON_HOST))), [0, 0, 0, 0, 0])
                for i, flag in enumerate((LOCKED, STRANDED, COPYING)):
                    held[i + 2] += pages if value & flag else 0
                held[0] += 1
                held[1] += pages
        return [
            {
                "component": component,
                "tier": tier,
                "values": held[0],
                "pages": held[1],
                "bytes": held[1] * int(self._page_bytes[component]),
                "locked": held[2],
                "stranded": held[3],
                "copying": held[4],
            }
            for (component, tier), held in sorted(sums.items())
        ]


MAX_RECTANGLES = 4000
MAX_TICKS = 40
MAX_BRANCHES = 30
RECTANGLE = (
    "run", "level", "left", "width", "start", "end", "bytes", "nodes", "tokens", "touched", "ticks", "boundaries", "label"
)  # fmt: skip
EVERYTHING = -1
"""The run above all namespaces."""


def flame(picture: TreePicture, run: int, tier: str, width_px: int, levels: int) -> dict[str, Any]:
    """The rectangles below a run, level by level.

    Args:
        run: at the top; EVERYTHING for all namespaces.
        width_px: how wide the top is drawn; what would be narrower than two pixels is added up.
        levels: how many levels.

    A rectangle has the fields of RECTANGLE: left and width as parts of the top's; bytes, nodes and tokens with all below; and
    ticks the boundaries, as parts of the run, MAX_TICKS at most. Runs that are too narrow are drawn as a rectangle of run -2.
    Cost: O(rectangles log runs).
    """
    total = picture.total[tier]
    if run == EVERYTHING:
        tops = picture.run_count + np.arange(len(picture.roots))
        tops = tops[np.argsort(-total[tops], kind="stable")]
        whole = float(total[tops].sum())
        pending = [(tops, 0.0, 1)]
        tokens = int(picture.token_count[tops].sum())
        shapes = [[EVERYTHING, 0, 0.0, 1.0, 0, 0, whole, len(picture.rows), tokens, picture.clock, [], 0, "everything"]]
    else:
        whole = float(total[run])
        pending = [(picture.children(run, tier), 0.0, 1)]
        shapes = [_rectangle(picture, run, tier, 0, 0.0, 1.0)]
    narrowest = 2.0 / max(width_px, 1)
    at = 0
    while at < len(pending) and whole > 0:
        runs, left, level = pending[at]
        at += 1
        if level > levels or not len(runs):
            continue
        parts = total[runs] / whole
        shown = min(int(np.searchsorted(-parts, -narrowest, side="right")), max(MAX_RECTANGLES - len(shapes), 0))
        for child, part in zip(runs[:shown].tolist(), parts[:shown].tolist(), strict=True):
            shapes.append(_rectangle(picture, child, tier, level, left, part))
            pending.append((picture.children(child, tier), left, level + 1))
            left += part
        rest = runs[shown:]
        if len(rest) and (part := float(parts[shown:].sum())) > narrowest / 4:
            nodes, tokens = (int(counts[rest].sum()) for counts in (picture.node_count, picture.token_count))
            touched = int(picture.touched[rest].max())
            shapes.append([-2, level, left, part, 0, 0, part * whole, nodes, tokens, touched, [], 0, f"{len(rest):,} more"])
    return {"run": run, "tier": tier, "bytes": whole, "clock": picture.clock, "rectangles": shapes, "path": path(picture, run)}


def _rectangle(picture: TreePicture, run: int, tier: str, level: int, left: float, width: float) -> list[Any]:
    start = end = boundaries = 0
    ticks: list[float] = []
    if run < picture.run_count:
        start, end = int(picture.start[run]), int(picture.end[run])
        nodes = picture.nodes(run)
        ends = picture.rows[nodes[picture.rows[nodes, 5] == 1], 3]
        boundaries = len(ends)
        if boundaries > MAX_TICKS:
            ends = ends[np.linspace(0, len(ends) - 1, MAX_TICKS).astype(int)]
        ticks = np.round((ends - start) / max(end - start, 1), 4).tolist()
    size, nodes_below = float(picture.total[tier][run]), int(picture.node_count[run])
    return [
        run,
        level,
        round(left, 6),
        round(width, 6),
        start,
        end,
        size,
        nodes_below,
        int(picture.token_count[run]),
        int(picture.touched[run]),
        ticks,
        boundaries,
        label(picture, run),
    ]


def label(picture: TreePicture, run: int) -> str:
    """The name of a run: its namespace, or its last node and its tokens."""
    if run == EVERYTHING:
        return "everything"
    if run >= picture.run_count:
        namespace, bigram, is_retired = picture.roots[run - picture.run_count]
        return (namespace or "(no namespace)") + " bigrams" * bigram + " (invalidated)" * is_retired
    return f"#{picture.rows[picture.last[run], 0]} [{picture.start[run]:,}, {picture.end[run]:,})"


def path(picture: TreePicture, run: int) -> list[list[Any]]:
    """A run and all above it, with their names, the outermost first."""
    found = []
    while run >= 0:
        found.append([run, label(picture, run)])
        run = int(picture.parent[run])
    return [[EVERYTHING, "everything"], *reversed(found)]


def run_details(picture: TreePicture, run: int) -> dict[str, Any]:
    """All details of a run; `largest` are its largest branches, which may be too narrow to be drawn."""
    branches, totals, counts = picture.children(run, "both"), picture.total["both"], picture.node_count
    shown = branches[:MAX_BRANCHES].tolist()
    details: dict[str, Any] = {
        "run": run,
        "label": label(picture, run),
        "path": path(picture, run),
        "largest": [[branch, label(picture, branch), float(totals[branch]), int(counts[branch])] for branch in shown],
        "children": len(branches),
    }
    if not 0 <= run < picture.run_count:
        return details
    nodes = picture.nodes(run)
    ends = picture.rows[nodes[picture.rows[nodes, 5] == 1], 3]
    return details | {
        "start": int(picture.start[run]),
        "end": int(picture.end[run]),
        "nodes": len(nodes),
        "below": int(picture.node_count[run]) - len(nodes),
        "boundaries": len(ends),
        "last_boundaries": ends[-8:].tolist(),
        "bytes": {tier: float(picture.total[tier][run]) for tier in ("device", "host")},
        "touched": int(picture.touched[run]),
        "holdings": picture.holdings(run),
    }
