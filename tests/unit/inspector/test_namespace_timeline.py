"""Tokens by namespace: each is counted once, in bounded memory, and those with most have a name."""

from __future__ import annotations

import numpy as np
import pytest

from unified_tree.controllers.inspector.timeline import (
    KEPT,
    MAX_BINS,
    MAX_NAMESPACES,
    MAX_POINTS,
    SERIES,
    SHOWN,
    NamespaceTimeline,
    Timeline,
)


def counts(hit: int, never_seen: int) -> list[int]:
    return [hit, never_seen, *[0] * (SERIES - 2)]


def totals_over_time(timeline: NamespaceTimeline, namespace: str | None) -> float:
    over = timeline.of(namespace)
    return float(np.sum(over["rates"]) * (over["at_s"][1] - over["at_s"][0]))


@pytest.mark.parametrize("passing", [0, 5, MAX_NAMESPACES])
def test_large_namespaces_keep_their_names_among_many_small_ones(passing: int) -> None:
    timeline = NamespaceTimeline()
    timeline.add(0.0, [])
    for second in range(1, 101):
        small: list[tuple[str | None, list[int]]] = [(f"salt {second} {i}", counts(0, 10)) for i in range(passing)]
        large = [("chat", counts(900, 100))] if second < 50 else [("late", counts(200, 800))]
        timeline.add(float(second), [*small, *large, (None, counts(1, 0))])
    told = timeline.totals()
    named = dict(told)
    assert len(told) <= SHOWN + 1 and told[-1][0] is None
    assert named["chat"] == counts(49 * 900, 49 * 100) and named["late"] == counts(51 * 200, 51 * 800)
    assert sum(sum(tokens) for _, tokens in told) == 100 * (1000 + 10 * passing + 1)
    for namespace, tokens in told:
        assert totals_over_time(timeline, namespace) == pytest.approx(sum(tokens), rel=0.001)
    chat = timeline.of("chat")
    assert chat["rates"][0][:48] == [900.0] * 48 and not any(chat["rates"][0][50:])


def test_what_gives_place_is_among_the_others_with_its_past() -> None:
    timeline = NamespaceTimeline()
    timeline.add(0.0, [])
    timeline.add(1.0, [(f"early {i}", counts(0, 1 + i)) for i in range(KEPT)])
    before = timeline.of(None)["rates"][1][0]
    timeline.add(2.0, [("new", counts(0, 1000))])
    after = timeline.of(None)["rates"][1]
    assert dict(timeline.totals())["new"] == counts(0, 1000)
    assert after[0] >= before and after[1] == 0.0, "no past comes at the time at which its name goes"
    assert timeline.of("early 0") == timeline.of("nobody")


def test_the_others_are_no_namespace_of_any_name() -> None:
    timeline = NamespaceTimeline()
    timeline.add(0.0, [("", counts(1, 0)), (None, counts(5, 0))])
    timeline.add(1.0, [("", counts(2, 3))])
    assert timeline.totals() == [("", counts(3, 3)), (None, counts(5, 0))]
    assert timeline.of("")["rates"][:2] == [[2.0, 0.0], [3.0, 0.0]]
    computed = timeline.computed()
    assert computed["labels"] == ["", None] and computed["rates"] == [[3.0, 0.0], [0.0, 0.0]]


def test_all_of_the_time_stays_in_view() -> None:
    timeline = Timeline(2)
    count = 5 * MAX_POINTS
    for at in range(count):
        timeline.add(float(at), np.array([3 * at, 0], np.int64))
    shown = timeline.shown()
    assert (shown["at_s"][0], shown["at_s"][-1]) == (0.0, float(count - 1))
    assert len(shown["at_s"]) == MAX_BINS + 1
    assert shown["rates"] == [[*[3.0] * MAX_BINS, 0.0], [0.0] * (MAX_BINS + 1)]
    assert Timeline(1).shown() == {"at_s": [], "rates": []}
