"""Growth: each operation over the size of the tree and over the length of the prompt, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from benches.report import Row

LABELS = {
    "match_pages": "match + page ids",
    "match": "match",
    "insert": "insert 1k tokens",
    "lock_unlock": "lock + unlock",
    "lock_unlock_held": "lock + unlock, locked already",
    "evict": "evict one page",
}
COLOURS = dict(zip(LABELS, ("#1f77b4", "#17becf", "#2ca02c", "#ff7f0e", "#bcbd22", "#d62728"), strict=True))
STYLES: dict[str, Literal["-", "--", ":"]] = {"ours": "-", "rust": "--", "python": ":"}


def plot(rows: list[Row], path: Path) -> None:
    """Write a PNG of the rows of growth series. Needs matplotlib; raises ImportError without it."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    grown = [row for row in rows if row["series"]]
    sets = [row["components"] for row in grown if row["series"].startswith("tree-")]
    panels = [(f"tree-{name}", name) for name in dict.fromkeys(sets)]
    figure, grid = pyplot.subplots(2, 2, figsize=(11, 8), sharey=True)
    axes = list(grid.flat)
    for axis, (series, name) in zip(axes, panels, strict=False):
        _lines(axis, [row for row in grown if row["series"] == series], "tree_nodes")
        axis.set_title(name.replace("_", " + "), fontsize=10)
        axis.set_xlabel("nodes in the tree (prefix of 8k tokens, depth 8)")
    _lines(axes[-1], [row for row in grown if row["series"].startswith("prompt-")], "length_tokens")
    axes[-1].set_title("full", fontsize=10)
    axes[-1].set_xlabel("tokens of the prompt (depth 8)")
    for axis in axes[::2]:
        axis.set_ylabel("µs, median")
    _legend(figure, grown)
    first = grown[0]
    head = f"{first['machine']} · commit {first['commit'] or 'unknown'}, {first['ours_core']} · page {first['page_size']}"
    figure.suptitle(head, fontsize=8)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def _lines(axis: Any, rows: list[Row], over: str) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.grid(visible=True, which="major", alpha=0.3)
    for operation, colour in COLOURS.items():
        for name, style in STYLES.items():
            points = [(row[over], row[f"{name}_us"]) for row in rows if row["operation"] == operation]
            points = [point for point in points if point[1] is not None]
            if points:
                x, y = zip(*sorted(points), strict=True)
                axis.plot(x, y, style, color=colour, marker="o", markersize=3, linewidth=2 if name == "ours" else 1.1)


def _legend(figure: Any, rows: list[Row]) -> None:
    from matplotlib.lines import Line2D

    shown = {row["operation"] for row in rows}
    names = [name for name in STYLES if any(row[f"{name}_us"] is not None for row in rows)]
    handles = [Line2D([], [], color=COLOURS[key], label=label) for key, label in LABELS.items() if key in shown]
    labels = {"ours": "ours", "rust": "SGLang, Rust core", "python": "SGLang, Python core"}
    handles += [Line2D([], [], color="black", linestyle=STYLES[name], label=labels[name]) for name in names]
    figure.legend(handles=handles, loc="lower center", ncol=5, fontsize=8, frameon=False)
