"""What cannot be a tree: every bad configuration is one clear error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kinds import CARRY_OVER, DRAFT, FULL, MAMBA, swa

from unified_tree import Component, ConfigurationError, Coverage, Path, Point, Trailing, UnifiedTree, UnifiedTreeError


def component(name: str = "x", coverage: Coverage | None = None, **options: Any) -> Component:
    return Component(name=name, coverage=coverage or Path(), **options)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Trailing(0), "positive integer, not 0"),
        (lambda: Trailing(-4), "positive integer, not -4"),
        (lambda: Trailing(True), "positive integer, not True"),
        (lambda: Trailing(2.0), "positive integer, not 2.0"),  # type: ignore[arg-type]
        (lambda: component(""), "non-empty string"),
        (lambda: component(3), "non-empty string"),  # type: ignore[arg-type]
        (lambda: component(coverage="path"), "coverage must be"),  # type: ignore[arg-type]
        (lambda: component(tokens_per_slot=0), "tokens_per_slot"),
        (lambda: component(save_grid_tokens=-1), "save_grid_tokens"),
        (lambda: component(page_bytes=-1), "page_bytes"),
        (lambda: component(page_bytes=0.5), "page_bytes"),
        (lambda: component(coverage=Trailing(3), rebuild_tokens=0), "rebuild_tokens"),
        (lambda: component(coverage=Trailing(3), rebuild_tokens=-3), "rebuild_tokens"),
        (lambda: component(rebuild_tokens=3), "rebuild_tokens"),
    ],
)
def test_what_is_no_component(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        make()


@pytest.mark.parametrize("page_size", [0, -1, True, 2.0, None, "4"])
def test_a_page_has_a_positive_number_of_tokens(page_size: Any) -> None:
    with pytest.raises(ConfigurationError, match="page_size"):
        UnifiedTree([FULL], page_size)


@pytest.mark.parametrize(
    ("components", "complaint"),
    [
        ([], "at least one required Path"),
        ([MAMBA], "at least one required Path"),
        ([DRAFT], "shares 'full'"),
        ([component(required=False)], "at least one required Path"),
        ([FULL, FULL], "'full' is named twice"),
        ([FULL, component("full", Point())], "'full' is named twice"),
        ([FULL, component(shares="nope")], "shares 'nope'"),
        ([FULL, component(shares="x")], "shares 'x'"),
        ([FULL, DRAFT, component(shares="draft")], "shares 'draft'"),
        ([FULL, component(coverage=Point(), shares="full")], "of another kind"),
        ([FULL, component(coverage=Trailing(3), shares="full")], "of another kind"),
        ([FULL, component("opt", required=False), component(shares="opt")], "optional 'opt'"),
        ([FULL, swa(3, required=False), CARRY_OVER], "optional 'swa'"),
        ([FULL, component(tokens_per_slot=4)], "not a multiple of tokens_per_slot 4"),
    ],
)
def test_what_cannot_live_together(components: list[Component], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        UnifiedTree(components, 2)


@pytest.mark.parametrize(
    "counts", [{"nope": 4}, {"draft": 4}, {"full": 0}, {"full": -1}, {"full": True}, {"full": 4.0}, {"full": None}]
)
def test_a_pool_has_a_positive_number_of_pages(counts: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="page_counts"):
        UnifiedTree([FULL, DRAFT], 2, page_counts=counts)


def test_a_policy_has_a_known_name() -> None:
    with pytest.raises(ConfigurationError, match="unknown eviction policy 'best'; there are lru, lfu"):
        UnifiedTree([FULL], 2, policy="best")


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_a_ratio_divides_the_page(ratio: int) -> None:
    assert UnifiedTree([component(tokens_per_slot=ratio)], 4).components[0].tokens_per_slot == ratio


def test_a_pool_of_an_unknown_component() -> None:
    tree = UnifiedTree([FULL], 2)
    with pytest.raises(UnifiedTreeError, match="no component 'nope'"):
        tree.pool("nope")
