"""The report as a page: it is well formed, fetches nothing, and a trace's name is text in it."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import browser
import pytest
from browser import Browser
from replay_plans import small_report

from unified_tree.controllers.workbench.report.columns import PERCENT, SECTIONS
from unified_tree.controllers.workbench.report.page import page

VOID = {"meta", "link", "br", "img", "input"}
NASTY = "<script>alert(1)</script> & \"quoted\" '$x$' \u202e\x07 ]]> </style>"


class Parsed(HTMLParser):
    """Parses a page; every element that is opened must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def parsed() -> Parsed:
    return Parsed(page(small_report()))


def test_every_figure_is_there_once_with_a_picture() -> None:
    found = parsed()
    names = ["hits-over-memory", "hits-over-time", "causes-over-time", "pools-over-time", "split"]
    names += [f"ages-{name}-{tier}" for name, tier in small_report().rows[0].cache.ages]
    for name in names:
        assert found.ids.count(name) == 1, name
    assert found.tags.count("figure") == len(names)
    assert found.tags.count("svg") == len(names) - 1, "bars of the split are elements"


def test_nothing_is_fetched_and_nothing_runs() -> None:
    found = parsed()
    assert "script" not in found.tags
    for name, value in found.attributes:
        if name in ("href", "src", "xlink:href"):
            assert value.startswith("#") or value == "data:,", value
        assert "url(" not in value or "url(#" in value
        assert not name.startswith("on")
    assert "http" not in page(small_report())
    assert "@import" not in page(small_report())


def test_it_says_the_answers_and_the_figures_of_the_rows() -> None:
    words = parsed().words
    for answer in small_report().answers:
        assert answer in words
    for row in small_report().rows:
        assert row.policy in words
        assert PERCENT(row.hit_rate) in words
    assert SECTIONS[0].title in words
    assert "\\" not in "".join(words), "a sign that cannot be printed is shown as its number"


def test_its_colours_are_the_readers() -> None:
    text = page(small_report())
    assert "prefers-color-scheme: dark" in text
    assert "var(--dim)" in text
    assert "width=device-width" in text


def test_names_are_text() -> None:
    content = small_report()
    workload = replace(content.plan.workload, name=NASTY, notes=(NASTY,))
    rows = [replace(row, policy=f"{row.policy} {NASTY}") for row in content.rows]
    plain = parsed()
    found = Parsed(page(replace(content, plan=replace(content.plan, workload=workload), rows=rows, answers=(NASTY,))))
    assert "script" not in found.tags
    assert found.tags.count("figure") == plain.tags.count("figure")
    assert any("<script>alert(1)</script>" in word for word in found.words)
    assert not any("\u202e" in word or "\x07" in word for word in found.words)


def test_a_page_of_one_row_without_other_sizes() -> None:
    content = small_report()
    found = Parsed(page(replace(content, rows=content.rows[:1], sweep=())))
    assert "hits-over-memory" in found.ids


def test_another_split_is_shown_beside_the_present_one() -> None:
    content = small_report()
    words = " ".join(Parsed(page(replace(content, other_split={"full": 900, "swa": 300}))).words)
    assert "hits more: full" in words


@pytest.mark.skipif(browser.WHY_NOT is not None, reason=str(browser.WHY_NOT))
def test_a_browser_shows_it_without_sideways_scrolling(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(small_report()), encoding="utf-8")
    with Browser(tmp_path / "profile") as window:
        window.go(path.as_uri())
        for width in (1280, 390):
            window.resize(width)
            wide, shown = window.run("return [document.documentElement.scrollWidth, innerWidth]")
            assert wide <= shown
        heights = window.run("return [...document.querySelectorAll('figure svg')].map(each => each.clientHeight)")
        assert all(height > 100 for height in heights)
        assert not window.errors()
