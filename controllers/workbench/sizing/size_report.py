"""The survey of sizes as tables and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.report.text_table import print_table
from unified_tree.controllers.workbench.runs.plan import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from matplotlib.axes import Axes
    from rich.console import Console

    from unified_tree.controllers.workbench.runs.plan import Plan
    from unified_tree.controllers.workbench.sizing.sample import Sample
    from unified_tree.controllers.workbench.sizing.sizes import Curve, Point, Sizes


FORMAT = 1
TITLES = {
    "host": "Host memory behind the device",
    "storage": "A store behind both",
}


def print_sizes(console: Console, sample: Sample, sizes: Sizes, checked: tuple[float, float] | None = None) -> None:
    """Tables of all curves, and what is recommended."""
    if sample.share < 1.0:
        console.print(
            f"{100 * sample.share:.3g} % of the requests were looked at: {sample.trees:,} of {sample.all_trees:,} root subtrees"
        )
    _print_device(console, sizes)
    for curve in sizes.curves:
        if curve.tier != "device" or curve.component is not None:
            _print_curve(console, curve)
    present, best, name = sizes.present, sizes.recommended, sizes.split_name
    console.print(
        f"{name.capitalize()} split: --pages {pages_text(present.page_counts)}: {100 * present.hit_rate:.1f} % hit, "
        f"{points_text(present.points_per_gib)} points more for one more GiB; {100 * sizes.ceiling:.1f} % without any bound."
    )
    console.print(f"Best split: --pages {pages_text(best.page_counts)}: {100 * best.hit_rate:.1f} %.")
    _warn(console, sizes)
    if checked is not None:
        for split, point, real in zip((name, "best"), (present, best), checked, strict=True):
            console.print(
                f"Replayed, the {split} split hits {100 * real:.1f} %: the model is "
                f"{100 * (point.hit_rate - real):+.2f} points off."
            )


def _warn(console: Console, sizes: Sizes) -> None:
    """Say who would never be served."""
    present, best = sizes.present, sizes.recommended
    for name, point in ((sizes.split_name, present), ("best", best)):
        if point.rejected and (point is present or best.page_counts != present.page_counts):
            console.print(
                f"WARNING: the {name} split rejects {point.rejected:,} of {sizes.requests:,} requests, "
                f"{100 * point.rejected_share:.1f} % of the prompt tokens: they fit into its pools at no time. "
                "Rejected requests count as misses.",
                style="bold red",
            )
    if best.rejected:
        console.print(
            f"WARNING: no split of this device that hits as much serves all. The longest request has "
            f"{sizes.longest_tokens:,} tokens.",
            style="bold red",
        )


def _print_device(console: Console, sizes: Sizes) -> None:
    proposed, best = sizes.curve("device", "proposed"), sizes.curve("device", "best")
    by_size = {point.size_bytes: point for point in proposed.points}
    lines = []
    for point in best.points:
        other = by_size.get(point.size_bytes)
        lines.append(
            (
                gib_text(point.size_bytes),
                *(("", "") if other is None else (f"{100 * other.hit_rate:.1f}", points_text(other.points_per_gib))),
                f"{100 * point.hit_rate:.1f}",
                points_text(point.points_per_gib),
                f"{point.rejected:,}" if point.rejected else "",
                pages_text(point.page_counts),
            )
        )
    headings = (
        "device\nGiB",
        "proposed\nsplit, %",
        "points\na GiB",
        "best\nsplit, %",
        "points\na GiB",
        "best split\nrejects",
        "pages of the best split",
    )
    print_table(console, headings, lines, title="Hits over device memory", left=(6,))
    console.print()


def _print_curve(console: Console, curve: Curve) -> None:
    title = TITLES.get(curve.tier, "") if curve.component is None else f"Pool {curve.component} of the {curve.tier} alone"
    lines = [
        (
            gib_text(point.size_bytes),
            f"{100 * point.hit_rate:.1f}",
            points_text(point.points_per_gib),
            *((f"{point.rejected:,}",) if any(each.rejected for each in curve.points) else ()),
        )
        for point in curve.points
    ]
    headings = (f"{curve.component or curve.tier}\nGiB", "hit\n%", "points\na GiB", "requests\nrejected")
    print_table(console, headings[: len(lines[0])] if lines else headings[:3], lines, title=title, left=())
    console.print()


def gib_text(size_bytes: int) -> str:
    """GiB to four figures."""
    return f"{size_bytes / GIB:,.4g}"


def points_text(points: float) -> str:
    """Percentage points, to two figures.

    >>> points_text(99.6), points_text(3.14), points_text(-0.00001)
    ('100', '3.1', '0')
    """
    return f"{points:.0f}" if abs(points) >= 9.95 else f"{round(points, 3) + 0.0:.2g}"


def pages_text(page_counts: Mapping[str, int]) -> str:
    """As `--pages` takes it."""
    return ",".join(f"{name}={count}" for name, count in page_counts.items())


def write_json(path: Path, plan: Plan, sample: Sample, sizes: Sizes, checked: tuple[float, float] | None = None) -> None:
    """Write all of it. Raises OSError."""
    record = {
        "format": FORMAT,
        "workload": plan.workload.name,
        "requests": len(plan.workload.requests),
        "model": plan.composition.name,
        "policy": "lru",
        "sample": {
            "share": sample.share,
            "requests": len(sample.workload.requests),
            "trees": sample.trees,
            "all_trees": sample.all_trees,
        },
        "ceiling": sizes.ceiling,
        "present": _point(sizes.present) | ({} if checked is None else {"replayed_hit_rate": checked[0]}),
        "recommended": _point(sizes.recommended) | ({} if checked is None else {"replayed_hit_rate": checked[1]}),
        "curves": [{**asdict(curve), "points": [_point(point) for point in curve.points]} for curve in sizes.curves],
    }
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _point(point: Point) -> dict[str, object]:
    return {"gib": point.size_bytes / GIB, **asdict(point)}


LABELS = {
    ("device", "proposed"): "device, proposed split",
    ("device", "best"): "device, best split",
    ("host", "proposed"): "host behind the device",
    ("storage", "proposed"): "store behind both",
}


def write_plot(path: Path, sizes: Sizes, title: str) -> None:
    """Draw the curves into `path`; its ending says the format. Raises OSError, or ValueError for an unknown ending."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 12), layout="constrained")
    by_tier, worth, by_pool = figure.subplots(3, 1)
    figure.suptitle(title)
    tiers = [curve for curve in sizes.curves if curve.component is None]
    for curve in tiers:
        _draw(by_tier, curve, LABELS[curve.tier, str(curve.split)])
        gib = [point.size_bytes / GIB for point in curve.points]
        more = [max(0.0, point.points_per_gib) for point in curve.points]
        worth.plot(gib, more, "--" if curve.tier == "storage" else "o-", label=LABELS[curve.tier, str(curve.split)])
    for curve in sizes.curves:
        if curve.component is not None:
            _draw(by_pool, curve, f"{curve.component} of the {curve.tier}, the others as they are")
    for axes in (by_tier, by_pool):
        axes.axhline(100 * sizes.ceiling, color="black", linestyle=":", label="without any bound")
        axes.set(ylabel="hit (% of all prompt tokens)", ylim=(0, None))
    if any(point.rejected for curve in sizes.curves for point in curve.points):
        by_tier.plot([], [], "rx", label="rejects requests, which are misses")
    by_tier.plot(
        [sizes.present.size_bytes / GIB], [100 * sizes.present.hit_rate], "k*", markersize=12, label=f"{sizes.split_name} split"
    )
    by_tier.set(title="Token hit rate over memory", xlabel="memory of the tier (GiB)")
    worth.set(title="What one more GiB adds", xlabel="memory of the tier (GiB)", ylabel="points of hit rate a GiB")
    by_pool.set(title="Token hit rate over one pool", xlabel="memory of the pool (GiB)")
    for axes in (by_tier, worth, by_pool):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda gib, _: f"{gib:,.4g}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path)


def _draw(axes: Axes, curve: Curve, label: str) -> None:
    line = [(point.size_bytes / GIB, 100 * point.hit_rate, point.rejected) for point in curve.points]
    rejecting = [(gib, hits) for gib, hits, rejected in line if rejected]
    if rejecting and curve.tier == "device":
        axes.plot(*zip(*rejecting, strict=True), "rx", markersize=9, label="_rejects requests")
    style = "--" if curve.tier == "storage" else "o-"
    axes.plot([gib for gib, *_ in line], [hits for _, hits, _ in line], style, markersize=4, label=label)
