"""The dashboard, the alerts and docs/operating.md name what is exported, and the page names all of it."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
from metered_cache import metered_cache

from unified_tree.controllers import CacheCollector

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "deploy/grafana/unified_tree.json"
NAMED = re.compile(r"\bunified_tree_\w+")
SUFFIX = re.compile(r"_(total|bucket|sum|count)$")
SIZE = 24
"""Grafana's columns."""


@pytest.fixture(scope="module")
def figures() -> set[str]:
    """The names of what is exported, as they are before `_total` and the like."""
    cache = metered_cache()
    names = {metric.name for metric in CacheCollector(cache.stats).collect()}
    cache.close()
    return names


@pytest.mark.parametrize("path", ["deploy/grafana/unified_tree.json", "deploy/prometheus/unified_tree.rules.yml"])
def test_a_file_names_what_is_exported(path: str, figures: set[str]) -> None:
    named = set(NAMED.findall((ROOT / path).read_text()))
    assert len(named) > 10
    assert {SUFFIX.sub("", name) for name in named} <= figures


def test_the_page_names_each_figure(figures: set[str]) -> None:
    page = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
    table = page.split("### All of them")[1].split("### ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    patterns = [f"unified_tree_{name.replace('…', '*')}" for row in rows for name in re.findall(r"`([\w…]+)", row)]
    unknown = [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in figures)]
    assert not unknown
    assert not [name for name in figures if not any(fnmatch(name, pattern) for pattern in patterns)]


def test_the_dashboard_is_laid_out_without_gaps_and_overlaps() -> None:
    board = json.loads(DASHBOARD.read_text())
    panels = board["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) == SIZE * (1 + max(y for _, y in cells))
    for panel in panels:
        targets = panel.get("targets", [])
        assert panel["title"] and (panel["type"] == "row" or (panel["description"] and targets))
        assert len({target["refId"] for target in targets}) == len(targets)
        assert all(target["datasource"]["uid"] == "${datasource}" for target in targets)
