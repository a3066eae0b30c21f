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

from unified_tree.controllers.workbench.report.charts import ACCENT, COLOURS, DIM, INK, LINE, Chart, age_charts, charts
from unified_tree.controllers.workbench.report.columns import GIB, SECTIONS, pool_verdicts
from unified_tree.controllers.workbench.report.report import facts
from unified_tree.controllers.workbench.report.text_table import REFERENCES, shown_rows, table_of
from unified_tree.inputs.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unified_tree.controllers.workbench.runs.plan import Plan
    from unified_tree.controllers.workbench.runs.row_result import RowResult


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
    return [*map(_figure, charts(rows, content.sweep)), _split(content), *map(_figure, age_charts(rows[0]))]


def _figure(chart: Chart) -> Element:
    """A chart as an element of the page: of its colours and fonts, as wide as there is room."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    file = io.StringIO()
    with rc_context(CHART_STYLE):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        legend = chart.draw(axes)
        axes.set(xlabel=chart.labels[0], ylabel=chart.labels[1], axisbelow=True)
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = _themed(file.getvalue())
    svg.set("aria-label", chart.question)
    caption = _make("figcaption", chart.caption)
    return _make("figure", _make("h2", chart.question), _legend(legend), svg, caption, id=chart.name)


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


PLACEHOLDERS = {INK: "var(--ink)", DIM: "var(--dim)", LINE: "var(--line)", ACCENT: "var(--accent)"}
"""Colours that the page's style sheet sets."""
SIZE_INCHES = (5.3, 3.0)
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


def shown_colour(colour: str) -> str:
    """A colour as a style of the page says it."""
    return PLACEHOLDERS.get(colour, colour)


def _themed(text: str) -> ElementTree.Element:
    """An SVG of matplotlib's in the colours and fonts of a page."""
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
