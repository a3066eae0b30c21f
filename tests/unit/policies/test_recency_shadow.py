"""`Ring` against a naive model, and `RecencyShadow` against a real cache under `lru`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traffic import PATHS, STATES, WINDOWS, Served, Texts

from unified_tree import BlockBudget, Key, Tier, TreeSettings
from unified_tree.controllers import HostTier
from unified_tree.controllers.cache.lease import Lease
from unified_tree.controllers.transfer_engines import NullEngine
from unified_tree.nodes.line import Line
from unified_tree.policies.density.recency_shadow import WAIT, RecencyShadow, Request, Ring


class NaiveRing:
    """A naive ring: the amount left of each use, the oldest first; the oldest is cut off first, a part at a time."""

    def __init__(self, size: int) -> None:
        self.size, self.uses, self.left = size, 0, dict[int, int]()

    def use(self) -> int:
        self.left[self.uses] = 0
        self.left.pop(self.uses - self.size, None)
        self.uses += 1
        return self.uses - 1

    def add(self, use: int, amount: int) -> None:
        if use in self.left:
            self.left[use] += amount

    def take(self, use: int, amount: int) -> int:
        there = min(amount, self.left.get(use, 0))
        if there:
            self.left[use] -= there
        return there

    def cut(self, amount: int) -> None:
        for use in list(self.left):
            over = sum(self.left.values()) - amount
            if over > 0:
                if self.left[use] <= over:
                    del self.left[use]  # nothing is added to it any more
                else:
                    self.left[use] -= over


STEPS = st.lists(
    st.tuples(st.sampled_from(["use", "add", "take", "holds", "cut"]), st.integers(0, 9), st.integers(0, 40)), max_size=80
)


@given(STEPS, st.integers(1, 12))
def test_a_ring_holds_what_was_used_last(steps: list[tuple[str, int, int]], size: int) -> None:
    ring, naive = Ring(size), NaiveRing(size)
    for step, back, amount in steps:
        use = naive.uses - 1 - back
        if step == "use":
            assert ring.use() == naive.use()
        elif step == "cut":
            ring.cut(amount)
            naive.cut(amount)
        elif use >= 0 and step == "add":
            ring.add(use, amount)
            naive.add(use, amount)
        elif use >= 0 and step == "take":
            assert ring.take(use, amount) == naive.take(use, amount)
        elif use >= 0:
            assert ring.holds(use, amount) == min(amount, naive.left.get(use, 0))
        assert ring.held == sum(naive.left.values())


def test_until_it_is_cut_it_holds_all() -> None:
    ring = Ring(4)
    ring.add(ring.use(), 1 << 40)
    assert ring.held == 1 << 40
    ring.cut(10)
    assert ring.held == 10


@pytest.mark.parametrize(
    ("kind", "tokens", "boundaries", "points"),
    [(PATHS, 600, 0, 0.5), (PATHS, 2_000, 0, 0.5), (STATES, 8_000, 120, 1.5), (WINDOWS, 8_000, 120, 4.0)],
)
@pytest.mark.parametrize("seed", range(4))
def test_it_says_what_recency_hits(kind: str, tokens: int, boundaries: int, points: float, seed: int) -> None:
    """Beside a cache of the same size that evicts by recency, while its own goes by another order. Points of the prompts'
    tokens; more of windows, since the tree keeps some of them one page longer, and those in the middle of a prompt for a while.
    """
    lru, density = (Served(policy, kind, tokens, boundaries) for policy in ("lru", "density"))
    shadow, hit, by_recency, asked = density.policy._shadow, 0, 0.0, 0
    for prompt in Texts(seed).traffic(800, changes=True):
        before, came = shadow.by_recency, shadow.came
        hits = lru.serve(prompt), density.serve(prompt)
        if shadow.came > came:  # else what came before has begun to count half
            hit, asked, by_recency = hit + hits[0], asked + len(prompt), by_recency + shadow.by_recency - before
    assert shadow.texts._first or kind != PATHS
    assert 100 * by_recency / asked == pytest.approx(100 * hit / asked, abs=points)


def hit_together(server: Served, prompts: Iterable[list[int]], at_once: int, answer: int) -> int:
    """How many tokens are hit where so many requests run at once, and get answers behind which nothing is saved."""
    cache, hit, running = server.cache, 0, list[tuple[Lease, list[int]]]()

    def end(lease: Lease, text: list[int]) -> None:
        cache.allocate(lease, len(text))
        cache.commit(lease, text)
        cache.release(lease)

    for at, prompt in enumerate(prompts):
        cache.poll()
        lease = cache.acquire(Key(prompt), [len(prompt)])
        while lease.is_loading:
            cache.poll()
        hit += lease.cached_tokens
        if lease.committed < len(prompt):
            cache.allocate(lease, len(prompt))
            cache.commit(lease, prompt, {length: lease.save_pages[length] for length in lease.save_pages})
        running.append((lease, prompt + [(1 << 40) + at * answer + i for i in range(answer)]))
        if len(running) == at_once:
            end(*running.pop(1 + at % (at_once - 1) if at_once > 1 else 0))  # the first one runs on
    for each in running:
        end(*each)
    return hit


@pytest.mark.parametrize(("at_once", "answer"), [(1, 30), (9, 30)])
@pytest.mark.parametrize(
    ("kind", "tokens", "boundaries"),
    [(PATHS, 1_800, 0), (STATES, 1_800, 4_000), (STATES, 9_000, 80), (WINDOWS, 1_800, 4_000), (WINDOWS, 9_000, 60)],
)
@pytest.mark.parametrize("seed", range(3))
def test_while_recency_decides_it_hits_what_the_tree_hits(
    kind: str, tokens: int, boundaries: int, at_once: int, answer: int, seed: int
) -> None:
    """Of each request, with locks, with ends of texts that nothing can be resumed from, and with spare windows."""
    server = Served("density", kind, tokens, boundaries)
    shadow = server.policy._shadow
    shadow.is_ahead, shadow._tried_again_at = True, 1 << 60
    hit = hit_together(server, Texts(seed).traffic(400, changes=True), at_once, answer)
    assert hit > 0 and any(ring._first for ring in [shadow.texts, *(gate.ring for gate in shadow.gates)])
    assert abs(shadow.lead) <= 0.025 * hit


HOST_TOKENS = 500


@pytest.mark.parametrize(
    ("kind", "has_budget"), [(PATHS, False), (PATHS, True), (STATES, False), (STATES, True), (WINDOWS, False)]
)
@pytest.mark.parametrize("seed", range(3))
def test_with_a_host_too_it_hits_what_the_tree_hits(kind: str, has_budget: bool, seed: int) -> None:
    """The host has what the device has, and more. Where pools share a budget, its blocks are smaller than the device's. What
    the shadow holds counts copies that are under way.
    """
    blocks = {"full": 7} | ({"mamba": 7} if kind == STATES else {})
    host = HostTier(
        engine=NullEngine(),
        page_counts={} if has_budget else {"full": HOST_TOKENS},
        budget=BlockBudget(block_count=7 * HOST_TOKENS, page_blocks=blocks) if has_budget else None,
    )
    server = Served("density", kind, 250, 4_000, host=host, has_budget=has_budget)
    shadow = server.policy._shadow
    shadow.is_ahead, shadow._tried_again_at = True, 1 << 60
    hit = hit_together(server, Texts(seed).traffic(600, changes=True), 1, 8)
    assert hit > 0 and shadow.texts._first
    assert abs(shadow.lead) <= 0.025 * hit


def test_states_that_leave_the_host_with_their_texts_are_not_lost_for_want_of_room() -> None:
    """Recency has as much room for states as the host has, though its texts are evicted there, and their states with them."""
    states = 30
    host = HostTier(engine=NullEngine(), page_counts={"full": 300, "mamba": states})
    server = Served("density", STATES, 300, 6, host=host)
    policy = server.policy
    shadow, component = policy._shadow, policy._gates[0]
    least_here, least = states, states
    for prompt in Texts(1).traffic(600, changes=True):
        hit_together(server, [prompt], 1, 8)
        if policy._host_room[component] == states:
            least_here = min(least_here, policy._view.held_pages(component, Tier.HOST))
            least = min(least, int(shadow.gates[0].ring.held))
    assert least_here < 2 * states // 3
    assert least >= 0.9 * states


def grow(shadow: RecencyShadow, line: Line, start: int, end: int) -> Request:
    """A request comes of which nothing was known, and whose text grows so far."""
    request = shadow.arrived(None, 0, 0)
    shadow.grew(request, line, start, end)
    return request


def save(shadow: RecencyShadow, line: Line, length: int) -> None:
    """A boundary is saved."""
    shadow.saved(None, line, length, length)


class Shadow:
    """A shadow of a full tree: with room for so many tokens of text and so many states; of windows their tokens, and room."""

    def __init__(self, room: int, *, states: int | None = None, windows: tuple[int, int] | None = None) -> None:
        given = [(1, states)] if states is not None else [windows] if windows is not None else []
        self.real = RecencyShadow(TreeSettings(), [tokens for tokens, _ in given])
        self.rings = [self.real.texts, *(gate.ring for gate in self.real.gates)]
        self.rooms = [room, *(held for _, held in given)]
        self.cut()

    def cut(self) -> None:
        for ring, room in zip(self.rings, self.rooms, strict=True):
            ring.cut(room)

    @property
    def held(self) -> list[int]:
        """Of texts, then of windows or states."""
        return [int(ring.held) for ring in self.rings]

    def asked(self, line: Line, length: int, hit: int | None = None) -> int:
        """The tokens that recency hits of a request for so much of a text; without `hit` all of it is known and hit."""
        before = self.real.by_recency
        self.real.arrived(line, length, length if hit is None else hit)
        self.cut()
        return int(self.real.by_recency - before)

    def made(self, length: int, parent: Line | None = None, fork: int = -1) -> Line:
        """A new text, all of it in one piece."""
        line = Line(parent, fork, length)
        grow(self.real, line, max(0, fork), length)
        self.cut()
        return line

    def saved(self, line: Line, length: int) -> None:
        """A boundary of it is saved."""
        save(self.real, line, length)
        self.cut()


def test_a_text_loses_its_end_first() -> None:
    shadow = Shadow(100)
    first = shadow.made(60)
    shadow.made(70)
    assert shadow.asked(first, 60) == 30
    assert shadow.asked(first, 60) == 60, "it was computed anew"


def test_the_end_of_a_text_that_nothing_can_be_resumed_from_goes_first() -> None:
    shadow = Shadow(100, states=9)
    first = shadow.made(60)
    shadow.saved(first, 40)
    shadow.real.stranded(first, 50, 60)
    assert shadow.held == [50, 1]
    shadow.real.stranded(first, 30, 50)
    assert shadow.held == [50, 1], "a boundary that recency holds is behind that"
    shadow.made(50)
    assert shadow.asked(first, 50) == 50, "there is room for both"


def test_an_insert_is_a_use() -> None:
    shadow = Shadow(100)
    first = Line(None, -1, 80)
    request = grow(shadow.real, first, 0, 40)
    second = shadow.made(40)
    shadow.real.grew(request, first, 40, 60)
    shadow.cut()
    shadow.made(20)
    assert [shadow.asked(line, length) for line, length in ((first, 60), (second, 40))] == [60, 20]


def test_spare_windows_are_recencys_too() -> None:
    shadow = Shadow(100, windows=(10, 30))
    first = shadow.made(60)
    shadow.saved(first, 60)
    assert shadow.asked(first, 40, 40) == 40, "no boundary there is known, so the tree had it by spare windows"
    for _ in range(3):
        shadow.saved(shadow.made(10), 10)
    assert shadow.asked(first, 40, 40) == 0, "it is known by now, and was lost"


def test_the_beginning_of_a_text_is_used_with_all_that_fork_off_it() -> None:
    shadow = Shadow(100)
    first = shadow.made(60)
    shadow.made(60, first, 20)
    assert shadow.held == [100], "and once for both"
    shadow.made(30)
    assert shadow.asked(first, 60) == 30, "of its own it has lost thirty"


def test_a_text_is_held_once_however_often_it_is_used() -> None:
    shadow = Shadow(1_000)
    line = shadow.made(60)
    for length in (60, 10, 30, 60, 20, 59):
        assert shadow.asked(line, length) == length
    assert shadow.held == [60]


@pytest.mark.parametrize("listed_uses", [1, 2, 8])
def test_of_many_uses_of_a_text_some_are_taken_together(listed_uses: int) -> None:
    """None of its tokens is lost or held twice for that."""
    shadow = RecencyShadow(TreeSettings(listed_uses=listed_uses), [])
    line = Line(None, -1, 100)
    grow(shadow, line, 0, 100)
    for length in (*range(90, 0, -7), 100):
        before = shadow.by_recency
        shadow.arrived(line, length, length)
        assert shadow.by_recency - before == length
    assert shadow.texts.held == 100


@pytest.mark.parametrize("saved", ["saved", "hit"])
def test_a_state_that_recency_lost_is_hit_again_once_it_was_computed_anew(saved: str) -> None:
    shadow = Shadow(1_000, states=2)
    line = shadow.made(60)
    shadow.saved(line, 60)
    for _ in range(2):
        shadow.saved(shadow.made(10), 10)
    assert shadow.asked(line, 60, hit=60 if saved == "hit" else 0) == 0
    if saved == "saved":
        shadow.saved(line, 60)
    assert shadow.asked(line, 60) == 60


def test_recency_saves_where_requests_fork_off_though_the_tree_has_lost_the_text() -> None:
    """The text comes back in chunks, the last of which has the fork in it. Recency had all of it, and saves on its grid."""
    shadow = Shadow(1_000, states=10)
    shadow.real.save_grid_tokens = 16
    line = shadow.made(60)
    shadow.saved(line, 60)
    grow(shadow.real, line, 0, 30)
    assert shadow.asked(line, 40, hit=0) == 0, "a chunk is no fork"
    grow(shadow.real, Line(line, 40, 70), 30, 70)
    assert shadow.asked(line, 40, hit=0) == 32


def test_recency_saves_at_the_end_of_what_it_holds_where_the_tree_holds_more() -> None:
    shadow = Shadow(100, states=10)
    line = shadow.made(60)
    shadow.saved(line, 60)
    shadow.made(70)  # of the first text 30 tokens are left
    assert [shadow.asked(line, 40, hit=0) for _ in range(2)] == [0, 30]


def test_it_resumes_from_the_last_boundary_within_the_text() -> None:
    shadow = Shadow(1_000, states=10)
    line = shadow.made(60)
    for length in (20, 40, 60):
        shadow.saved(line, length)
    fork = shadow.made(90, line, 30)
    assert [shadow.asked(line, length, 0) for length in (60, 59, 30, 10)] == [60, 40, 20, 0]
    assert shadow.asked(fork, 90, 0) == 20, "of the text that it forks off"


def test_a_boundary_hangs_on_the_line_that_owns_its_length() -> None:
    """A node of a line may end before its fork: of the text that it forks off."""
    shadow = Shadow(1_000, states=10)
    line = shadow.made(60)
    fork = shadow.made(90, line, 40)
    shadow.saved(fork, 30)
    assert [shadow.asked(each, each.end, 0) for each in (line, fork)] == [30, 30]
    shadow.real.unsaved(fork, 30)
    assert [shadow.asked(each, each.end, 0) for each in (line, fork)] == [0, 0]


def test_what_goes_before_all_others_is_held_no_more() -> None:
    shadow = Shadow(1_000, states=10)
    line = shadow.made(60)
    shadow.saved(line, 60)
    shadow.real.unsaved(line, 60)
    assert shadow.held[1] == 0 and shadow.asked(line, 60, 0) == 0


def test_windows_that_overlap_are_held_once() -> None:
    shadow = Shadow(1_000, windows=(20, 100))
    line = shadow.made(90)
    for length, held in ((40, 20), (50, 30), (90, 50), (45, 50)):
        shadow.saved(line, length)
        assert shadow.held[1] == held
    assert [shadow.asked(line, length, 0) for length in (90, 89, 49, 44)] == [90, 50, 45, 40]


def test_a_window_is_lost_with_the_first_of_its_tokens() -> None:
    """Of two that overlap the one used longer ago is lost, and one that reaches over a fork is held on both texts."""
    shadow = Shadow(1_000, windows=(20, 45))
    line = shadow.made(60)
    shadow.saved(line, 40)
    shadow.saved(line, 50)
    fork = shadow.made(70, line, 60)
    shadow.saved(fork, 70)
    assert shadow.held[1] == 45, "five of the oldest are gone"
    assert [shadow.asked(line, length, 0) for length in (40, 60)] == [0, 50]
    assert shadow.asked(fork, 70, 0) == 70
    shadow.rings[1].cut(5)
    assert shadow.asked(fork, 70, 0) == 0, "what it needs before the fork went first"


@given(
    st.lists(st.tuples(st.sampled_from(["save", "ask", "cut"]), st.integers(0, 2), st.integers(1, 40)), max_size=60),
    st.integers(1, 12),
)
def test_windows_of_many_lines_are_held_as_single_tokens_would_be(steps: list[tuple[str, int, int]], tokens: int) -> None:
    """Against a naive model: the last use of each token. All of a use, or a part of the oldest one, is cut off."""
    shadow = RecencyShadow(TreeSettings(), [tokens])
    ring = shadow.gates[0].ring
    ring.cut(1 << 40)
    lines = [Line(None, -1, 40) for _ in range(3)]
    for line in lines:
        grow(shadow, line, 0, 40)
    used = dict[tuple[int, int], int]()
    saved = [set[int](), set[int](), set[int]()]
    for now, (step, which, length) in enumerate(steps):
        found = length if step == "save" else 0
        if step == "cut":
            uses = sorted(set(used.values()))
            while len(used) > length:  # a use of which only a part is held may count as held or not: cut between uses
                used = {token: use for token, use in used.items() if use != uses[0]}
                del uses[0]
            ring.cut(len(used))
        elif step == "ask":
            within = [at for at in saved[which] if at <= length]
            found = max([at for at in within if all((which, t) in used for t in range(max(0, at - tokens), at))], default=0)
            before = shadow.by_recency
            shadow.arrived(lines[which], length, 0)
            assert shadow.by_recency - before == found
        else:
            save(shadow, lines[which], length)
        if found:
            saved[which].add(found)
            used |= {(which, token): now for token in range(max(0, found - tokens), found)}
        assert ring.held == len(used)


def test_pools_that_share_a_budget_share_its_room() -> None:
    shadow = RecencyShadow(TreeSettings(), [1, 8])
    shadow.share(2, [100, 3])
    first = Line(None, -1, 50)
    grow(shadow, first, 0, 50)
    save(shadow, first, 50)
    assert shadow.texts.held == 2 * 50 + 100 + 3 * 8
    shadow.texts.cut(180)
    before = shadow.by_recency
    shadow.arrived(first, 50, 0)
    assert shadow.by_recency == before, "of a use of all three the text goes first"


def ahead_after(*steps: tuple[int, int]) -> list[bool]:
    """Whether recency is ahead after requests of which so many of a thousand tokens are hit; it would hit all."""
    shadow, ahead = Shadow(10_000, states=10), []
    line = shadow.made(1_000)
    shadow.saved(line, 1_000)
    for hit, count in steps:
        for _ in range(count):
            shadow.real.arrived(line, 1_000, hit)
        ahead.append(shadow.real.is_ahead)
    return ahead


def test_a_trial_ends_when_recency_would_have_hit_more() -> None:
    """A little less may be hit."""
    assert ahead_after((1_000, 8), (0, 1)) == [False, True]
    assert ahead_after((1_000, 1_000), (999, 300)) == [False, False]


def test_the_next_trial_comes_when_little_of_what_came_lately_was_lost() -> None:
    """Misses after a trial put off the next one, too: twice the loss by 512 requests more."""
    assert ahead_after((0, 1), (1_000, WAIT), (1_000, 700)) == [True, True, False]
    for lost, waits in ((1, 627), (2, 1_075), (4, 1_555), (8, 2_051)):
        ahead = ahead_after((1_000, 512), (0, lost), (1_000, waits - lost - 50), (1_000, 100))
        assert ahead == [False, True, True, False], lost


def test_a_trial_comes_also_while_requests_find_nothing_in_the_tree() -> None:
    """Clients that take turns may lose all of their texts in a round. The learned order was never tried again then."""
    shadow = Shadow(10_000, states=10)
    line = shadow.made(1_000)
    shadow.saved(line, 1_000)
    shadow.real.arrived(line, 1_000, 0)
    assert shadow.real.is_ahead
    for _ in range(800):
        shadow.made(1_000)
    assert not shadow.real.is_ahead
