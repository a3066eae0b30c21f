"""What the `density` policy learns: visits, what is worth how much that they leave, and what that brings against recency."""

from __future__ import annotations

from collections.abc import Generator
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from unified_tree import BlockBudget, Boundary, Component, Key, Path, Point, Trailing, TreeSettings, UnifiedTree
from unified_tree.node import Node, Tier, Value
from unified_tree.place_memory import GAPS, PlaceMemory
from unified_tree.policies import HitDensity
from unified_tree.recency import Recency
from unified_tree.reuse import (
    BY_AGE,
    BY_CLASS,
    BY_RECENCY,
    DENSITY_BITS,
    DENSITY_MASK,
    KIND_SHIFT,
    OF_RUNNING,
    SESSION,
    STEADY,
    Reuse,
    queue_of,
    since,
)
from unified_tree.urgency import SPARE
from unified_tree.visit import Visit, latest
from unified_tree.visit_fit import (
    AGE_BOUNDS,
    AGE_WIDTHS,
    AGES,
    PACES,
    USUAL_PACE,
    VisitFit,
    ages_of,
    chances_by_age,
    hits_at,
    worth_by_age,
)
from unified_tree.visit_memory import DEEP, VisitMemory, lows_of

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
FULL = Component(name="full", coverage=Path(), page_bytes=64)
STATE = Component(name="state", coverage=Point(), page_bytes=64)
WINDOW = Component(name="window", coverage=Trailing(2), page_bytes=64)


class Server:
    """Serves one prompt at a time from pools of these sizes; what it publishes is the whole prompt, and a value at its end."""

    def __init__(self, policy: str, pages: int, boundaries: int = 0, kind: Component = STATE, **settings: int) -> None:
        kinds = [FULL, kind] if boundaries else [FULL]
        self.sizes = {kinds[i].name: size for i, size in enumerate((pages, boundaries)[: len(kinds)])}
        self._free = {name: list(range(size)) for name, size in self.sizes.items()}
        self.tree = UnifiedTree(kinds, 1, policy=policy, page_counts=self.sizes, settings=TreeSettings(**settings))
        self.victims: list[int] = []
        self.cut_pages: int | None = None

    def serve(self, tokens: list[int], ends: tuple[int, ...] = ()) -> int:
        """How many tokens of a prompt are hit. Windows and states are left at `ends`, too."""
        key, tree = Key(tokens), self.tree
        found = tree.match_prefix(key, limit=len(tokens) - 1)
        lock, at = tree.lock(found.device), found.device.length
        for end in sorted({*found.save_at, *ends, len(tokens)}):
            if end <= at:
                continue
            pages = {"full": self._take("full", end - at)}
            states = {}
            if "state" in self.sizes:
                states = {"state": {end: int(self._take("state", 1)[0])}}
            if "window" in self.sizes:
                pages["window"] = self._take("window", min(2, end - at))
            result = tree.insert(Key(tokens[:end]), pages, states=states)
            for name, ids in (*result.duplicates.items(), *result.replaced.items()):
                self._free[name] += ids.tolist()
            held = [name for name in self.sizes if name != "state"]  # a run needs no state that it has gone on from
            lock, before, at = tree.lock(result.boundary, components=held), lock, end
            tree.unlock(before)
        tree.unlock(lock)
        return found.device.length

    def _take(self, name: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if len(self._free[name]) < count:
            for each, ids in self.tree.evict({name: count - len(self._free[name])}, cut_pages=self.cut_pages).freed.items():
                self._free[each] += ids.tolist()
                self.victims += ids.tolist()
        free = self._free[name]
        taken, self._free[name] = free[:count], free[count:]
        return np.array(taken, np.int64)


def fresh(count: int, draw: Random) -> list[int]:
    """A text that nobody else has."""
    return [draw.randrange(1 << 40) for _ in range(count)]


def chats_among_scans(server: Server, rounds: int = 60, chats: int = 6, scans: int = 30) -> float:
    """Chats go on once a round, with more scans between than the pool holds; what is hit of what chats repeat, in the end."""
    draw = Random(5)
    texts = [fresh(10, draw) for _ in range(chats)]
    hit = repeated = 0
    for each in range(rounds):
        for chat in range(chats):
            late = each >= rounds // 2
            repeated += len(texts[chat]) if late and each else 0
            texts[chat] = texts[chat] + fresh(2, draw)
            hit += server.serve(texts[chat]) * late
            if len(texts[chat]) > 40:
                texts[chat] = fresh(10, draw)
        for _ in range(scans):
            server.serve(fresh(30, draw))
    return hit / repeated


@pytest.mark.parametrize("kind", [None, STATE, WINDOW], ids=["paths", "states", "windows"])
def test_chats_that_go_on_outlive_scans(kind: Component | None) -> None:
    boundaries = 0 if kind is None else 24
    lru, density = (Server(policy, 320, boundaries, kind or STATE) for policy in ("lru", "density"))
    assert chats_among_scans(lru) < 0.05
    assert chats_among_scans(density) > 0.6


def test_prompts_that_come_again_whole_outlive_scans() -> None:
    """Their requests publish nothing that the tree lacks, as where an answer is no page long."""
    server, draw = Server("density", 320), Random(5)
    texts, hits = [fresh(20, draw) for _ in range(6)], []
    for _ in range(60):
        hits.append(sum(server.serve(text) for text in texts))
        for _ in range(30):
            server.serve(fresh(30, draw))
    assert sum(hits[30:]) > 0.8 * 30 * 6 * 19
    answered = visit_of(server, texts[0])
    assert (answered.turns, answered.is_open, answered.growth) == (59, False, 0)


def test_the_state_behind_a_system_prompt_outlives_those_of_sessions() -> None:
    hits = {}
    for policy in ("lru", "density"):
        draw = Random(3)
        server, system = Server(policy, 4_000, 12), fresh(40, draw)
        hits[policy] = 0
        for _ in range(400):
            server.serve(system + fresh(30, draw))
            for _ in range(14):  # more than there are states
                server.serve(fresh(20, draw))
            hits[policy] += server.serve(system + fresh(30, draw))
    assert hits["lru"] == 0
    assert hits["density"] > 0.8 * 400 * 40


@pytest.mark.parametrize("policy", ["lru", "density"])
def test_the_same_history_has_the_same_victims(policy: str) -> None:
    first, second = Server(policy, 300, 20), Server(policy, 300, 20)
    for server in (first, second):
        chats_among_scans(server, rounds=20)
    assert first.victims == second.victims


def test_it_learns_as_well_where_misses_are_not_explained() -> None:
    lru, explained, unexplained = Server("lru", 300, 20), Server("density", 300, 20), Server("density", 300, 20, ghost_bytes=0)
    for server in (lru, explained, unexplained):
        chats_among_scans(server, rounds=20)
    assert unexplained.tree.state.ghosts is None
    assert unexplained.victims == explained.victims != lru.victims


def test_what_is_remembered_is_bounded() -> None:
    limits = {"remembered_visits": 7, "remembered_forks": 3, "revise_every": 2, "listed_forks": 2, "listed_saves": 2}
    server, draw = Server("density", 500, 30, STATE, **limits), Random(1)
    trunk = fresh(60, draw)
    for _ in range(400):
        cut = draw.randrange(1, 19)
        server.serve(trunk[:cut] + fresh(40, draw), ends=(cut, cut + 5, cut + 10, cut + 20))
    assert server.tree.check() == []
    lines = [line for node in server.tree.state.nodes if (line := node.line) is not None]
    assert max(len(line.forks or ()) for line in lines) <= 2
    visits = [visit for line in lines if (visit := latest(line)) is not None]
    assert visits and max(len(visit.saves) for visit in visits) <= 2


# -- visits


def learner_of(tree: UnifiedTree) -> Reuse:
    """The learner of a tree's policy."""
    policy = tree.state.policy
    assert isinstance(policy, HitDensity)
    return policy.learner()


def visit_of(server: Server, tokens: list[int]) -> Visit:
    """The last visit of the session that has a text."""
    found = server.tree.match_prefix(Key(tokens), touch=False)
    node = server.tree.state.nodes.get(found.known.node)
    assert node is not None and node.line is not None
    visit = latest(node.line)
    assert visit is not None
    return visit


def test_a_request_that_publishes_in_pieces_is_one_visit() -> None:
    server, draw = Server("density", 300, 20), Random(2)
    text = fresh(24, draw)
    server.serve(text, ends=(8, 16))
    visit = visit_of(server, text)
    assert (visit.turns, visit.start, visit.end, visit.room, visit.saves) == (0, 0, 24, 24, (8, 16, 24))


def test_a_turn_goes_on_from_the_one_before() -> None:
    server, draw = Server("density", 300), Random(2)
    text = fresh(24, draw)
    server.serve(text)
    for _ in range(3):
        server.serve(fresh(5, draw))
    server.serve(text + fresh(6, draw))
    answered = visit_of(server, text)
    assert (answered.turns, answered.gap, answered.mean_gap, answered.growth, answered.end) == (1, 4, 4.0, 6, 30)
    for _ in range(5):
        server.serve(fresh(5, draw))
    server.serve(text + fresh(6, draw))
    server.serve(text + fresh(8, draw))
    answered = visit_of(server, text)
    assert (answered.turns, answered.gap_before, answered.gap, round(3 * answered.mean_gap)) == (3, 6, 1, 4 + 6 + 1)


def test_a_turn_whose_answer_was_dropped_goes_on_from_the_session() -> None:
    server, draw = Server("density", 300), Random(2)
    text = fresh(24, draw)
    server.serve(text + fresh(4, draw))
    turn = text + fresh(10, draw)
    server.serve(turn)
    visit = visit_of(server, turn)
    assert (visit.turns, visit.start, visit.end, visit.room) == (1, 0, 34, 34)


def test_a_session_that_comes_back_after_its_eviction_is_known() -> None:
    server, draw = Server("density", 40), Random(2)
    text = fresh(24, draw)
    server.serve(text)
    for _ in range(6):
        server.serve(fresh(20, draw))
    assert server.serve(text + fresh(4, draw)) == 0
    visit = visit_of(server, text)
    assert (visit.turns, visit.gap, visit.end) == (1, 7, 28)


def test_a_session_that_comes_back_in_pieces_after_its_eviction_has_one_visit_more() -> None:
    """Its answer was dropped, so what comes in a later piece forks off the text that was evicted."""
    server, draw = Server("density", 60), Random(2)
    text = fresh(24, draw)
    server.serve(text + fresh(6, draw))
    for _ in range(6):
        server.serve(fresh(20, draw))
    turn = text + fresh(9, draw)
    assert server.serve(turn, ends=(8, 16)) == 0
    visit = visit_of(server, turn)
    assert (visit.turns, visit.gap, visit.growth, visit.end) == (1, 7, 3, 33)


@pytest.mark.parametrize("pages", [300, 40], ids=["kept", "evicted"])
def test_how_much_a_text_grew_does_not_depend_on_what_was_evicted(pages: int) -> None:
    server, draw = Server("density", pages), Random(2)
    text = fresh(24, draw)
    server.serve(text)
    for _ in range(6):
        server.serve(fresh(20, draw))
    server.serve(text + fresh(4, draw))
    assert visit_of(server, text).growth == 4


def test_sessions_that_share_little_are_their_own() -> None:
    server, draw = Server("density", 300), Random(2)
    trunk = fresh(5, draw)
    first, second = trunk + fresh(30, draw), trunk + fresh(30, draw)
    server.serve(first)
    server.serve(second)
    assert visit_of(server, second).turns == 0
    assert visit_of(server, second).room == 30


def test_a_session_that_shares_less_than_the_last_turn_did_is_its_own() -> None:
    server, draw = Server("density", 300), Random(2)
    system = fresh(20, draw)
    first, second = system + fresh(10, draw), system + fresh(10, draw)
    server.serve(first)
    server.serve(first + fresh(6, draw))
    server.serve(second)
    assert visit_of(server, first).turns == 1
    assert visit_of(server, second).turns == 0
    assert visit_of(server, second).room == 10


def test_text_that_comes_back_says_nothing_of_places() -> None:
    server, draw = Server("density", 60, 3), Random(2)
    text = fresh(24, draw)
    server.serve(text, ends=(8, 16))
    reuse = learner_of(server.tree)
    for _ in range(6):
        server.serve(fresh(20, draw))
    before = list(reuse._resumed)
    server.serve(text + fresh(4, draw))  # from the start, for nothing is left
    assert reuse._resumed == before
    server.serve(text + fresh(8, draw))
    assert sum(reuse._resumed) == sum(before) + 1


def test_a_retry_is_no_visit_of_its_own() -> None:
    server, draw = Server("density", 300), Random(2)
    text = fresh(24, draw)
    server.serve(text)
    for _ in range(5):
        server.tree.match_prefix(Key([*text, 7, 8, 9]))  # there was no room for it
        server.serve(fresh(5, draw))
    server.serve([*text, 7, 8, 9])
    assert visit_of(server, text).turns == 1


# -- what it is worth


def learned(ages: list[int | None]) -> VisitMemory:
    """A memory of visits, one after the other, each answered at its age or never; what is answered is longer."""
    memory, visits = VisitMemory(1 << 12), []
    for now, age in enumerate(ages):
        visit = Visit(now, 0, 100 if age is None else 1_000, None, is_fork=False)
        memory.enter(visit)
        visits.append(visit)
        for before, due in enumerate(ages[:now]):
            if due is not None and before + due == now:
                memory.answered(visits[before], due)
    learn(memory, len(ages))
    return memory


def learn(memory: VisitMemory, now: int) -> None:
    """All slices."""
    for _ in memory.learn(now, 0.0, 0.0):
        pass


def test_what_is_answered_is_worth_most_shortly_before_and_the_rest_nothing() -> None:
    memory = learned([10, None] * 300)
    answered, others = (memory.pace(Visit(600, 0, length, None, is_fork=False)) for length in (1_000, 100))
    worth = [memory.worth(answered, age) for age in (0, 5, 9, 20)]
    assert worth[0] < worth[1] < worth[2] > 100 * worth[3]
    assert worth[0] > 5 * memory.worth(others, 0)


@pytest.mark.parametrize("seed", range(20))
def test_a_value_is_worth_what_the_best_time_to_keep_it_brings(seed: int) -> None:
    """Against all ages to keep it up to, with the answers that were seen in the place of chances."""
    draw = Random(seed)
    likely = [draw.choice([None, 1, 4, 4, 30, 200]) for _ in range(6)]
    ages = [draw.choice(likely) for _ in range(3_000)]
    memory = VisitMemory(1 << 12)
    for now, age in enumerate(ages):
        visit = Visit(now, 0, 100, None, is_fork=False)
        memory.enter(visit)
        if age is not None:
            memory.answered(visit, age)
    learn(memory, 1 << 20)  # the others never will be
    left = [1 << 20 if age is None else age for age in ages]
    for age in (0, 1, 2, 5, 20, 100):
        waiting = [each - age for each in left if each >= age]
        best = 0.0
        for kept in AGE_BOUNDS[age < AGE_BOUNDS] - age:
            in_time = sum(each < kept for each in waiting)
            held = sum(min(each + 0.5, kept) for each in waiting)
            best = max(best, in_time / held if held else 0.0)
        assert memory.worth(USUAL_PACE, age) == pytest.approx(best, rel=0.3, abs=1e-5)


def test_an_age_that_few_have_reached_is_not_known_to_bring_nothing() -> None:
    chances = chances_by_age([0, 30, 0, 4, 0, 0, 0], [100, 100, 70, 4, 0, 0, 0])
    assert chances[:3] == [0.0, 0.3, 0.0]
    least = 35 / 275
    assert chances[3] == pytest.approx((4 + 4 * least) / 8)
    assert chances[4:6] == [pytest.approx(chances[3] / 2), pytest.approx(max(least, chances[3] / 4))]
    assert chances[6] == pytest.approx(least)


def test_while_nobody_has_come_back_what_waits_longest_is_worth_most() -> None:
    memory = learned([None] * 64)
    worth = [memory.worth(USUAL_PACE, age) for age in range(0, 60, 4)]
    assert worth == sorted(worth) and 0 < worth[0] < worth[-1]


def test_a_class_whose_answers_are_about_to_come_is_not_slower() -> None:
    """All come after a hundred ticks; the last ones, all alike, wait for up to 95."""
    turns = np.repeat(np.arange(10), 100)
    is_back = turns < 9
    fit = fitted(turns, is_back, np.where(is_back, 100, np.arange(1000) % 96))
    assert set(fit.paces) == {USUAL_PACE}


def test_the_ages_of_least_worth_are_known() -> None:
    worth = [5.0, 3.0, 3.0, 4.0, 4.0, 4.0, 2.0, 6.0, 1.0, 1.0]
    assert lows_of(worth) == [7, 2]  # the bins of ages from 6 to 7, and of age 2
    assert lows_of([0.0, 4.2, 2.9, *worth[1:]]) == [12, 2]
    assert lows_of([0.0, 4.0, 2.9, *worth[1:]]) == [12], "less by not quite 2/7 is not enough"
    assert lows_of(sorted(worth)) == lows_of(sorted(worth, reverse=True)) == lows_of([1.0] * 5) == []


@pytest.mark.parametrize("seed", range(20))
def test_the_index_is_the_best_slope_to_any_later_age(seed: int) -> None:
    draw, pace = Random(seed), USUAL_PACE + 2
    hazard = [draw.choice([0.0, draw.random() ** 4, draw.random()]) for _ in range(AGES)]
    answered, held = [0.0], [0.0]
    for chance, width in zip(hazard, AGE_WIDTHS, strict=True):
        left = 1 - answered[-1]
        answered.append(answered[-1] + left * min(1.0, chance * 2))
        held.append(held[-1] + (left + 1 - answered[-1]) / 2 * width)
    for age, worth in enumerate(worth_by_age(hazard, pace)):
        slopes = [
            (answered[at] - answered[age]) / (held[at] - held[age]) for at in range(age + 1, AGES + 1) if held[at] > held[age]
        ]
        assert worth == pytest.approx(max(slopes, default=0.0))


def test_a_visit_that_is_answered_more_often_has_a_higher_pace() -> None:
    memory = learned([10, None] * 300)
    paces = [memory.pace(Visit(600, 0, length, None, is_fork=False)) for length in (1_000, 100)]
    assert paces[0] > USUAL_PACE > paces[1]


def test_what_a_session_has_of_its_own_tells_it_from_others_of_the_same_length() -> None:
    """A document that is asked about again, and questions behind documents, which nobody goes on from."""
    memory = VisitMemory(1 << 10)
    for now in range(600):
        visit = Visit(now, 900 * (now % 2), 1_000, None, is_fork=False)
        memory.enter(visit)
        if now % 2 == 0:
            memory.answered(visit, 10)
    learn(memory, 1 << 12)
    document, question = (memory.pace(Visit(0, start, 1_000, None, is_fork=False)) for start in (0, 900))
    assert document > question + 2


def test_the_old_ones_that_are_left_are_the_slow_ones() -> None:
    """Two kinds of visits, answered at a constant rate each. Together they are answered the more rarely the older they are, and
    told apart not nearly so.
    """
    draw = np.random.default_rng(5)
    features = draw.integers(1, 3, 8_000)
    rate = np.where(features == 2, 0.2, 0.0125)
    came = draw.geometric(rate) - 1
    fit = fitted(features, came < 40, np.minimum(came, 40))
    slow, quick = (2.0 ** ((pace - USUAL_PACE) / 2) for pace in (fit.paces[0], fit.paces[-1]))
    assert quick > 2 * slow
    assert [fit.usual[age] * quick for age in range(1, 5)] == pytest.approx([0.2] * 4, rel=0.35)
    assert fit.usual[10] / AGE_WIDTHS[10] > 0.25 * fit.usual[1], "ages from 16 on"
    assert fit.alike[10] / AGE_WIDTHS[10] < 0.2 * fit.alike[1]


def used(memory: PlaceMemory, gaps: list[float], draw: Random, dies: float) -> int:
    """Places whose uses come at random, each with its mean gap, until it dies; returns the time in the end."""
    now = 0
    for gap in gaps:
        at, before, now = now, None, now + 1
        for turn in range(40):
            visit = Visit(at, 0, 100, before, is_fork=True)
            if turn >= 3:
                memory.enter(visit)
            if draw.random() < dies:
                break
            wait = max(1, round(draw.expovariate(1 / gap)))
            if turn >= 3:
                memory.answered(visit, wait)
            before, at = visit, at + wait
            now = max(now, at)
    return now


def test_before_anything_is_known_a_place_is_used_within_as_long_again() -> None:
    memory = PlaceMemory(64)
    for pace in (1, 8, 20):
        for gaps in (0, 1, 5, 40):
            age = round(gaps * GAPS[pace])
            assert memory.worth(pace, age) == pytest.approx(1 / (GAPS[pace] + age), rel=0.25)


@pytest.mark.parametrize("dies", [0.0, 0.5])
def test_what_places_are_worth_is_learned_by_age_in_gaps(dies: float) -> None:
    draw, memory = Random(3), PlaceMemory(4_096)
    now = used(memory, [draw.choice([8, 64, 512]) for _ in range(600)], draw, dies)
    for _ in memory.learn(now + 100_000):
        pass
    for pace in (6, 12, 18):  # gaps of 8, 64 and 512
        gap = GAPS[pace]
        worth = [memory.worth(pace, round(age * gap)) * gap for age in (0, 0.5, 1, 2, 4, 8, 16)]
        assert worth == sorted(worth, reverse=True)
        if dies:
            assert worth[4] < 0.5 / (1 + 4), "most of those that wait for so long will not be used again"
        else:
            assert min(worth[:4]) > 0.5, "a use is as likely as ever, whatever the age"


def test_only_the_last_uses_of_places_are_remembered() -> None:
    worth = []
    for is_late in (False, True):
        memory, first = PlaceMemory(8), Visit(0, 0, 100, None, is_fork=True)
        memory.enter(first)
        used(memory, [10.0] * 100, Random(1), 0.1)
        if is_late:
            memory.answered(first, 100_000)  # its slot is another's
        for _ in memory.learn(10_000):
            pass
        worth.append([memory.worth(8, age) for age in (0, 10, 100, 1_000)])
    assert worth[0] == worth[1]


def fitted(features: Ints, is_back: Bools, ages: Ints) -> VisitFit:
    """All that is learned of these visits."""
    fit = VisitFit(features, is_back, ages, ages_of(ages))
    for _ in fit.steps():
        pass
    return fit


def gain(
    fit: VisitFit, features: Ints, is_back: Bools, ages: Ints, tokens: Ints, memory: float, boundaries: float = 0.0
) -> float:
    """What these visits say of it."""
    for _ in fit.judge(features, is_back, ages, ages_of(ages), tokens, memory, boundaries):
        pass
    return fit.gain


@pytest.mark.parametrize("tells", [True, False], ids=["features tell", "features say nothing"])
def test_classes_are_judged_by_visits_that_did_not_make_them(tells: bool) -> None:
    draw = np.random.default_rng(3)
    is_back = draw.random(4_000) < 0.2
    ages = np.where(is_back, draw.integers(500, 1_500, 4_000), 10_000)
    features = np.where(is_back if tells else draw.random(4_000) < 0.2, 3, 1) + (draw.integers(0, 8, 4_000) << 5)
    fit = fitted(features[::2], is_back[::2], ages[::2])
    others = features[1::2], is_back[1::2], ages[1::2], np.full(2_000, 100)
    held = 100 * int(ages[1::2].sum())
    few, all_of_them = gain(fit, *others, 0.06 * held), gain(fit, *others, held)
    assert all_of_them == 1.0
    assert few > 2 if tells else 0.9 < few < 1.02
    assert fit.foresight > 0.5 if tells else fit.foresight < 0.01
    # Whichever of texts and boundaries runs short decides.
    assert gain(fit, *others, 0.06 * held, boundaries=0.06 * held / 100) == pytest.approx(few)
    assert gain(fit, *others, 0.06 * held, boundaries=0.5 * held / 100) == pytest.approx(few)
    assert gain(fit, *others, 0.5 * held, boundaries=0.06 * held / 100) == pytest.approx(few)
    assert gain(fit, *others, held, boundaries=held / 100) == 1.0


@pytest.mark.parametrize("memory", ["few are kept", "all are kept"])
def test_foresight_is_how_much_likelier_the_answers_of_others_are(memory: str) -> None:
    draw = np.random.default_rng(6)
    features = draw.integers(1, 4, 2_000)
    is_back = draw.random(2_000) < features / 10
    ages = np.where(is_back, 1 + draw.integers(0, 3, 2_000), 1_000)
    fit = fitted(features[::2], is_back[::2], ages[::2])
    gain(fit, features[1::2], is_back[1::2], ages[1::2], np.full(1_000, 10), 1e9 if memory == "all are kept" else 1e5)
    cuts, usual, alike = np.array(fit.cuts), np.array(fit.usual), np.array(fit.alike)
    told = 0.0
    for of, answered, age in zip(features[1::2], is_back[1::2], ages[1::2], strict=True):
        odds = sum(fit.weights[i][int(of) >> 5 * i & 31] for i in range(len(fit.weights)))
        times = 2.0 ** ((fit.paces[int((odds >= cuts).sum())] - USUAL_PACE) / 2)
        at = int(np.searchsorted(AGE_BOUNDS, age, "right"))
        due, due_if_alike = times * usual[:at].sum(), alike[:at].sum()  # answers until then
        told += due_if_alike - due + (np.log(times * usual[at - 1] / alike[at - 1]) if answered else 0.0)
    assert fit.foresight == pytest.approx(told / is_back[1::2].sum())


@pytest.mark.parametrize("seed", range(20))
def test_classes_of_one_pace_are_judged_as_each_on_its_own(seed: int) -> None:
    draw = np.random.default_rng(seed)
    classes, memories = int(draw.integers(1, 49)), int(draw.integers(1, 3))
    of = draw.integers(0, min(classes, 8), classes)
    worth = draw.random((8, AGES)).round(2)
    held, hit = draw.random((memories, classes, AGES + 1)).cumsum(2), draw.random((classes, AGES + 1)).cumsum(1)
    held *= draw.random() * 4 / held[:, :, -1].sum(1).max()
    rows, counts = np.unique(of, return_counts=True)
    held_by_row = np.stack([held[:, of == row].sum(1) for row in rows], 1)
    hit_by_row = np.stack([hit[of == row].sum(0) for row in rows])
    each = ended(hits_at(worth[of], np.ones(classes, np.int64), held, hit))
    assert ended(hits_at(worth[rows], counts, held_by_row, hit_by_row)) == pytest.approx(each)


def ended(steps: Generator[None, None, float]) -> float:
    """What they come to."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return float(end.value)


@pytest.mark.parametrize("which", ["all alike", "short ones"])
def test_length_counts_where_boundaries_are_scarce_and_long_texts_come_back_as_well(which: str) -> None:
    draw = np.random.default_rng(3)
    tokens = np.where(draw.random(4_000) < 0.5, 100, 3_200)
    is_back = draw.random(4_000) < np.where((tokens == 100) | (which == "all alike"), 0.3, 0.002)
    ages = np.where(is_back, draw.integers(500, 1_500, 4_000), 10_000)
    features = np.zeros(4_000, np.int64)
    fit = fitted(features[::2], is_back[::2], ages[::2])
    others = features[1::2], is_back[1::2], ages[1::2], tokens[1::2]
    paths, boundaries = float((tokens[1::2] * ages[1::2]).sum()), float(ages[1::2].sum())
    gain(fit, *others, paths, boundaries=0.1 * boundaries)
    if which == "all alike":
        assert fit.by_length == sorted(fit.by_length)
        assert fit.by_length[-1] > 1.3
    else:
        assert max(fit.by_length) < 0.9
    gain(fit, *others, 0.1 * paths, boundaries=0.8 * boundaries)
    assert max(fit.by_length) < 1.01
    for plenty in (1.001 * boundaries, 0.0):
        gain(fit, *others, 0.1 * paths, boundaries=plenty)
        assert fit.by_length == []


def test_one_class_gains_nothing() -> None:
    features, is_back, ages = np.zeros(60, np.int64), np.arange(60) % 2 == 0, np.where(np.arange(60) % 2 == 0, 16, 1_000)
    assert gain(fitted(features, is_back, ages), features, is_back, ages, np.full(60, 10), 500.0) == 1.0


@pytest.mark.parametrize("is_round", [True, False], ids=["all after the same time", "soon or late"])
def test_keeping_what_is_older_pays_where_answers_take_their_time(is_round: bool) -> None:
    draw = np.random.default_rng(4)
    ages = draw.integers(90, 110, 2_000) if is_round else np.minimum(5_000, 1 + 10 * draw.pareto(0.8, 2_000)).astype(np.int64)
    features, is_back = np.zeros(2_000, np.int64), np.ones(2_000, np.bool_)
    fit = fitted(features[::2], is_back[::2], ages[::2])
    gain(fit, features[1::2], is_back[1::2], ages[1::2], np.full(1_000, 10), 0.4 * 10 * float(ages[1::2].sum()))
    assert fit.rise > 2 if is_round else fit.rise < 1.01


@pytest.mark.parametrize("is_round", [True, False], ids=["all after the same time", "soon or late"])
def test_worth_rises_with_age_only_where_that_pays(is_round: bool) -> None:
    memory = VisitMemory(1 << 12)
    answered_late(memory, range(4_000), 90 if is_round else 0)
    worth = [memory.worth(USUAL_PACE, age) for age in range(0, 90, 5)]
    assert (worth[-1] > 2 * worth[0]) if is_round else worth == sorted(worth, reverse=True)


def answered_late(memory: VisitMemory, times: range, after: int) -> None:
    """One visit each time, answered that much later at least or, for 0, soon or late; then it learns. There is memory for four
    tenths of what waits.
    """
    draw, due = Random(4), dict[int, list[Visit]]()
    for now in times:
        for before in due.pop(now, []):
            memory.answered(before, now - before.at)
        visit = Visit(now, 0, 100, None, is_fork=False)
        memory.enter(visit)
        age = draw.randrange(after, after + 20) if after else min(3_000, int(10 * draw.paretovariate(0.8)))
        due.setdefault(now + age, []).append(visit)
    for _ in memory.learn(times.stop, 4_000.0, 0.0):
        pass


def rises(memory: VisitMemory) -> bool:
    return memory.worth(USUAL_PACE, 80) > 2 * memory.worth(USUAL_PACE, 0)


def after(memory: VisitMemory, hits: list[int]) -> bool:
    """Whether it is trusted after so many of a hundred tokens were hit that recency would hit."""
    for hit in hits:
        memory.compare(hit, 100)
    return memory.is_trusted


def test_what_was_learned_is_not_trusted_while_recency_would_have_hit_more() -> None:
    """One token in two hundred may be missing; then no more than half of that."""
    memory = VisitMemory(1 << 12)
    answered_late(memory, range(4_000), 90)
    assert after(memory, [100] * 8 + [99] * 8)
    assert after(memory, [98] * 7) and not after(memory, [98])
    assert not after(memory, [100] * 64)
    assert after(memory, [101] * 8)


def test_what_was_missing_long_ago_counts_less_and_less() -> None:
    memory, waited = VisitMemory(1 << 12), list[int]()
    answered_late(memory, range(4_000), 90)
    for missing in (8, 64, 512):
        assert not after(memory, [0] * missing)
        waited.append(0)
        while not after(memory, [100] * 8):
            waited[-1] += 8
    assert waited == sorted(waited) and 0 < waited[0] < 2_000 and waited[-1] < 6_000


def test_what_is_not_trusted_goes_by_recency() -> None:
    reuse = learner_of(Server("density", 300).tree)
    assert reuse is not None and reuse._recency is not None
    answered_late(reuse._sessions, range(4_000), 90)
    reuse._recency.pieces.has_room_for(100)
    reuse._classes_pay = True
    rankings = reuse.rankings
    for hit, mode in ((100, BY_CLASS), (0, BY_RECENCY), (0, BY_RECENCY)):
        for _ in range(8):
            reuse._compare(hit, 100)
        assert reuse.mode == mode
    assert reuse.rankings == rankings + 2
    assert [reuse.worth(queue, at) for queue in (0, 1 << KIND_SHIFT) for at in (3, 7)] == [3, 7, 3, 7]


@pytest.mark.parametrize("pages", [40, 200, 1_000])
def test_it_hits_what_a_tree_hits_that_evicts_by_recency(pages: int) -> None:
    server, recency, draw = Server("lru", pages), Recency(1 << 12), Random(pages)
    server.cut_pages = 1
    recency.has_room_for(pages)
    last: list[tuple[int, list[int]]] = []
    hits = 0
    for serial in range(2_000):
        at = len(last) - 1 - int(len(last) * draw.random() ** 3)
        text, by_recency = list[int](), 0
        if at >= 0 and draw.random() < 0.8:
            before, text = last.pop(at)
            if len(text) > pages // 2:
                text = []  # nobody goes on from it
            else:
                by_recency = int(recency.answered(before))
        turn = text + fresh(draw.randrange(1, 12), draw)
        recency.enter(len(turn))
        last.append((serial, turn))
        assert server.serve(turn) == by_recency, serial
        hits += by_recency
    assert hits > 0


def test_where_recency_hits_nothing_what_was_learned_is_trusted() -> None:
    memory = VisitMemory(1 << 12)
    answered_late(memory, range(4_000), 90)
    for _ in range(1_000):
        memory.compare(0, 0)
    assert rises(memory)


def test_visits_without_an_answer_say_nothing() -> None:
    features, ages = np.zeros(40, np.int64), np.arange(1, 41)
    for is_back in (np.zeros(40, np.bool_), ages < 0):
        assert gain(fitted(features, ages % 2 == 0, ages), features, is_back, ages, np.full(40, 10), 500.0) == 1.0
        assert gain(fitted(features, is_back, ages), features, ages % 2 == 0, ages, np.full(40, 10), 500.0) > 0
        assert gain(fitted(features, is_back, ages), features, ages % 2 == 0, ages, np.zeros(40, np.int64), -1.0) == 1.0


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_few_visits_can_be_learned_from(count: int) -> None:
    memory = VisitMemory(8)
    for at in range(count):
        memory.enter(Visit(0, 0, at, None, is_fork=False))
    for _ in memory.learn(0, 100.0, 0.0):
        pass
    assert memory.gain == pytest.approx(1.0, abs=0.5)


def test_classes_are_told_apart_only_where_that_pays() -> None:
    server = Server("density", 320)
    chats_among_scans(server)
    assert learner_of(server.tree).mode == BY_CLASS
    alike, draw = Server("density", 320), Random(7)
    texts = [fresh(10, draw) for _ in range(40)]
    for _ in range(1_500):
        at = draw.randrange(len(texts))
        texts[at] = texts[at] + fresh(1, draw) if draw.random() < 0.9 else fresh(10, draw)
        alike.serve(texts[at])
    assert learner_of(alike.tree).mode == BY_AGE


def test_where_clients_take_turns_some_are_kept_from_the_second_round_on() -> None:
    server, draw = Server("density", 330), Random(5)
    texts = [fresh(10, draw) for _ in range(40)]
    hit = []
    for _ in range(5):
        texts = [text + fresh(1, draw) for text in texts]
        hit.append(sum(server.serve(text) > 0 for text in texts))
    assert hit[0] == 0 and hit[2] >= 5 and min(hit[3:]) >= 20


def in_turn(server: Server, clients: int, rounds: int, at_once: float = 0.0) -> list[int]:
    """How many clients are hit in each round, in which each asks once, and some of them once more right away."""
    draw = Random(5)
    texts, hit = [fresh(10, draw) for _ in range(clients)], []
    for _ in range(rounds):
        count = 0
        for client in range(clients):
            texts[client] = texts[client] + fresh(1, draw)
            count += server.serve(texts[client]) > 0
            if draw.random() < at_once:
                texts[client] = texts[client] + fresh(1, draw)
                server.serve(texts[client])
        hit.append(count)
    return hit


def test_where_nobody_has_come_back_yet_who_waits_longest_is_kept() -> None:
    """Room for two in five of the clients: of a round that was all new to `lru`, some are there in the next."""
    hit = in_turn(Server("density", 660), 120, 3)
    assert hit[0] == 0 and hit[1] >= 25


def test_clients_that_ask_again_at_once_do_not_push_out_those_that_take_turns() -> None:
    """Soon after its last use a text is worth most, then least, and more again towards its turn."""
    hit = in_turn(Server("density", 660), 120, 6, at_once=0.3)
    assert min(hit[3:]) >= 30


def test_rounds_that_take_ever_longer_are_still_hit() -> None:
    """An answer that is later than all that were known is still awaited."""
    server, draw = Server("density", 500), Random(5)
    texts, hit = [fresh(10, draw) for _ in range(60)], []
    for each in range(24):
        texts = [text + fresh(1, draw) for text in texts]
        hit.append(sum(server.serve(text) > 0 for text in texts))
        others = fresh(1, draw)
        for _ in range(each):  # looks that publish nothing: only time passes
            server.tree.match_prefix(Key(others))
    assert min(hit[4:]) >= 8


def test_visits_are_learned_of_after_every_few_at_first() -> None:
    server, draw = Server("density", 300, revise_every=256), Random(5)
    reuse = learner_of(server.tree)
    learned_after, epoch = [], 0
    for count in range(1, 601):
        server.serve(fresh(4, draw))
        if reuse._sessions._epoch != epoch:
            epoch = reuse._sessions._epoch
            learned_after.append(count)
    starts = [64, 128, 192, 256, 512]
    assert len(learned_after) == len(starts), learned_after
    assert all(0 <= after - start < 64 for after, start in zip(learned_after, starts, strict=True)), learned_after


@pytest.mark.parametrize("ends", [(250,), (10, 250), (10, 200, 250)], ids=["one leaf", "two", "three"])
def test_a_prompt_that_has_just_made_its_room_does_not_make_the_memory_small(ends: tuple[int, ...]) -> None:
    """It is learned as its first leaf comes, whose pages the tree does not have yet, nor those of the others."""
    optional = Component(name="state", coverage=Point(), page_bytes=64, required=False)
    server, draw = Server("density", 300, 100, optional), Random(5)
    for _ in range(63):
        server.serve(fresh(9, draw))
    reuse = learner_of(server.tree)
    assert reuse is not None and reuse._recency is not None
    states = {"state": {end: int(server._take("state", 1)[0]) for end in ends}}
    server.tree.insert(Key(fresh(250, draw)), {"full": server._take("full", 250)}, states=states)
    assert reuse.visits == 64 and reuse.entering == 0
    assert reuse._recency.pieces._room == server.tree.state.device_pools[0].used_pages > 290


def test_the_first_eviction_says_how_much_fits() -> None:
    server, draw = Server("density", 300), Random(5)
    reuse = learner_of(server.tree)
    assert reuse is not None and reuse._recency is not None
    for _ in range(33):
        server.serve(fresh(9, draw))
    assert not reuse._recency.pieces.is_bounded
    server.serve(fresh(9, draw))
    assert reuse.visits == 34 and reuse._recency.pieces._room == 297


def test_evicting_what_is_on_host_too_does_not_say_how_much_fits() -> None:
    tree, tokens = UnifiedTree([FULL], 1, policy="density"), list(range(30))
    reuse = learner_of(tree)
    assert reuse is not None and reuse._recency is not None
    boundary = tree.insert(Key(tokens), {"full": np.arange(30)}).boundary
    tree.transfers.acknowledge(tree.transfers.backup(boundary, {"full": np.arange(30)}))
    assert tree.evict({"full": 30}).lost == 0
    assert not reuse._recency.pieces.is_bounded
    assert tree.evict({"full": 30}, tier=Tier.HOST).lost == 1
    assert reuse._recency.pieces.is_bounded


def test_a_tree_that_fills_does_not_say_how_much_fits() -> None:
    server, draw = Server("density", 1_000_000), Random(5)
    texts = [fresh(5, draw) for _ in range(100)]
    for _ in range(7):
        texts = [text + fresh(5, draw) for text in texts]
        for text in texts:
            server.serve(text)
    reuse = learner_of(server.tree)
    assert reuse is not None and reuse._recency is not None
    assert reuse._sessions.is_ready and not reuse._recency.pieces.is_bounded


def compared(server: Server) -> tuple[float, float]:
    """What was hit since, and would have been by recency."""
    reuse = learner_of(server.tree)
    assert reuse is not None and reuse._recency is not None and reuse._recency.pieces.is_bounded
    hit, by_recency = reuse._sessions._hit, reuse._sessions._by_recency
    reuse._sessions._hit = reuse._sessions._by_recency = 0.0
    return hit, by_recency


def bounded(pages: int) -> tuple[Server, Random]:
    """A server that has learned for how much there is room, and where nobody has come back yet."""
    server, draw = Server("density", pages), Random(5)
    server.cut_pages = 1
    for _ in range(70):
        server.serve(fresh(pages // 50, draw))
    assert compared(server) == (0.0, 0.0)
    return server, draw


def evict(server: Server, pages: int) -> None:
    """The order takes what recency would not."""
    if pages:
        server._free["full"] += server.tree.evict({"full": pages}, cut_pages=1).freed["full"].tolist()


@pytest.mark.parametrize("ends", [(), (300,), (120, 250, 330)], ids=["one leaf", "two", "four"])
@pytest.mark.parametrize("gone", [0, 1, 100, 190, 270, 300])
def test_what_recency_would_hit_is_known_where_text_comes_back(gone: int, ends: tuple[int, ...]) -> None:
    """The pool holds 400 tokens; while nobody has come back the order takes the end of what was used last."""
    server, draw = bounded(400)
    text = fresh(300, draw)
    server.serve(text)
    evict(server, gone)
    assert server.serve(text + fresh(50, draw), ends) == 300 - gone
    forked = 300 - gone if 0 < 300 - gone < 100 else 0  # so little is a fork at first, of which recency would have as much
    assert compared(server) == (300.0 - gone + forked, 300.0 + forked)


@pytest.mark.parametrize("ends", [(), (120, 250, 290, 310, 330)], ids=["one leaf", "many"])
@pytest.mark.parametrize("gone", [0, 20, 100, 340])
def test_recency_would_not_hit_an_answer_that_was_dropped(gone: int, ends: tuple[int, ...]) -> None:
    server, draw = bounded(400)
    text = fresh(300, draw)
    server.serve(text + fresh(40, draw))
    evict(server, gone)
    hit = min(300, 340 - gone)
    assert server.serve(text + fresh(60, draw), ends) == hit
    assert compared(server) == (hit, 300.0)


def test_recency_would_hit_no_more_than_it_has_room_for() -> None:
    server, draw = bounded(400)
    text = fresh(300, draw)
    server.serve(text)
    for _ in range(4):  # of 400 tokens there are 260 left for the text, by recency; the order takes these again
        server.serve(fresh(35, draw))
    hit = server.serve(text + fresh(10, draw))
    assert compared(server) == (hit, 260.0) and hit > 260


@pytest.mark.parametrize(
    ("foresight", "gain", "mode", "then"),
    [
        (0.0, 1.0, BY_AGE, BY_AGE),
        (0.0, 1.1, BY_AGE, BY_CLASS),
        (0.0, 1.2, BY_CLASS, BY_CLASS),
        (0.02, 1.0, BY_AGE, BY_CLASS),
        (0.04, 0.9, BY_CLASS, BY_CLASS),
        (0.04, 0.8, BY_AGE, BY_AGE),
    ],
)
def test_classes_that_foresee_answers_are_told_apart_unless_hits_deny_it(
    foresight: float, gain: float, mode: int, then: int
) -> None:
    """With a hundred visits judged, two standard errors are 14 percent. The first mode is that from nothing, the other one that
    from classes.
    """
    modes = []
    for before in (BY_AGE, BY_CLASS):
        reuse = learner_of(UnifiedTree([FULL], 1, policy="density", page_counts={"full": 10}))
        assert reuse is not None
        sessions = reuse._sessions
        sessions.foresight, sessions.gain, sessions.judged, reuse.mode = foresight, gain, 100, before
        for _ in reuse._learn():  # of nothing, so that the figures stay
            pass
        modes.append(reuse.mode)
        assert reuse.rankings == (reuse.mode != before)  # whoever has noted something of queues looks at them anew
    assert modes == [mode, then]


@pytest.mark.parametrize("boundaries", [0, 20, 100])
def test_the_victim_is_worth_no_more_than_any_other_at_an_end_nor_much_more_than_any(boundaries: int) -> None:
    """Which may be in the middle of its queue. Of few values that is so at once."""
    server, draw = Server("density", 300 if boundaries < 100 else 3_000, boundaries, revise_every=8), Random(4)
    texts: list[list[int]] = []
    for _ in range(300):
        text = draw.choice(texts[-20:]) if texts and draw.random() < 0.6 else fresh(10, draw)
        texts.append((text if len(text) < 40 else []) + fresh(4, draw))
        server.serve(texts[-1])
        reuse = learner_of(server.tree)
        assert reuse is not None
        for pool in server.tree.state.device_pools:
            first = pool.next_victim()
            if first is None or first.urgency <= SPARE:
                continue
            for _ in range(800 if pool.order.count > 64 else 0):  # now and then one looks at one more queue
                first = pool.next_victim()
            assert first is not None
            queues: dict[float, list[Value]] = {}
            for value in pool.order:
                assert isinstance(value, Value)
                if value.urgency == first.urgency:
                    queues.setdefault(value.rank, []).append(value)
            worth = {value: reuse.worth(queue_of(value), since(value)) for queue in queues.values() for value in queue}
            assert worth[first] <= DEEP * min(worth.values()) * (1 + 1e-9)
            assert worth[first] <= min(worth[value] for queue in queues.values() for value in (queue[0], queue[-1]))


def test_where_some_ask_again_at_once_victims_come_from_the_middle_of_their_queue() -> None:
    server, from_the_middle = Server("density", 660), 0
    pool = server.tree.state.device_pools[0]
    draw = Random(5)
    texts = [fresh(10, draw) for _ in range(120)]
    for turn in range(6):
        for client in range(120):
            for _ in range(2 if draw.random() < 0.3 else 1):
                texts[client] = texts[client] + fresh(1, draw)
                server.serve(texts[client])
            first = pool.next_victim() if turn > 2 else None
            if first is not None and first.urgency > SPARE:
                queue = [value for value in pool.order if (value.urgency, value.rank) == (first.urgency, first.rank)]
                from_the_middle += first not in (queue[0], queue[-1])
    assert from_the_middle > 20


def test_where_classes_do_not_pay_what_was_used_first_goes_first() -> None:
    """Also among queues: ages are told apart in bins, and a bin holds many ticks."""
    server, draw = Server("density", 300, 20), Random(2)
    server.serve(fresh(24, draw))
    reuse = learner_of(server.tree)
    reuse.mode, reuse._state.clock = BY_AGE, 70_000
    reuse._sessions._worth = [[1.0 / (1 + age) for age in range(AGES)]] * (PACES + 1)
    queues = [SESSION << KIND_SHIFT | pace << DENSITY_BITS | 32 for pace in range(PACES)]
    since_when = list(range(20_000, 60_000, 500))
    draw.shuffle(since_when)
    waiting = [(at, draw.choice(queues)) for at in since_when]
    assert sorted(waiting, key=lambda each: reuse.worth(each[1], each[0])) == sorted(waiting)


def test_sessions_wait_in_one_queue_where_classes_do_not_pay() -> None:
    server, draw = Server("density", 300), Random(2)
    texts = [fresh(length, draw) for length in (8, 100)]
    for text in texts:
        server.serve(text)
    reuse = learner_of(server.tree)
    for pace, text in enumerate(texts):
        visit = visit_of(server, text)
        visit.pace, visit.judged = pace, reuse._sessions._epoch
    values = [value for value in server.tree.state.device_pools[0].order if isinstance(value, Value)]
    numbers = {}
    for mode in (BY_AGE, BY_CLASS):
        reuse.mode = mode
        numbers[mode] = {reuse.place(value)[0] for value in values}
    assert (len(numbers[BY_AGE]), len(numbers[BY_CLASS])) == (1, 2)


def test_a_request_that_waits_for_room_on_device_keeps_no_copy_on_host() -> None:
    """Nothing holds the copy while the request runs, so it would wait there as if its request still did."""
    server, draw = Server("density", 300), Random(2)
    text = fresh(24, draw)
    server.serve(text)
    reuse, visit = learner_of(server.tree), visit_of(server, text)
    (value,) = (value for value in server.tree.state.device_pools[0].order if isinstance(value, Value))
    number = reuse._queue(visit, value)
    visit.is_open = True
    assert reuse._queue(visit, value) != number
    value.tier = Tier.HOST
    assert reuse._queue(visit, value) == number


OPTIONAL = Component(name="draft", coverage=Trailing(4), page_bytes=64, required=False)
WINDOW = Component(name="window", coverage=Trailing(4), page_bytes=64)
IN_BLOCKS = {"full": 1, "state": 8, "draft": 2, "window": 2}


def budget_of(*kinds: Component) -> BlockBudget:
    return BlockBudget(block_count=800, page_blocks={kind.name: IN_BLOCKS[kind.name] for kind in kinds})


def worth_by_kind(tree: UnifiedTree, length: int, tier: Tier = Tier.DEVICE) -> dict[str, float]:
    """What a new text's values would be worth on a tier, each a page, where hits are certain."""
    names = [component.name for component in tree.components]
    pages = {name: np.arange(length) + length for name in names if name != "state"}
    states = {"state": {length: length // 8}} if "state" in names else {}
    found = tree.insert(Key(fresh(length, Random(length))), pages, states=states)
    node, reuse = tree.state.nodes.get(found.boundary.node), learner_of(tree)
    assert node is not None and node.line is not None and node.line.visit is not None and reuse is not None
    reuse.mode = BY_AGE
    reuse._sessions._worth = [[1.0] * AGES] * (PACES + 1)
    worth = {}
    for name, value in zip(names, node.device, strict=True):
        assert value is not None
        value.tier = tier
        worth[name] = reuse.worth(reuse._queue(node.line.visit, value), since(value))
        value.tier = Tier.DEVICE
    return worth


def test_in_a_budget_a_path_costs_a_boundary_and_a_boundary_itself_alone() -> None:
    tree = UnifiedTree([FULL, STATE], 1, policy="density", budget=budget_of(FULL, STATE))
    of_state = IN_BLOCKS["state"]
    for length in (8, 56):
        worth = worth_by_kind(tree, length)
        assert worth["full"] == pytest.approx(length / (length + of_state), rel=0.2)
        assert worth["state"] / of_state == pytest.approx(length / of_state, rel=0.2)


def test_in_a_budget_what_is_optional_goes_with_its_path_and_costs_it_nothing() -> None:
    kinds = (FULL, STATE, OPTIONAL)
    worth = worth_by_kind(UnifiedTree(kinds, 1, policy="density", budget=budget_of(*kinds)), 56)
    assert worth["full"] == pytest.approx(56 / 64, rel=0.2)
    assert worth["draft"] / IN_BLOCKS["draft"] == pytest.approx(worth["full"], rel=0.2)


@pytest.mark.parametrize("kinds", [(FULL, STATE), (FULL, WINDOW), (FULL, STATE, WINDOW)])
@pytest.mark.parametrize("length", [8, 56])
def test_in_a_budget_a_path_goes_before_what_stands_on_it(kinds: tuple[Component, ...], length: int) -> None:
    """And takes that along, for nothing can be resumed from it."""
    tree = UnifiedTree(kinds, 1, policy="density", budget=budget_of(*kinds))
    worth = worth_by_kind(tree, length)
    assert len({round(worth[kind.name] / IN_BLOCKS[kind.name], 6) for kind in kinds[1:]}) == 1, "all of a boundary goes as one"
    shared = tree.state.shared_pools[0]
    assert shared is not None
    first = shared.next_victim()
    assert first is not None and first.component == 0
    tree.evict_blocks(1)
    assert shared.used_blocks == 0


def test_tiers_go_each_by_the_room_that_its_own_pools_share() -> None:
    counts = {"full": 800, "state": 100}
    on_host = UnifiedTree([FULL, STATE], 1, policy="density", page_counts=counts, host_budget=budget_of(FULL, STATE))
    for length in (8, 56):
        assert list(worth_by_kind(on_host, length).values()) == [pytest.approx(1.0)] * 2, "device pools have room of their own"
    assert worth_by_kind(on_host, 16, Tier.HOST)["full"] == pytest.approx(16 / 24, rel=0.2)


def test_in_a_budget_a_boundary_that_is_resumed_from_rarely_is_worth_so_much_less() -> None:
    tree = UnifiedTree([FULL, STATE], 1, policy="density", budget=budget_of(FULL, STATE))
    worth_by_kind(tree, 8)
    (visit,) = {node.line.visit for node in tree.state.nodes if node.line is not None and node.line.visit is not None}
    (value,) = (value for value in tree.state.device_pools[1].order if isinstance(value, Value))
    reuse = learner_of(tree)
    last = reuse.worth(reuse._queue(visit, value), since(value))
    visit.saves = (8, 16)
    assert reuse.worth(reuse._queue(visit, value), since(value)) == pytest.approx(last / 4), "as likely before all is learned"
    visit.is_fork = True
    last_one = Visit(0, 0, 8, None, is_fork=False)
    assert reuse._density_of(visit, value) == reuse._density_of(last_one, value), "a place is worth what the last one is"


def test_what_a_session_saves_moves_what_it_saved_before_further_back() -> None:
    """Where it stood when it was the last one, it stayed, and was kept in place of others' last ones."""
    server, draw = Server("density", 320, 24), Random(3)
    chats_among_scans(server, rounds=10)
    text = fresh(40, draw)
    server.serve(text, ends=(10, 20, 30))
    reuse, values = learner_of(server.tree), []
    assert reuse is not None and reuse.mode != BY_RECENCY
    at = server.tree.state.nodes.get(server.tree.match_prefix(Key(text), touch=False).device.node)
    while at is not None:
        value = at.device[1]
        if value is not None:
            values.append(value)
            assert (queue_of(value), since(value)) == reuse.place(value)
        at = at.parent
    ranks = [queue_of(value) & DENSITY_MASK for value in values]
    assert len(values) > 1 and min(ranks[1:]) > ranks[0]


EXTRA = Component(name="extra", coverage=Point(), page_bytes=64, required=False)
LONG = Component(name="window", coverage=Trailing(7), page_bytes=64)


def ranking(*kinds: Component, **settings: int) -> UnifiedTree:
    """A tree that tells places by their rank alone."""
    return UnifiedTree([FULL, *kinds], 1, policy="density", settings=TreeSettings(**settings))


def in_place(tree: UnifiedTree, tokens: list[int], component: int = 1) -> list[int]:
    """By how many ranks windows or states under a text come behind its last one, from its end up. Each waits where it belongs
    now."""
    reuse, found = learner_of(tree), tree.match_prefix(Key(tokens), touch=False)
    at, densities = tree.state.nodes.get(found.known.node), []
    while at is not None:
        value = at.device[component]
        if value is not None and value.is_placed:
            assert queue_of(value) == reuse.place(value)[0], f"at {at.end}"
            densities.append(int(queue_of(value) & DENSITY_MASK))
        at = at.parent
    return [density - densities[0] for density in densities]


@pytest.mark.parametrize("kind", [STATE, LONG], ids=["state", "window"])
@pytest.mark.parametrize("tokens", [40, 400])
@pytest.mark.parametrize("more", [0, 5])
def test_while_its_path_is_locked_the_last_boundary_of_a_short_text_is_worth_less(
    kind: Component, tokens: int, more: int
) -> None:
    """The path of a request that runs costs nothing, so what counts is how many tokens the boundary brings."""
    tree, text = ranking(kind), list(range(tokens + more))
    reuse = learner_of(tree)

    def insert(begin: int, end: int, *, saves: bool) -> Boundary:
        pages = {"full": np.arange(begin, end)}
        if saves and kind is LONG:
            pages[kind.name] = np.arange(end - 7, end)
        states = {kind.name: {end: end}} if saves and kind is STATE else {}
        return tree.insert(Key(text[:end]), pages, states=states).boundary

    def worths() -> list[float]:
        """What the values of the text are worth beside those that are last in a text of any length, from its end up."""
        reuse._weigh_lengths()
        at: Node | None = tree.state.nodes.get(tree.match_prefix(Key(text), touch=False).known.node)
        found = []
        while at is not None:
            value = at.device[1]
            if value is not None and value.is_placed:
                assert queue_of(value) == reuse.place(value)[0], f"at {at.end}"
                found.append(reuse.worth(queue_of(value), tree.state.clock))
            at = at.parent
        return found

    reuse.mode = BY_AGE
    reuse._sessions._worth = [[1.0] * AGES] * (PACES + 1)
    reuse._sessions.mean_tokens = 100.0
    reuse._weigh_lengths()
    locks = []
    for end in (20, tokens):
        boundary = insert(0, end, saves=True)
        locks.append(tree.lock(boundary, components=["full"]))
        for lock in locks[:-1]:
            tree.unlock(lock)
    reuse._ranks[1] = 0.0
    assert worths()[0] == pytest.approx(0.48 if tokens < 100 else 1.0)
    assert worths()[-1] == 0.0, "not the last one"
    if more:
        tree.match_prefix(Key(text[:tokens]), touch=False)
        locks.append(tree.lock(insert(tokens, tokens + more, saves=False), components=["full"]))
        tree.unlock(locks[-2])
        assert worths()[0] == pytest.approx(0.48 if tokens < 100 else 1.0)
    tree.unlock(locks[-1])
    assert worths()[0] == pytest.approx(1.0)
    assert worths()[-1] == 0.0


def test_what_was_placed_by_its_length_counts_as_all_others_when_length_does_not_count_any_more() -> None:
    tree, text = ranking(STATE), list(range(40))
    reuse = learner_of(tree)
    reuse.mode, reuse._boundary_share, reuse._boundary_price = BY_AGE, 0.5, 100.0
    reuse._sessions._worth = [[1.0] * AGES] * (PACES + 1)
    reuse._sessions.mean_tokens = 100.0
    reuse._weigh_lengths()
    tree.insert(Key(text), {"full": np.arange(40)}, states={"state": {40: 1}})
    values = [value for pool in tree.state.device_pools for value in pool.order if isinstance(value, Value)]

    def worths() -> list[float]:
        return [reuse.worth(queue_of(value), since(value)) for value in values]

    assert len(values) == 2 and max(worths()) < 0.4
    reuse._boundary_share = reuse._boundary_price = 0.0
    reuse._weigh_lengths()
    assert worths() == pytest.approx([1.0, 1.0])


def test_how_long_texts_are_in_the_mean_is_learned() -> None:
    server, draw = Server("density", 3_000, 24), Random(5)
    for length in (50, 150) * 40:
        server.serve(fresh(length, draw))
    reuse = learner_of(server.tree)
    assert 90 < reuse._sessions.mean_tokens < 110
    assert reuse._of_running[0] == pytest.approx(48 / reuse._sessions.mean_tokens)


def with_a_state(text: list[int]) -> tuple[UnifiedTree, Reuse, Value]:
    """A tree with one short text and a state at its end, where texts are much longer in the mean."""
    tree = ranking(STATE)
    reuse = learner_of(tree)
    reuse._sessions.mean_tokens = 1_000.0
    reuse._weigh_lengths()
    tree.insert(Key(text), {"full": np.arange(len(text))}, states={"state": {len(text): 1}})
    [value] = tree.state.device_pools[1].order
    assert isinstance(value, Value)
    return tree, reuse, value


def test_a_lock_far_behind_a_boundary_does_not_say_that_who_saved_it_runs() -> None:
    """The text goes on without another boundary, and another session forks off it there."""
    text = list(range(240))
    tree, reuse, value = with_a_state(text[:40])
    tree.insert(Key(text), {"full": np.arange(240)})
    for boundary in (
        tree.match_prefix(Key(text), touch=False).known,
        tree.insert(Key([*text[:40], 999]), {"full": np.arange(300, 341)}).boundary,
    ):
        lock = tree.lock(boundary, components=["full"])
        assert queue_of(value) == reuse.place(value)[0]
        tree.unlock(lock)
    assert queue_of(value) & DENSITY_MASK < OF_RUNNING


def test_what_a_request_waits_to_resume_from_is_not_what_it_has_saved() -> None:
    """It has published nothing yet, and locks what it goes on from."""
    tree, reuse, value = with_a_state(list(range(40)))
    lock = tree.lock(tree.match_prefix(Key(list(range(41)))).device, components=["full"])
    assert queue_of(value) == reuse.place(value)[0]
    assert queue_of(value) & DENSITY_MASK < OF_RUNNING
    tree.unlock(lock)


def test_states_of_one_insert_are_each_behind_the_later_ones() -> None:
    """They come from the deepest up, and each moves only those above it; optional ones, too."""
    tree, tokens = ranking(STATE, EXTRA), list(range(60))
    for ends in ((10,), (20,), (30, 40, 50, 60)):
        states = {name: {end: end for end in ends} for name in ("state", "extra")}
        tree.insert(Key(tokens[: ends[-1]]), {"full": np.arange(ends[-1])}, states=states)
    assert in_place(tree, tokens, 1) == in_place(tree, tokens, 2) == [0, 1, 2, 3, 3, 3]


def test_where_nothing_is_listed_any_more_all_above_falls_behind() -> None:
    """A request goes on from before all that is."""
    tree, tokens = ranking(STATE, listed_saves=1), list(range(60))
    for end in (20, 30):
        tree.insert(Key(tokens[:end]), {"full": np.arange(end)}, states={"state": {end: end}})
    edited = tokens[:25] + list(range(100, 130))
    tree.match_prefix(Key(edited))
    tree.insert(Key(edited[:40]), {"full": np.arange(100, 140)})
    tree.insert(Key(edited), {"full": np.arange(100, 155)}, states={"state": {55: 55}})
    assert in_place(tree, edited) == [0, 3]


def test_the_upper_part_of_a_window_falls_behind_with_its_end() -> None:
    """Another session forks off inside a window of the first, and cuts it."""
    tree, tokens = ranking(LONG), list(range(60))
    tree.insert(Key(tokens[:20]), {"full": np.arange(20), "window": np.arange(13, 20)})
    tree.insert(Key([*tokens[:16], 99]), {"full": np.arange(100, 117)})
    for end in (40, 60):
        tree.insert(Key(tokens[:end]), {"full": np.arange(end), "window": np.arange(end - 7, end)})
    last, before, end, upper_part = in_place(tree, tokens)
    assert last < before < end == upper_part


def test_a_place_where_sessions_fork_off_is_compared_at_the_age_at_which_values_go() -> None:
    """A session is answered at once or never: young, it is worth more than the place, but that stays longer."""
    server, draw = Server("density", 4_000, 24), Random(4)
    system = fresh(20, draw)
    for _ in range(12):
        server.serve(system + fresh(90, draw))
    reuse = learner_of(server.tree)
    node = server.tree.state.nodes.get(server.tree.match_prefix(Key(system), touch=False).device.node)
    assert reuse is not None and node is not None and node.device[1] is not None
    reuse.mode = BY_AGE
    reuse._sessions._worth = [[100.0] * 4 + [1e-6] * (AGES - 4)] * (PACES + 1)
    kinds = []
    for usual in (0.0, 200.0):
        reuse._usual_ages[Tier.DEVICE][1] = usual
        kinds.append(reuse.place(node.device[1])[0] >> KIND_SHIFT)
    assert kinds == [SESSION, STEADY]


def test_the_age_at_which_values_go_is_known() -> None:
    server, draw = Server("density", 300), Random(4)
    for _ in range(60):  # ten fit, and each is a tick; nothing is known yet, so the oldest goes
        server.serve(fresh(30, draw))
    reuse = learner_of(server.tree)
    assert reuse._usual_ages[Tier.DEVICE][0] == pytest.approx(10 * (1 - (63 / 64) ** 50), abs=1)


def test_where_clients_take_turns_the_last_states_are_kept() -> None:
    """Each turn leaves a state at its prompt's end, and one at its answer's, from which the next goes on."""
    server, draw = Server("density", 20_000, 120), Random(6)
    texts, hits = [fresh(20, draw) for _ in range(200)], []
    for _ in range(4):
        for client, text in enumerate(texts):
            answered = text + fresh(5, draw)
            hits.append(server.serve(answered, ends=(len(text),)) > 0)
            texts[client] = answered + fresh(5, draw)
    assert sum(hits[600:]) > 70


def test_an_empty_tree_has_no_prices() -> None:
    """Learning may end when all was evicted, or a namespace flushed, and what was expected before still stands."""
    reuse = learner_of(Server("density", 300, 20).tree)
    reuse._sessions.by_length = [1.0, 1.0, 1.0, 2.0]
    reuse._boundary_share, reuse._boundary_price = 1.0, 200.0
    for _ in reuse._learn():
        pass
    assert reuse._boundary_share == reuse._boundary_price == 0.0
    assert reuse.rankings == 1
    assert reuse._lengths == [1.0] * len(reuse._lengths)


def test_what_waits_goes_by_the_prices_of_now() -> None:
    """Also what was placed under others, if length counted then: no value is touched for that."""
    tree, draw = ranking(STATE), Random(2)
    reuse, pool = learner_of(tree), tree.state.device_pools[1]

    def priced(share: float, price: float) -> int:
        """How long the session is whose state goes first now."""
        reuse._boundary_share, reuse._boundary_price = share, price
        reuse._weigh_lengths()
        reuse.rankings += 1
        victim = pool.next_victim()
        assert victim is not None
        return victim.node.end

    reuse.mode = BY_AGE
    reuse._sessions._worth = [[1.0] * AGES] * (PACES + 1)
    reuse._boundary_share = 0.5
    for first, length in ((0, 600), (600, 40)):
        pages = np.arange(first, first + length)
        tree.insert(Key(fresh(length, draw)), {"full": pages}, states={"state": {length: length}})
    assert [priced(0.5, 100.0), priced(0.0, 0.0), priced(1.0, 200.0)] == [40, 600, 40]


def test_what_a_session_left_behind_waits_as_it_did() -> None:
    server, draw = Server("density", 300), Random(2)
    text = fresh(24, draw)
    server.serve(text + fresh(4, draw))
    for _ in range(9):
        server.serve(fresh(5, draw))
    server.serve(text + fresh(10, draw))
    ages = sorted(since(value) for value in server.tree.state.device_pools[0].order if isinstance(value, Value))
    assert ages[0] == 1  # the dropped answer
    assert ages[-1] == 12


@pytest.mark.parametrize("scarce", ["boundaries", "paths"])
def test_long_sessions_keep_their_boundaries_where_these_are_what_is_short(scarce: str) -> None:
    """And where paths are, boundaries stay with the paths that stay, however long these are."""
    pages, states = (12_000, 12) if scarce == "boundaries" else (1_500, 200)
    server, draw = Server("density", pages, states), Random(7)
    texts = [fresh(length, draw) for length in (*[40] * 12, *[600] * 4)]
    hit = [0, 0]
    for turn in range(120):
        for text in texts:
            found = server.serve(text + fresh(2, draw), ends=(len(text),))
            if turn >= 100:
                hit[len(text) > 40] += found
    reuse = learner_of(server.tree)
    if scarce == "boundaries":
        assert reuse._boundary_share > 0
        assert reuse.rankings > 1
        assert hit[1] > 0.9 * 20 * 4 * 600
    else:
        assert reuse._boundary_share == reuse._boundary_price == 0.0
