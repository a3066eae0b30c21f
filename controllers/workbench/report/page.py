"""The report as one self-contained page: nothing is fetched, and no script runs. It looks as the inspector's pages do.

The page is a tree of elements, so that names of traces, files and policies are text wherever they stand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.resources import files
from itertools import cycle
from typing import TYPE_CHECKING
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from unified_tree.controllers.workbench.report import charts
from unified_tree.controllers.workbench.report.columns import GIB, SECTIONS, pool_verdicts
from unified_tree.controllers.workbench.report.report import facts
from unified_tree.controllers.workbench.report.text_table import REFERENCES, Mark, shown_rows, table_of
from unified_tree.inputs.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from unified_tree.controllers.workbench.report.charts import Chart
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


def write_page(path: Path, content: PageContent) -> None:
    """Write the page. Raises OSError for a file that cannot be written."""
    path.write_text(page(content), encoding="utf-8")


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
            charts.hits_over_memory(rows, content.sweep),
            "No eviction policy exceeds the upper end of the interval; a replay reached the lower one.",
        ),
        _figure("hits-over-time", "When does it hit?", charts.hits_over_time(rows), "Rejected requests are misses."),
        _figure(
            "causes-over-time",
            "Why does it miss?",
            charts.causes_over_time(first),
            f"With {first.policy}. Each token that did not hit has one cause.",
        ),
        _figure("pools-over-time", "How full are the pools?", charts.pools_over_time(first), f"With {first.policy}."),
        _split(content),
    ]
    for (name, tier), stats in first.cache.ages.items():
        if (chart := charts.ages(stats)) is not None:
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
        *(_make("span", _make("i", style=f"background: {charts.shown_colour(colour)}"), label) for label, colour in entries),
        class_="key",
    )


def _split(content: PageContent) -> Element:
    """How the device's memory is split, and how it would hit more."""
    page_bytes = content.plan.composition.pool_page_bytes()
    pools = list(zip(content.page_counts, cycle(charts.COLOURS)))
    parts = []
    for words, counts in (("as it is", content.page_counts), ("hits more", content.other_split)):
        if not counts:
            continue
        sizes = {name: counts[name] * page_bytes[name] for name in counts}
        whole = sum(sizes.values()) or 1
        bars = [
            _make("i", style=f"background: {charts.shown_colour(colour)}; flex: {sizes[name]} 0 0") for name, colour in pools
        ]
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


CLASSES = {Mark.BEST: "best", Mark.WRONG: "wrong", Mark.REFERENCE: "reference", Mark.NONE: ""}


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
                *(_make("td", cell.text, class_=f"{'n ' if i else ''}{CLASSES[cell.mark]}") for i, cell in enumerate(line)),
            )
            for line in lines
        ]
        table = _make("table", _make("thead", head), _make("tbody", *body))
        found.append(_make("div", _make("h2", section.title), _make("div", table, class_="scroll")))
    return found
