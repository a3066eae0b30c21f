"""The set of restorable lengths, against a definition that looks at every token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_tree import Component, Path, Point, Trailing
from unified_tree.controllers.storage import (
    HitPolicy,
    PoolFinding,
    PoolNeed,
    longest,
    need_of,
    restorable_lengths,
)
from unified_tree.terms.errors import ConfigurationError


def brute(finding: PoolFinding, length: int, page_size: int) -> bool:
    tokens = length * page_size
    window = tokens if finding.need.policy is HitPolicy.ALL_PAGES else finding.need.window_tokens
    pages = {token // page_size for token in range(max(0, tokens - window), tokens)}
    if not all(finding.pages[page] for page in pages):
        return False
    return not length or finding.attested is None or int(finding.attested[length - 1]) >= len(pages)


@st.composite
def findings(draw: st.DrawFn) -> tuple[int, int, list[PoolFinding]]:
    page_count, page_size = draw(st.integers(0, 12)), draw(st.integers(1, 5))
    needs = draw(st.lists(st.tuples(st.sampled_from(HitPolicy), st.integers(1, 30)), max_size=6))
    mostly = st.lists(st.sampled_from([True, True, True, False]), min_size=page_count, max_size=page_count)
    counts = st.lists(st.integers(0, 8), min_size=page_count, max_size=page_count)
    found = [
        PoolFinding(
            need=PoolNeed(policy=policy, window_tokens=window),
            pages=np.array(draw(mostly), np.bool_),
            attested=np.array(draw(counts), np.int64) if policy is HitPolicy.TRAILING_PAGES else None,
        )
        for policy, window in needs
    ]
    return page_count, page_size, found


@given(findings())
def test_against_brute_force(case: tuple[int, int, list[PoolFinding]]) -> None:
    page_count, page_size, found = case
    expected = [length for length in range(page_count + 1) if all(brute(finding, length, page_size) for finding in found)]
    lengths = restorable_lengths(found, page_count, page_size)
    assert np.flatnonzero(lengths).tolist() == expected
    assert longest(lengths) == max(expected)


def test_needs_of_components() -> None:
    assert need_of(Component(name="full", coverage=Path())).policy is HitPolicy.ALL_PAGES
    assert need_of(Component(name="swa", coverage=Trailing(127))) == PoolNeed(
        policy=HitPolicy.TRAILING_PAGES, window_tokens=127
    )
    assert need_of(Component(name="mamba", coverage=Point())).window_tokens == 1


def test_findings_that_do_not_fit_are_refused() -> None:
    finding = PoolFinding(need=PoolNeed(policy=HitPolicy.TRAILING_PAGES), pages=np.ones(3, np.bool_))
    with pytest.raises(ConfigurationError, match="attested"):
        restorable_lengths([finding], 3, 4)
    with pytest.raises(ConfigurationError, match="for 4 pages"):
        restorable_lengths([finding], 4, 4)
