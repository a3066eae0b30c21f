"""The report as one self-contained page: nothing is fetched, and no script runs. It looks as the inspector's pages do.

The page is a tree of elements, so that names of traces, files and policies are text wherever they stand. Its figures
are SVG that follows the page's colours: light or dark, as its reader has it. matplotlib draws them, with names of no trace and
no file in them. What it draws in the placeholders below, the page's style sheet colours. Legends and titles are the page's, so
that they wrap on a phone.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import cycle
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from unified_tree.controllers.workbench.report.columns import GIB, SECTIONS, device_pages, pool_verdicts, share
from unified_tree.controllers.workbench.report.report import facts
from unified_tree.controllers.workbench.report.text_table import REFERENCES, shown_rows, table_of
from unified_tree.inputs.printable import printable
from unified_tree.memory.ages import BOUNDS_S
from unified_tree.misses.miss_cause import MissCause

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from unified_tree.controllers.cache.stats import PoolAgeStats
    from unified_tree.controllers.workbench.runs.plan import Plan
    from unified_tree.controllers.workbench.runs.row_result import Requests, RowResult

    Floats = NDArray[np.float64]


LONGEST_TEXT = 4000
STYLE = """
main { max-width: 1240px; }
main > p.answer { font-size: 17px; margin: 8px 0; max-width: 80ch; }
.figures { display: grid; gap: 14px; margin: 18px 0; align-items: start; }
.figures { grid-template-columns: repeat(auto-fit, minmax(min(100%, 350px), 1fr)); }
figure { margin: 0; padding: 8px 12px; min-width: 0; }
figure { background: var(--card); border: 1px solid var(--line); border-radius: 6px; }
figure h2 { margin: 2px 0 4px; }
figure svg { width: 100%; height: auto; display: block; }
figure .key { margin: 4px 0; font-size: 12px; }
figcaption { color: var(--dim); font-size: 12px; overflow-wrap: anywhere; }
.key span { overflow-wrap: anywhere; }
figure .bar { margin: 2px 0 10px; }
figure p { margin: 6px 0 2px; }
td.best { font-weight: 600; }
td.wrong { color: #c0392b; font-weight: 600; }
td.reference { color: var(--dim); }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    """The contents of a page.

    Attributes:
        plan: what was replayed.
        page_counts: the device's pages by pool.
        rows, sweep: of the report, and at other capacities with their intervals.
        answers: what it says first.
        other_split: another split of the device that hits more; empty for none.
    """

    plan: Plan
    page_counts: Mapping[str, int]
    rows: Sequence[RowResult]
    sweep: Sequence[RowResult]
    answers: Sequence[str]
    other_split: Mapping[str, int] = field(default_factory=dict)


def page(content: PageContent) -> str:
    """The page as HTML."""
    plan, rows = content.plan, shown_rows(content.rows)
    sheet = (files("unified_tree.controllers.inspector") / "page" / "inspector.css").read_text(encoding="utf-8")
    title = f"{plan.workload.name} on {plan.composition.name}"
    head = _make(
        "head",
        _make("meta", charset="utf-8"),
        _make("title", title),
        _make("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _make("link", rel="icon", href="data:,"),
        _make("style", sheet + STYLE),
    )
    main = _make(
        "main",
        *(_make("p", answer, class_="answer") for answer in content.answers),
        _make("div", *_figures(content, rows), class_="figures"),
        _make("h2", "What was replayed"),
        *(_make("p", _make("b", name), f": {text}" if name else text) for name, text in facts(plan)),
        _make("div", *_tables(rows), class_="columns"),
        *(_make("p", verdict) for verdict in pool_verdicts(rows)),
        *(_make("p", f"{row.policy}: {REFERENCES[row.policy]}.", class_="dim") for row in rows if row.policy in REFERENCES),
        _make("p", "What each figure means: unified-tree columns", class_="dim"),
    )
    body = _make("body", _make("header", _make("h1", "unified_tree replay"), _make("p", title, id="status")), main)
    return "<!doctype html>\n" + ElementTree.tostring(_make("html", head, body, lang="en"), "unicode", method="html") + "\n"


def _make(tag: str, *children: Element | str, **attributes: str) -> Element:
    """An element with these children; text is never read as HTML."""
    element = Element(tag, {name.rstrip("_"): value for name, value in attributes.items()})
    for child in children:
        if isinstance(child, Element):
            element.append(child)
            continue
        text = child if tag == "style" else printable(child, LONGEST_TEXT)
        if len(element):
            element[-1].tail = (element[-1].tail or "") + text
        else:
            element.text = (element.text or "") + text
    return element


def _figures(content: PageContent, rows: Sequence[RowResult]) -> list[Element]:
    first = rows[0]
    found = [
        _figure(
            "hits-over-memory",
            "What does more memory bring?",
            hits_over_memory(rows, content.sweep),
            "No eviction policy exceeds the upper end of the interval; a replay reached the lower one.",
        ),
        _figure("hits-over-time", "When does it hit?", hits_over_time(rows), "Rejected requests are misses."),
        _figure(
            "causes-over-time",
            "Why does it miss?",
            causes_over_time(first),
            f"With {first.policy}. Each token that did not hit has one cause.",
        ),
        _figure("pools-over-time", "How full are the pools?", pools_over_time(first), f"With {first.policy}."),
        _split(content),
    ]
    for (name, tier), stats in first.cache.ages.items():
        if (chart := ages(stats)) is not None:
            found.append(
                _figure(
                    f"ages-{name}-{tier}",
                    f"Is {name} on {tier} evicted too early?",
                    chart,
                    f"With {first.policy}. If values are evicted younger than the gaps after which others are hit, the pool is "
                    "too small.",
                )
            )
    return found


def _figure(name: str, question: str, chart: Chart, caption: str) -> Element:
    chart.svg.set("aria-label", question)
    return _make("figure", _make("h2", question), _legend(chart.legend), chart.svg, _make("figcaption", caption), id=name)


def _legend(entries: Sequence[tuple[str, str]]) -> Element:
    return _make(
        "div",
        *(_make("span", _make("i", style=f"background: {shown_colour(colour)}"), label) for label, colour in entries),
        class_="key",
    )


def _split(content: PageContent) -> Element:
    """How the device's memory is split, and how it would hit more."""
    page_bytes = content.plan.composition.pool_page_bytes()
    pools = list(zip(content.page_counts, cycle(COLOURS)))
    parts = []
    for words, counts in (("as it is", content.page_counts), ("hits more", content.other_split)):
        if not counts:
            continue
        sizes = {name: counts[name] * page_bytes[name] for name in counts}
        whole = sum(sizes.values()) or 1
        bars = [_make("i", style=f"background: {shown_colour(colour)}; flex: {sizes[name]} 0 0") for name, colour in pools]
        said = ", ".join(f"{name} {size / GIB:.3g} GiB ({100 * size / whole:.0f} %)" for name, size in sizes.items())
        parts += [_make("p", f"{words}: {said}"), _make("div", *bars, class_="bar")]
    coverages = [f"{c.name}: {c.coverage.describe()}" for c in content.plan.composition.components]
    return _make(
        "figure",
        _make("h2", "How is the device split?"),
        _legend([(name, colour) for name, colour in pools]),
        *parts,
        _make("figcaption", f"What a prefix needs of each kind: {'; '.join(coverages)}."),
        id="split",
    )


def _tables(rows: Sequence[RowResult]) -> list[Element]:
    found = []
    for section in SECTIONS:
        headings, lines = table_of(section, rows)
        if not lines:
            continue
        head = _make("tr", *(_make("th", text, class_="n" if i else "") for i, text in enumerate(headings)))
        body = [
            _make(
                "tr",
                *(_make("td", cell.text, class_=f"{'n ' if i else ''}{cell.mark.value}") for i, cell in enumerate(line)),
            )
            for line in lines
        ]
        table = _make("table", _make("thead", head), _make("tbody", *body))
        found.append(_make("div", _make("h2", section.title), _make("div", table, class_="scroll")))
    return found


INK, DIM, LINE, ACCENT = "#010203", "#040506", "#070809", "#0a0b0c"
PLACEHOLDERS = {INK: "var(--ink)", DIM: "var(--dim)", LINE: "var(--line)", ACCENT: "var(--accent)"}
"""Colours that the page's style sheet sets."""
COLOURS = (ACCENT, "#e8843c", "#8d5fc4", "#d1495b", "#3fb6b2", "#b08a2e", "#c25b9b", "#9aa5b8")
HIT, EVICTED = "#2e8b57", "#d1495b"
REJECTED = "#3d4451"
CAUSE_COLOURS = (
    *("#9aa5b8", "#c3cad6", "#d1495b", "#e8843c", "#8d5fc4", "#b48be0", "#e3cf9f", "#cdb675"),
    *("#3a86c8", "#1f4e79", "#76b7d8", "#3fb6b2", "#6b7280", "#8a94a6", "#7a1f2b"),
)
"""By the code of the cause, as the inspector's page has them."""
SIZE_INCHES = (5.3, 3.0)
TIME_BINS = 48
SVG = "http://www.w3.org/2000/svg"
CHART_STYLE: dict[Any, Any] = {
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": DIM,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "grid.color": LINE,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "svg.hashsalt": "unified_tree",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": DIM,
    "ytick.color": DIM,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure: its SVG, and what its colours mean."""

    svg: ElementTree.Element
    legend: tuple[tuple[str, str], ...]


def hits_over_memory(rows: Sequence[RowResult], sweep: Sequence[RowResult]) -> Chart:
    """Hits of the policies that were replayed at several sizes, the interval of the best possible, and the ceiling.

    Args:
        rows: of the size that was asked for.
        sweep: of the others, with their intervals.
    """
    policies = list(dict.fromkeys(row.policy for row in sweep))
    present = [row for row in rows if row.policy in policies] or list(rows[:1])
    shown = [*present, *sweep]
    policies = list(dict.fromkeys(row.policy for row in shown))
    with _Canvas("device memory for the cache, GiB", "hit, % of the prompt tokens") as canvas:
        axes = canvas.axes
        sizes = sorted({row.capacity for row in shown})
        marker = "o" if len(sizes) > 1 else "s"
        bounds = [_interval([row for row in shown if row.capacity == size]) for size in sizes]
        known = [(_gib(shown[0], size), *each) for size, each in zip(sizes, bounds, strict=True) if each is not None]
        if known:
            at, low, high = (np.array(values) for values in zip(*known, strict=True))
            width = 0.04 * at if len(at) == 1 else 0.0
            over = np.concatenate((at - width, at + width)) if len(at) == 1 else at
            axes.fill_between(over, np.resize(low, over.size), np.resize(high, over.size), color=HIT, alpha=0.3, linewidth=0)
        for policy, colour in zip(policies, cycle(COLOURS)):
            points = sorted((_gib(row, row.capacity), 100 * row.hit_rate) for row in shown if row.policy == policy)
            axes.plot(*zip(*points, strict=True), marker=marker, markersize=4, color=colour)
        ceiling = max(100 * share(row, row.ceiling_tokens) for row in shown)  # the smaller sizes may have served less
        axes.axhline(ceiling, color=DIM, linestyle="--", linewidth=1.2)
        axes.set_xscale("log", base=2)
        ticks = [_gib(shown[0], size) for size in sizes]
        axes.set_xticks(ticks, [f"{gib:,.3g}" for gib in ticks])
        axes.minorticks_off()
        axes.set_ylim(0, _above(max([ceiling, *(100 * row.hit_rate for row in shown)])))
    legend = [*zip(policies, cycle(COLOURS)), ("ceiling", DIM)]
    if known:
        legend.insert(-1, ("the best possible lies here", HIT))
    return Chart(svg=canvas.svg, legend=tuple(legend))


def _interval(rows: Sequence[RowResult]) -> tuple[float, float] | None:
    """Between what the best possible lies, in percent, for rows of the same pools."""
    highest = [row.optimum_high_tokens for row in rows if row.optimum_high_tokens is not None]
    if not highest or len(highest) < len(rows):
        return None
    low = max(row.optimum_low_tokens if row.optimum_low_tokens is not None else row.hit_tokens for row in rows)
    return 100 * share(rows[0], low), 100 * share(rows[0], max(highest))


def _above(most: float) -> float:
    """Where an axis of percents ends that goes up to `most`."""
    return min(100.0, 1.08 * most + 1)


def _gib(row: RowResult, capacity: float) -> float:
    return capacity * row.device_bytes / GIB


def hits_over_time(rows: Sequence[RowResult]) -> Chart:
    """The share of the prompt tokens that hit, of each row."""
    most = 0.0
    with _Canvas(_time_label(rows[0]), "hit, % of the prompt tokens") as canvas:
        for row, colour in zip(rows, cycle(COLOURS)):
            hours, prompts, [hits] = _binned(row, row.served["hit_tokens"])
            rates = 100 * hits / prompts
            most = max(most, *rates.tolist())
            canvas.axes.plot(hours, rates, color=colour)
        canvas.axes.set_ylim(0, _above(most))
    return Chart(svg=canvas.svg, legend=tuple((row.policy, colour) for row, colour in zip(rows, cycle(COLOURS))))


def causes_over_time(row: RowResult) -> Chart:
    """A row's prompt tokens over time: hits, and misses by cause."""
    misses = row.served["miss_tokens"]
    causes = [cause for cause in MissCause if misses[:, cause].any()]
    hours, prompts, parts = _binned(row, row.served["hit_tokens"], *(misses[:, cause] for cause in causes))
    legend = [("hit", HIT), *((cause.label.replace("_", " "), CAUSE_COLOURS[cause]) for cause in causes)]
    if row.rejected:
        parts.append(prompts - np.sum(parts, axis=0))
        legend.append(("rejected", REJECTED))
    with _Canvas(_time_label(row), "% of the prompt tokens") as canvas:
        colours = [colour for _, colour in legend]
        canvas.axes.stackplot(hours, *(100 * part / prompts for part in parts), colors=colours, linewidth=0)
        canvas.axes.set_ylim(0, 100)
        canvas.axes.margins(x=0)
    return Chart(svg=canvas.svg, legend=tuple(legend))


def pools_over_time(row: RowResult) -> Chart:
    """Pages in use of each pool: of those that it has, or without a limit of the most that it used."""
    hours = np.array(row.residency.time_s) / _unit_s(row)[0]
    with _Canvas(_time_label(row), "pages in use, % of the pool") as canvas:
        for (name, total), colour in zip(device_pages(row).items(), cycle(COLOURS)):
            canvas.axes.plot(
                hours,
                100 * np.array(row.residency.pages[name]) / max(1, total or row.peak_pages[name]),
                color=colour,
                linewidth=1,
            )
        canvas.axes.set_ylim(0, 105)
    legend = [
        (f"{name}, {total:,} pages" if total else f"{name}, at most {row.peak_pages[name]:,}", colour)
        for (name, total), colour in zip(device_pages(row).items(), cycle(COLOURS))
    ]
    return Chart(svg=canvas.svg, legend=tuple(legend))


def ages(stats: PoolAgeStats) -> Chart | None:
    """After how long values of a pool were hit again, and how long victims had been idle; None if there was neither."""
    counts = [np.array(each.counts, np.float64) for each in (stats.reuse_gap, stats.idle)]
    used = np.flatnonzero(counts[0] + counts[1])
    if not used.size:
        return None
    first, last = int(used[0]), int(used[-1]) + 1
    with _Canvas("seconds, below", "% of each") as canvas:
        at = np.arange(last - first)
        for each, colour, side in zip(counts, (HIT, EVICTED), (-0.2, 0.2), strict=True):
            if each.sum():
                canvas.axes.bar(at + side, 100 * each[first:last] / each.sum(), 0.4, color=colour)
        every = max(1, -(-at.size // 7))
        canvas.axes.set_xticks(at[::every], [_seconds(first + i) for i in at[::every]])
        canvas.axes.grid(visible=False, axis="x")
    hit, gone = (int(each.sum()) for each in counts)
    return Chart(
        svg=canvas.svg,
        legend=((f"{hit:,} hits, by the time since the use before", HIT), (f"{gone:,} evictions, by the time unused", EVICTED)),
    )


def _seconds(bucket: int) -> str:
    if bucket >= len(BOUNDS_S):
        return "more"
    bound_s = BOUNDS_S[bucket]
    return f"{bound_s:,.2g}" if bound_s < 1 else f"{bound_s:,.0f}"


def _unit_s(row: RowResult) -> tuple[float, str]:
    """The unit that time is shown in: its seconds, and its name."""
    for unit_s, name in ((3600.0, "hours"), (60.0, "minutes")):
        if row.virtual_s > 2 * unit_s:
            return unit_s, name
    return 1.0, "seconds"


def _time_label(row: RowResult) -> str:
    return f"{_unit_s(row)[1]} of the virtual clock"


def _binned(row: RowResult, *tokens: Requests) -> tuple[Floats, Floats, list[Floats]]:
    """Times, the prompt tokens, and sums of tokens, by the bins of time in which requests were admitted or rejected."""
    everyone = np.concatenate((row.served, row.turned_away))
    edges = np.linspace(0.0, max(float(everyone["admitted_s"].max(initial=0.0)), 1e-9), TIME_BINS + 1)
    prompts = _summed(everyone["admitted_s"], edges, everyone["prompt_tokens"])
    filled = prompts > 0
    sums = [_summed(row.served["admitted_s"], edges, counts)[filled] for counts in tokens]
    return ((edges[1:] + edges[:-1]) / 2 / _unit_s(row)[0])[filled], prompts[filled], sums


def _summed(at: Any, edges: Floats, weights: Any) -> Floats:
    return np.histogram(at, edges, weights=weights.astype(np.float64))[0]


class _Canvas:
    """An empty figure. Behind its `with` block `svg` is what was drawn."""

    def __init__(self, x_label: str, y_label: str) -> None:
        self._labels = {"xlabel": x_label, "ylabel": y_label}

    def __enter__(self) -> _Canvas:
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        self._style = rc_context(CHART_STYLE)
        self._style.__enter__()
        self._figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        self.axes: Axes = self._figure.subplots()
        return self

    def __exit__(self, *error: Any) -> None:
        self.axes.set(**self._labels)
        self.axes.set_axisbelow(True)
        file = io.StringIO()
        self._figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        self._style.__exit__(*error)
        self.svg = _themed(file.getvalue())


def shown_colour(colour: str) -> str:
    """A colour as a style of the page says it."""
    return PLACEHOLDERS.get(colour, colour)


def _themed(text: str) -> ElementTree.Element:
    """An SVG of matplotlib's as an element of a page: of the page's colours and fonts, as wide as there is room."""
    for colour in PLACEHOLDERS:
        text = text.replace(colour, shown_colour(colour))
    text = re.sub(r"font-family: [^;\"]*", "font-family: inherit", text)
    svg = ElementTree.fromstring(text)
    for name in ("width", "height", "version"):
        svg.attrib.pop(name, None)
    svg.set("role", "img")
    for element in svg.iter():
        element.tag = element.tag.removeprefix(f"{{{SVG}}}")
        if re.fullmatch(r"[a-zA-Z0-9.]+_\d+", element.get("id", "")):  # of the drawing's parts; each figure has the same
            del element.attrib["id"]
        for name in [name for name in element.attrib if name.startswith("{")]:
            element.set(name.partition("}")[2], element.attrib.pop(name))
    for part in list(svg):
        if part.tag == "metadata" or part.find("style") is not None:  # which would style all of the page
            svg.remove(part)
    return svg
