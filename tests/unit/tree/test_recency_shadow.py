"""`Ring` against a naive model, and `RecencyShadow` against a real cache under `lru`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traffic import PATHS, STATES, WINDOWS, Served, Texts

from unified_tree import TreeSettings
from unified_tree.line import Line
from unified_tree.recency_shadow import FIRST_WAIT, RecencyShadow, Ring


class NaiveRing:
    """A naive ring: the amount left of each use, the oldest first; the oldest is evicted first, a part at a time."""

    def __init__(self, size: int) -> None:
        self.size, self.room, self.uses, self.left = size, 1 << 62, 0, dict[int, int]()

    def use(self) -> int:
        self.left[self.uses] = 0
        self.left.pop(self.uses - self.size, None)
        self.uses += 1
        return self.uses - 1

    def add(self, use: int, amount: int) -> None:
        if use in self.left:
            self.left[use] += amount
            self.evict()

    def take(self, use: int, amount: int) -> int:
        there = min(amount, self.left.get(use, 0))
        if there:
            self.left[use] -= there
        return there

    def evict(self) -> None:
        for use in list(self.left):
            over = sum(self.left.values()) - self.room
            if over > 0:
                if self.left[use] <= over:
                    del self.left[use]  # nothing is added to it any more
                else:
                    self.left[use] -= over


STEPS = st.lists(
    st.tuples(st.sampled_from(["use", "add", "take", "holds", "room"]), st.integers(0, 9), st.integers(0, 40)), max_size=80
)


@given(STEPS, st.integers(1, 12))
def test_a_ring_holds_what_was_used_last(steps: list[tuple[str, int, int]], size: int) -> None:
    ring, naive = Ring(size), NaiveRing(size)
    for step, back, amount in steps:
        use = naive.uses - 1 - back
        if step == "use":
            assert ring.use() == naive.use()
        elif step == "room":
            ring.has_room_for(amount)
            naive.room = amount
            naive.evict()
        elif use >= 0 and step == "add":
            ring.add(use, amount)
            naive.add(use, amount)
        elif use >= 0 and step == "take":
            assert ring.take(use, amount) == naive.take(use, amount)
        elif use >= 0:
            assert ring.holds(use, amount) == min(amount, naive.left.get(use, 0))
        assert ring.held == sum(naive.left.values()) <= ring.room


def test_before_it_is_known_for_how_much_there_is_room_it_holds_all() -> None:
    ring = Ring(4)
    ring.add(ring.use(), 1 << 40)
    assert (ring.is_bounded, ring.held) == (False, 1 << 40)
    ring.has_room_for(10)
    assert (ring.is_bounded, ring.held, ring.room) == (True, 10, 10)


@pytest.mark.parametrize(
    ("kind", "tokens", "boundaries", "points"),
    [(PATHS, 600, 0, 0.5), (PATHS, 2_000, 0, 0.5), (STATES, 8_000, 120, 1.5), (WINDOWS, 8_000, 120, 3.0)],
)
@pytest.mark.parametrize("seed", range(4))
def test_it_says_what_recency_hits(kind: str, tokens: int, boundaries: int, points: float, seed: int) -> None:
    """Beside a cache of the same size that evicts by recency, while its own goes by another order. Points of the prompts'
    tokens; of windows more, since it knows nothing of those in the middle of a prompt.
    """
    lru, density = (Served(policy, kind, tokens, boundaries) for policy in ("lru", "density"))
    shadow, hit, by_recency, asked = density.policy._shadow, 0, 0.0, 0
    for prompt in Texts(seed).traffic(800, changes=True):
        before, came = shadow.by_recency, shadow.came
        hits = lru.serve(prompt), density.serve(prompt)
        if shadow.came > came:  # else what came before has begun to count half
            hit, asked, by_recency = hit + hits[0], asked + len(prompt), by_recency + shadow.by_recency - before
    assert shadow.texts.is_bounded or kind != PATHS
    assert 100 * by_recency / asked == pytest.approx(100 * hit / asked, abs=points)


def shadow_of(room: int, *, boundaries: int | None = None) -> RecencyShadow:
    shadow = RecencyShadow(TreeSettings(), is_gated=boundaries is not None)
    shadow.texts.has_room_for(room)
    if boundaries is not None:
        shadow.boundaries.has_room_for(boundaries)
    return shadow


def asked(shadow: RecencyShadow, line: Line, length: int, hit: int | None = None) -> int:
    """The tokens that recency hits of a request for so much of a text; without `hit` all of it is known and hit."""
    before = shadow.by_recency
    shadow.arrived(line, length, length if hit is None else hit)
    return int(shadow.by_recency - before)


def made(shadow: RecencyShadow, length: int, parent: Line | None = None, fork: int = -1) -> Line:
    """A new text, all of it in one piece."""
    line = Line(parent, fork, length)
    shadow.grew(line, max(0, fork), length, -1)
    return line


def test_a_text_loses_its_end_first() -> None:
    shadow = shadow_of(100)
    first = made(shadow, 60)
    made(shadow, 70)
    assert asked(shadow, first, 60) == 30
    assert asked(shadow, first, 60) == 60, "it was computed anew"


def test_the_beginning_of_a_text_is_used_with_all_that_fork_off_it() -> None:
    shadow = shadow_of(100)
    first = made(shadow, 60)
    made(shadow, 60, first, 20)
    assert shadow.texts.held == 100, "and once for both"
    made(shadow, 30)
    assert asked(shadow, first, 60) == 30, "of its own it has lost thirty"


def test_a_text_is_held_once_however_often_it_is_used() -> None:
    shadow = shadow_of(1_000)
    line = made(shadow, 60)
    for length in (60, 10, 30, 60, 20, 59):
        assert asked(shadow, line, length) == length
    assert shadow.texts.held == 60


@pytest.mark.parametrize("listed_uses", [1, 2, 8])
def test_of_many_uses_of_a_text_some_are_taken_together(listed_uses: int) -> None:
    """None of its tokens is lost or held twice for that."""
    shadow = RecencyShadow(TreeSettings(listed_uses=listed_uses), is_gated=False)
    line = made(shadow, 100)
    for length in range(90, 0, -7):
        assert asked(shadow, line, length) == length
    assert shadow.texts.held == 100
    assert asked(shadow, line, 100) == 100


@pytest.mark.parametrize("saved", ["saved", "hit"])
def test_a_state_that_recency_lost_is_hit_again_once_it_was_computed_anew(saved: str) -> None:
    shadow = shadow_of(1_000, boundaries=2)
    line = made(shadow, 60)
    shadow.saved(line, 60)
    for _ in range(2):
        shadow.saved(made(shadow, 10), 10)
    assert asked(shadow, line, 60, hit=60 if saved == "hit" else 0) == 0
    if saved == "saved":
        shadow.saved(line, 60)
    assert asked(shadow, line, 60) == 60


def test_it_resumes_from_the_last_boundary_within_the_text() -> None:
    shadow = shadow_of(1_000, boundaries=10)
    line = made(shadow, 60)
    for length in (20, 40, 60):
        shadow.saved(line, length)
    fork = made(shadow, 90, line, 30)
    assert [asked(shadow, line, length, 0) for length in (60, 59, 30, 10)] == [60, 40, 20, 0]
    assert asked(shadow, fork, 90, 0) == 20, "of the text that it forks off"


def test_what_goes_before_all_others_is_held_no_more() -> None:
    shadow = shadow_of(1_000, boundaries=10)
    line = made(shadow, 60)
    shadow.saved(line, 60)
    shadow.unsaved(line, 60)
    assert shadow.boundaries.held == 0 and asked(shadow, line, 60, 0) == 0


def ahead_after(*steps: tuple[int, int]) -> list[bool]:
    """Whether recency is ahead after requests of which so many of a thousand tokens are hit; it would hit all."""
    shadow, ahead = shadow_of(10_000, boundaries=10), []
    line = made(shadow, 1_000)
    shadow.saved(line, 1_000)
    for hit, count in steps:
        for _ in range(count):
            shadow.arrived(line, 1_000, hit)
        ahead.append(shadow.is_ahead)
    return ahead


def test_a_trial_ends_when_recency_would_have_hit_more_and_the_next_one_comes_later() -> None:
    """A little less may be hit. After each trial that brings nothing the wait is twice as long."""
    assert ahead_after((1_000, 8), (0, 1)) == [False, True]
    assert ahead_after((0, 1), (1_000, FIRST_WAIT - 1), (1_000, 1)) == [True, True, False]
    lost = [(0, 1), (1_000, FIRST_WAIT), (0, 1), (1_000, 2 * FIRST_WAIT - 1), (1_000, 1)]
    assert ahead_after(*lost) == [True, False, True, True, False]
    assert ahead_after((1_000, 1_000), (999, 300)) == [False, False]
