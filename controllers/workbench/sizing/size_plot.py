"""The survey of sizes as a picture: hits over the memory of each tier, and over that of each pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.sizing.curve import GIB

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from unified_tree.controllers.workbench.sizing.curve import Curve, Point
    from unified_tree.controllers.workbench.sizing.sizes import Sizes

LABELS = {
    ("device", "proposed"): "device, proposed split",
    ("device", "best"): "device, best split",
    ("host", "proposed"): "host behind the present device",
    ("storage", "proposed"): "store behind both",
}


def write_plot(path: Path, sizes: Sizes, title: str) -> None:
    """Draw the curves into `path`; its ending says the format. Raises OSError, or ValueError for an unknown ending."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 12), layout="constrained")
    FigureCanvasAgg(figure)
    by_tier, worth, by_pool = figure.subplots(3, 1)
    figure.suptitle(title)
    tiers = [curve for curve in sizes.curves if curve.component is None]
    for curve in tiers:
        _draw(by_tier, curve, LABELS[curve.tier, str(curve.split)])
        gib, points = _columns(curve)
        style = "--" if curve.tier == "storage" else "o-"
        worth.plot(gib, [max(0.0, point.points_per_gib) for point in points], style, label=LABELS[curve.tier, str(curve.split)])
    for curve in sizes.curves:
        if curve.component is not None:
            _draw(by_pool, curve, f"{curve.component} of the {curve.tier}, the others as they are")
    for axes in (by_tier, by_pool):
        axes.axhline(100 * sizes.ceiling, color="black", linestyle=":", label="without any bound")
        axes.set(ylabel="hit (% of all prompt tokens)", ylim=(0, None))
    if any(point.rejected for curve in sizes.curves for point in curve.points):
        by_tier.plot([], [], "rx", label="rejects requests, which are misses")
    by_tier.plot([sizes.present.size_bytes / GIB], [100 * sizes.present.hit_rate], "k*", markersize=12, label="present")
    by_tier.set(title="Token hit rate over memory", xlabel="memory of the tier (GiB)")
    worth.set(title="What one more GiB is worth", xlabel="memory of the tier (GiB)", ylabel="points of hit rate a GiB")
    by_pool.set(title="Token hit rate over one pool", xlabel="memory of the pool (GiB)")
    for axes in (by_tier, worth, by_pool):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda gib, _: f"{gib:,.4g}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path)


def _columns(curve: Curve) -> tuple[list[float], tuple[Point, ...]]:
    return [point.size_bytes / GIB for point in curve.points], curve.points


def _draw(axes: Axes, curve: Curve, label: str) -> None:
    gib, points = _columns(curve)
    rejecting = [(size, 100 * point.hit_rate) for size, point in zip(gib, points, strict=True) if point.rejected]
    if rejecting and curve.tier == "device":
        axes.plot(*zip(*rejecting, strict=True), "rx", markersize=9, label="_rejects requests")
    axes.plot(
        gib, [100 * point.hit_rate for point in points], "--" if curve.tier == "storage" else "o-", markersize=4, label=label
    )
