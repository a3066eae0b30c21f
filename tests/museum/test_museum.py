"""Published failures of hybrid prefix caches: this library reaches the ceiling of each, or its ledger names what is lost.

A ceiling is stated by hand, with its reason, and searched for: no cache with these pools can hit more, not even one that knows
the future.
"""

from __future__ import annotations

import pytest
from ceiling import ceiling
from collection import EXHIBITS
from exhibit import Exhibit
from museum_page import PAGE, page
from visit import Visitor

each = pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.name)


@each
def test_the_ceiling_is_reached_or_the_cause_named(exhibit: Exhibit) -> None:
    visitor = Visitor(exhibit)
    found = visitor.play(exhibit)
    assert found.hit_tokens == exhibit.ceiling - exhibit.gap
    assert found.lost == exhibit.lost
    assert sum(found.lost.values()) >= exhibit.gap, "what is lost has a cause"
    assert not visitor.cache.tree.check()


@each
def test_the_ceiling_is_the_best_that_any_cache_can_do(exhibit: Exhibit) -> None:
    assert ceiling(exhibit) == exhibit.ceiling


def test_the_exhibits_are_different_failures() -> None:
    assert len(EXHIBITS) >= 30
    assert len({exhibit.name for exhibit in EXHIBITS}) == len(EXHIBITS)
    assert len({exhibit.thread for exhibit in EXHIBITS}) == len(EXHIBITS)


def test_the_page_shows_them_all() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python tests/museum/museum_page.py writes it"
