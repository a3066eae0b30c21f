"""The flame view: the rectangles of a subtree that are wide enough to be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from unified_tree.controllers.inspector.tree_picture import TreePicture

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
    ticks the lengths that one can resume from, as parts of the run, MAX_TICKS of all its boundaries. What was too narrow is one
    with run -2.
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
    """What a run is called: its namespace, or its last node and its tokens."""
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
    """What there is to say about one run; `largest` are its largest branches, which may be too narrow to be drawn."""
    branches = picture.children(run, "both")[:MAX_BRANCHES].tolist()
    totals, counts = picture.total["both"], picture.node_count
    largest = [[branch, label(picture, branch), float(totals[branch]), int(counts[branch])] for branch in branches]
    if not 0 <= run < picture.run_count:
        return {
            "run": run,
            "label": label(picture, run),
            "path": path(picture, run),
            "largest": largest,
            "children": len(picture.children(run, "both")),
        }
    nodes = picture.nodes(run)
    ends = picture.rows[nodes[picture.rows[nodes, 5] == 1], 3]
    return {
        "run": run,
        "label": label(picture, run),
        "path": path(picture, run),
        "largest": largest,
        "start": int(picture.start[run]),
        "end": int(picture.end[run]),
        "nodes": len(nodes),
        "below": int(picture.node_count[run]) - len(nodes),
        "children": len(picture.children(run, "both")),
        "boundaries": len(ends),
        "last_boundaries": ends[-8:].tolist(),
        "bytes": {tier: float(picture.total[tier][run]) for tier in ("device", "host")},
        "touched": int(picture.touched[run]),
        "holdings": picture.holdings(run),
    }
