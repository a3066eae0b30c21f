"""The default order, `density`: who goes first, before and after something is learned, and that it is recency's in doubt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from grove import Grove, key
from kinds import FULL, MAMBA, swa
from traffic import PATHS, STATES, WINDOWS, Served, Texts

from unified_tree import BlockBudget, Component, Key, Tier, UnifiedTree
from unified_tree.controllers import PrefixCache
from unified_tree.nodes.node import Value
from unified_tree.nodes.order import SPARE
from unified_tree.policies.density.hit_density import FIRST_LEARNED, HitDensity
from unified_tree.policies.density.turns import Save, Stair, session_of
from unified_tree.policies.eviction_policy import EvictionPolicy
from unified_tree.policies.tree_view import TreeView
from unified_tree.state.pool import Pool

WINDOW = swa(4)


def linked(first: Save | Stair | None) -> list[Save | Stair]:
    """Those that are linked, from the first one on."""
    found: list[Save | Stair] = []
    while first is not None:
        found.append(first)
        first = first.next
    return found


def evictable(tree: UnifiedTree) -> list[Value]:
    """All values that may go."""
    return [value for pool in tree.state.device_pools for value in pool.order if isinstance(value, Value)]


# -- before anything is learned


@pytest.mark.parametrize("seed", range(20))
def test_before_anything_is_learned_paths_go_as_by_recency(seed: int) -> None:
    victims = []
    for policy in ("lru", "density"):
        draw, grove, freed = Random(seed), Grove([FULL], policy=policy), []
        for _ in range(FIRST_LEARNED - 1):
            text = "".join(draw.choice("ab") for _ in range(2 * draw.randrange(1, 6)))
            if draw.random() < 0.5:
                grove.put(text)
            else:
                grove.match(text)
            if draw.random() < 0.5:
                freed.append(grove.evict(draw.randrange(1, 4)))
        victims.append([*freed, *(grove.evict(1) for _ in range(grove.tree.node_count))])
    assert victims[0] == victims[1]


def learn(tree: UnifiedTree) -> None:
    """What 64 turns would bring about: before that all goes by recency."""
    policy = tree.state.policy
    assert isinstance(policy, HitDensity)
    list(policy._worth.turns.learn(tree.state.clock))
    policy._note_mode()


@pytest.mark.parametrize("kinds", [(MAMBA,), (WINDOW,)], ids=["states", "windows"])
def test_whose_loss_costs_more_tokens_stays(kinds: tuple[Component, ...]) -> None:
    """`dear` is sixteen tokens behind the boundary before it, the others four; it was used first."""
    grove, name = Grove([FULL, *kinds], policy="density"), kinds[0].name
    texts = {"dear": "abcdefghijklmnop", "one": "qrst", "two": "uvwx"}
    for text in texts.values():
        grove.put(text, [len(text)])
        grove.match(text)
    learn(grove.tree)
    gone: list[str] = []
    while len(gone) < 3:
        grove.evict(1, name)
        gone += [each for each, text in texts.items() if each not in gone and grove.match(text, touch=False).device.length == 0]
    assert gone[0] == "one", "not `dear`, which was used first"


def test_what_its_loss_costs_grows_when_the_boundary_before_it_goes() -> None:
    """The state at six is two tokens behind that at four, and six behind the beginning when that has gone."""
    grove = Grove([FULL, MAMBA], policy="density")
    grove.put("abcdef", [4, 6])
    grove.put("wxyz", [4])
    at_four, _, other = [200], [201], [202]
    grove.match("abcd")
    for _ in range(30):
        grove.match("nothing")
    grove.match("wxyz")
    grove.match("abcdef")
    assert grove.evict(1, "mamba")["mamba"] == at_four
    assert grove.evict(1, "mamba")["mamba"] == other


# -- what is learned


class Rounds:
    """A cache with room for all; it learns from rounds, and then what they left is evicted."""

    def __init__(self, seed: int = 1) -> None:
        self.server, self.texts = Served("density", PATHS, 60_000), Texts(seed)

    def new(self, length: int) -> list[int]:
        return self.texts.new(length, length)

    def serve(self, text: list[int]) -> list[int]:
        self.server.serve(text)
        return text

    def end(self) -> None:
        assert self.server.policy._worth.turns.is_ready
        self.server.cache.evict({"full": 1 << 20})
        assert self.server.cache.tree.node_count == 0
        self.server.policy._shadow.lead = 1e30  # else recency is ahead: it would not have evicted all

    def order(self, **texts: list[int]) -> str:
        """Serve these texts, and say in which order they go."""
        for text in texts.values():
            self.serve(text)
        return self.victims(**texts)

    def victims(self, **texts: list[int]) -> str:
        """In which order these texts lose their ends, if nothing else is held."""
        cache, gone = self.server.cache, ""
        while len(gone) < len(texts):
            cache.evict({"full": 1})
            gone += "".join(name for name in texts if name not in gone and self.server.held(texts[name]) < len(texts[name]))
        return gone


def test_what_is_never_gone_on_from_goes_first_though_it_was_used_last() -> None:
    """Of chats any is answered next, or left; long prompts come once."""
    rounds, chats = Rounds(), list[list[int]]()
    for at in range(500):
        if at % 3 == 2:
            rounds.serve(rounds.new(60))
        elif chats and rounds.texts.draw.random() < 0.6:
            chat = chats.pop(rounds.texts.draw.randrange(len(chats)))
            chats.append(rounds.serve(chat + rounds.new(3))[:40])
        else:
            chats.append(rounds.serve(rounds.new(8)))
            del chats[:-10]
    rounds.end()
    assert rounds.order(a=rounds.new(8), b=rounds.new(8), x=rounds.new(60)) == "xab"


def test_of_clients_that_take_turns_the_one_whose_turn_is_last_goes_first() -> None:
    """Each of thirty comes once a round, so that of what waits the newest has to wait longest. It is not known by lengths."""
    rounds = Rounds()
    chats = [rounds.new(8) for _ in range(30)]
    for at in range(600):
        chats[at % 30] = rounds.serve(chats[at % 30] + rounds.new(1))
    rounds.end()
    gone = rounds.order(**{chr(97 + at): chats[at] for at in range(21)})
    assert gone.index("u") < gone.index("k") < gone.index("a")


def test_where_requests_fork_off_again_and_again_is_kept() -> None:
    """Documents are asked about by turns; sessions are gone on from seldom."""
    rounds, documents = Rounds(), [[*range(10**6 * at, 10**6 * at + 30)] for at in range(1, 4)]
    for at in range(400):
        rounds.serve(documents[at % 3] + rounds.new(20))
        rounds.serve(rounds.new(25))
    rounds.end()
    for document in documents:
        rounds.serve(document + rounds.new(20))
    world = {"d": documents[0], "x": rounds.serve(rounds.new(25)), "y": rounds.serve(rounds.new(25))}
    assert rounds.victims(**world)[-1] == "d"


def chats_among_scans(server: Served, rounds: int = 60, chats: int = 6, scans: int = 30) -> float:
    """Chats go on once a round, with more scans between than fit; what is hit of what chats repeat, in the second half."""
    texts = Texts(5)
    sessions = [texts.new(10, 10) for _ in range(chats)]
    hit = repeated = 0
    for each in range(rounds):
        for chat in range(chats):
            is_late = each >= rounds // 2
            repeated += len(sessions[chat]) * is_late
            sessions[chat] += texts.new(2, 2)
            hit += server.serve(sessions[chat]) * is_late
            if len(sessions[chat]) > 40:
                sessions[chat] = texts.new(10, 10)
        for _ in range(scans):
            server.serve(texts.new(30, 30))
    return hit / repeated


class Watched(Served):
    """It notes how many of the values that could go after each request are worth less than the one that would.

    Attributes:
        better: by request, as a share of all of the same class.
    """

    def __init__(self, kind: str, tokens: int) -> None:
        super().__init__("density", kind, tokens, 24)
        self.better: list[float] = []
        self._name = {PATHS: "full", STATES: "mamba", WINDOWS: "swa"}[kind]

    def serve(self, tokens: Sequence[int], save_at: Sequence[int] = ()) -> int:
        hit = super().serve(tokens, save_at)
        pool, worth = self.cache.tree.pool(self._name), self.policy._worth
        victim = pool.next_victim()
        if victim is not None and victim.urgency > SPARE and not self.policy._by_recency:
            same = [value for value in pool.order if isinstance(value, Value) and value.urgency == victim.urgency]
            self.better.append(sum(worth.of(value) < worth.of(victim) for value in same) / len(same))
        return hit


@pytest.mark.parametrize(("kind", "tokens"), [(PATHS, 2_000), (WINDOWS, 500)])
def test_mostly_the_value_that_is_worth_least_goes(kind: str, tokens: int) -> None:
    server = Watched(kind, tokens)
    chats_among_scans(server)
    assert len(server.better) > 100
    assert np.mean(server.better) < 0.2


@pytest.mark.parametrize(("kind", "tokens"), [(PATHS, 320), (STATES, 320), (WINDOWS, 500)])
def test_chats_that_go_on_outlive_scans(kind: str, tokens: int) -> None:
    lru, density = (Served(policy, kind, tokens, 24) for policy in ("lru", "density"))
    assert chats_among_scans(lru) < 0.05
    assert chats_among_scans(density) > 0.5


@pytest.mark.parametrize("seed", range(3))
def test_system_prompts_outlive_what_is_asked_behind_them(seed: int) -> None:
    """Forty system prompts by Zipf popularity; no question comes again."""
    texts = Texts(seed)
    systems = [texts.new(15, 40) for _ in range(40)]
    popularity = [1 / (i + 1) ** 0.8 for i in range(40)]
    prompts = [texts.draw.choices(systems, popularity)[0] + texts.new(1, 20) for _ in range(700)]
    assert Served("density", PATHS, 600).hits(prompts) > 1.15 * Served("lru", PATHS, 600).hits(prompts)


def test_the_state_behind_a_system_prompt_outlives_those_of_sessions() -> None:
    hits = {}
    for policy in ("lru", "density"):
        server, texts = Served(policy, STATES, 4_000, 24), Texts(3)
        system = texts.new(40, 40)
        hits[policy] = 0
        for _ in range(80):
            hits[policy] += server.serve(system + texts.new(30, 30), save_at=[40])
            for _ in range(26):  # more than there are states
                server.serve(texts.new(20, 20))
    assert hits["lru"] == 0
    assert hits["density"] > 0.4 * 80 * 40


def test_the_window_at_the_end_of_a_chunk_outlives_those_within_it() -> None:
    """A branch resumes from four pages there; within the chunk 36 pages serve it no better."""
    hits = {}
    for policy in ("lru", "density"):
        cache = PrefixCache([FULL, WINDOW], 1, {"full": 4_000, "swa": 200}, policy=policy)
        for prompt in range(16):
            text = [1000 * prompt + i for i in range(120)]
            with cache.acquire(Key(text)) as lease:
                for end in (40, 80, 120):
                    cache.allocate(lease, end)
                    cache.commit(lease, end)
        branches = [[*(1000 * prompt + i for i in range(100)), -1] for prompt in range(8, 16)]
        hits[policy] = sum(cache.tree.match_prefix(Key(text), touch=False).device.length for text in branches)
    assert hits["density"] > 2 * hits["lru"]


@pytest.mark.parametrize("seed", range(4))
def test_in_one_budget_too_spare_values_go_by_what_they_cost(seed: int) -> None:
    draw = Random(seed)
    kinds = {"full": 1, "swa": 3, "wide": 2}
    budget = BlockBudget(block_count=200_000, page_blocks=kinds)
    cache = PrefixCache([FULL, swa(3), swa(9, name="wide")], 1, budget=budget)
    for prompt in range(300):
        text, end = [1000 * prompt + i for i in range(draw.randrange(20, 90))], 0
        with cache.acquire(Key(text)) as lease:
            while end < len(text):
                end = min(len(text), end + draw.randrange(10, 30))
                cache.allocate(lease, end)
                cache.commit(lease, end)
    learn(cache.tree)
    state, spare = cache.tree.state, 0
    for _ in range(2_000):
        firsts = [first for pool in state.device_pools if (first := pool.next_victim()) is not None]
        needless = [value for value in firsts if value.urgency <= SPARE]
        assert all(state.policy.standing(value) == (value.rank, value.second_rank) for value in needless)
        spare += sum(value.urgency == SPARE for value in needless)
        cache.tree.evict_blocks(1)
    assert spare > 3


# -- recency in doubt


def by_recency_for_ever(server: Served) -> Served:
    """It would have hit so much more that nothing makes up for it."""
    server.policy._shadow.is_ahead = True
    server.policy._shadow._tried_again_at = 1 << 60
    return server


class RecencySpareByCost(EvictionPolicy):
    """By recency; what only a branch would resume from by what it cost when it was made, which ages (GreedyDual-Size)."""

    def __init__(self, view: TreeView) -> None:
        self._view = view
        self._inflation: dict[tuple[int, Tier], float] = {}

    def touched(self, value: Value) -> None:
        if value.touched == value.created:
            value.score = self._inflation.get((value.component, value.tier), 0.0) + self._view.restore_cost(value)

    def rank(self, value: Value) -> tuple[float, float]:
        return (value.score if value.spare else 0.0, float(value.touched))

    def went(self, value: Value, *, is_whole: bool) -> None:  # noqa: ARG002
        if value.spare and not value.stranded:
            pool = (value.component, value.tier)
            self._inflation[pool] = max(self._inflation.get(pool, 0.0), value.score)


@pytest.mark.parametrize("kind", [PATHS, STATES, WINDOWS])
@pytest.mark.parametrize("seed", range(4))
def test_while_recency_is_ahead_the_order_is_recencys(kind: str, seed: int) -> None:
    lru, density = (Served(policy, kind, 400, 30) for policy in (RecencySpareByCost, "density"))
    by_recency_for_ever(density)
    for prompt in Texts(seed).traffic(400, changes=True):
        assert lru.serve(prompt) == density.serve(prompt)
    assert density.policy._worth.turns.is_ready and density.policy._shadow.is_ahead


@pytest.mark.parametrize("seed", range(5))
def test_paths_that_nothing_can_be_resumed_from_go_by_recency(seed: int) -> None:
    victims = []
    for policy in ("lru", "density"):
        draw, grove = Random(seed), Grove([FULL, MAMBA], policy=policy)
        for at in range(60):
            text = 2 * chr(100 + at) + "".join(draw.choice("ab") for _ in range(2 * draw.randrange(2, 20)))
            grove.put(text, [len(text)] if draw.random() < 0.3 else [])
            if draw.random() < 0.5:
                grove.match(text)
        needless = sum(value.stranded for value in evictable(grove.tree))
        assert needless > 20
        victims.append([grove.evict(1) for _ in range(needless)])
    assert victims[0] == victims[1]


# -- one budget


@pytest.mark.parametrize(("state_blocks", "first"), [(1, "full"), (64, "mamba")])
def test_in_one_budget_a_value_is_worth_what_it_promises_for_a_block(state_blocks: int, first: str) -> None:
    """A state of two blocks saves as many tokens as one of many."""
    budget = BlockBudget(block_count=100_000, page_blocks={"full": 1, "mamba": state_blocks})
    grove = Grove([FULL, MAMBA], policy="density", budget=budget)
    for text in ("abcdefghijklmnop", "qrstuvwxyzABCDEF"):
        grove.put(text, [16])
        grove.match(text)
    learn(grove.tree)
    freed = grove.tree.evict_blocks(1).freed
    assert next(iter(freed)) == first and ("full" in freed) == (first == "full")


# -- two tiers


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.HOST])
def test_what_the_other_tier_has_too_goes_first(tier: Tier) -> None:
    """Then both tiers together hold more. It was used last, and is no less likely to be gone on from."""
    grove = Grove([FULL], policy="density")
    for text in ("abcdefgh", "ijklmnop", "qrstuvwx"):
        grove.put(text)
        grove.backup(text)
    grove.evict(4)  # the first text is on host alone
    grove.put("ABCDEFGH")  # on device alone
    for text in ("ABCDEFGH", "ijklmnop", "qrstuvwx"):
        grove.match(text)
    learn(grove.tree)
    assert grove.tree.evict({"full": 8}, tier).lost == 0
    assert grove.tree.evict({"full": 4}, tier).lost == 1


@pytest.mark.parametrize("policy", ["lru", "density"])
def test_what_stays_on_host_was_used_when_it_was_on_device(policy: str) -> None:
    grove = Grove([FULL], policy=policy)
    used, unused = "abcdefgh", "ijklmnop"
    for text in (used, unused):
        grove.put(text)
        grove.backup(text)
    grove.match(used)
    grove.evict(8)  # both are on host alone
    assert grove.tree.evict({"full": 4}, Tier.HOST).lost == 1
    assert grove.match(used, touch=False).reachable.length == len(used)


def test_recency_has_lost_what_the_device_loses_once_the_host_was_full() -> None:
    """Until then a backup might have saved it. A text takes four pages of two tokens."""
    grove = Grove([FULL], policy="density")
    host, both, device = "abcdefgh", "ijklmnop", "qrstuvwx"
    for text in (host, both, device):
        grove.put(text)
        grove.match(text)
    policy = grove.tree.state.policy
    assert isinstance(policy, HitDensity)
    shadow = policy._shadow.texts
    grove.backup(host)
    grove.backup(both)
    grove.evict(4)
    for text in (both, host):
        grove.match(text)
    grove.put("ABCD")
    grove.evict(4)
    assert grove.match(device, touch=False).reachable.length == 0 and shadow.held == 28, "the host has room"
    assert grove.tree.evict({"full": 4}, Tier.HOST).lost == 0, "the device has it, too"
    assert shadow.held == 28, "so nothing was lost"
    grove.evict(4)
    assert grove.match(both, touch=False).reachable.length == 0
    assert shadow.held == 16, "what the host had when it was full, since that is more"


# -- decisions


@pytest.mark.parametrize("kind", [PATHS, STATES, WINDOWS])
def test_the_same_requests_are_hit_the_same(kind: str) -> None:
    """Also where misses are not explained, so that nothing of what was evicted is remembered for that."""
    servers = [
        Served("density", kind, 400, 20),
        Served("density", kind, 400, 20),
        Served("density", kind, 400, 20, ghost_bytes=0),
    ]
    hits = [[server.serve(prompt) for prompt in Texts(7).traffic(400, changes=True)] for server in servers]
    assert hits[0] == hits[1] == hits[2]


def test_what_is_remembered_is_bounded() -> None:
    limits: dict[str, Any] = {
        "remembered_turns": 7,
        "revise_every": 2,
        "listed_places": 2,
        "listed_saves": 2,
        "listed_uses": 2,
    }
    server, texts = Served("density", STATES, 800, 40, **limits), Texts(1)
    trunk = texts.new(60, 60)
    for _ in range(2_000):
        cut = texts.draw.randrange(1, 19)
        server.serve(trunk[:cut] + texts.new(40, 40), save_at=(cut, cut + 5, cut + 10, cut + 20))
    assert server.cache.tree.check() == []
    lines = [node.line for node in server.cache.tree.state.nodes if node.line is not None]
    sessions = [session_of(line) for line in lines]
    assert max(len(session.places or ()) for session in sessions) == 2
    assert max(len(linked(session.saves)) for session in sessions) == 2
    assert max(len(linked(session.stairs)) for session in sessions) == 2


def words(tree: UnifiedTree) -> str:
    """The reason of each evictable value."""
    policy = tree.state.policy
    needed = [value for value in evictable(tree) if not (value.spare or value.stranded)]
    return "\n".join(sorted({policy.explain(policy.reason(value), tree.state.clock) for value in needed}))


def test_why_a_value_went_is_said_in_words() -> None:
    server, texts = Served("density", STATES, 40_000, 800), Texts(8)
    system = texts.new(10, 10)
    server.serve(system + texts.new(60, 60))
    assert "ranked as by lru until 64 turns are known; the least recently" in words(server.cache.tree)
    for _ in range(2 * FIRST_LEARNED):
        server.serve(system + texts.new(60, 60), save_at=[10])
    said = words(server.cache.tree)
    assert re.search("of a session, and [0-9]+% of sessions like it go on, unused for ", said)
    assert re.search("requests fork off here, about every [0-9]+ ticks, unused for ", said)
    assert "its loss costs about 59 tokens for each token or state that it frees" in said


def test_what_went_while_recency_decided_is_said_to_have_gone_by_it() -> None:
    server, texts = Served("density", STATES, 40_000, 800), Texts(8)
    for _ in range(2 * FIRST_LEARNED):
        server.serve(texts.new(60, 60))
    policy, tree = server.policy, server.cache.tree
    before = policy.reason(evictable(tree)[0])
    policy._shadow.is_ahead, policy._shadow._tried_again_at = True, 1 << 60
    server.serve(texts.new(60, 60))
    now = tree.state.clock
    later = policy.reason(evictable(tree)[0])
    said = policy.explain(later, now)
    assert "ranked as by lru, which would have hit more lately; the learned order says: of a session, and " in said
    assert policy.explain(before, now).startswith("of a session")
    policy._shadow.is_ahead = False
    server.serve(texts.new(60, 60))
    assert "which would have hit more lately" in policy.explain(later, now), "as it was then"
    assert "of a session" in policy.explain(policy.reason(evictable(tree)[0]), tree.state.clock)


def test_a_session_s_last_state_is_told_from_the_one_before_it() -> None:
    grove = Grove([FULL, MAMBA], policy="density")
    grove.put("abcdefghijklmnop", [8, 16])
    learn(grove.tree)
    before, last = (str(grove.tree.explain(key(text))) for text in ("abcdefgh", "abcdefghijklmnop"))
    said = "mamba on device at 8: before the last one of its session, resumed from 25.0% as often as that, and "
    assert said in before
    assert "mamba on device at 16: of a session, and " in last


def test_what_was_superseded_is_said_to_be() -> None:
    grove = Grove([FULL, WINDOW], policy="density")
    first = grove.put("abcdefgh").boundary
    grove.tree.supersede(first, WINDOW.name, 100)
    assert "never used, or superseded, unused for " in words(grove.tree)
    assert grove.evict(1, WINDOW.name)
    [eviction, *_] = grove.tree.explain(key("abcdefghij")).reasons
    assert "never used, or superseded" in eviction


def served(kind: str) -> tuple[Served, Pool]:
    """A cache under the default order, and its pool that is short."""
    server = Served("density", kind, 400 if kind == PATHS else 4_000, 30)
    return server, server.cache.tree.pool("full" if kind == PATHS else "mamba")


@pytest.mark.parametrize("kind", [PATHS, STATES])
def test_to_say_what_would_go_next_changes_nothing(kind: str) -> None:
    hits: list[list[int]] = []
    for is_asked in (False, True):
        server, pool = served(kind)
        hits.append([])
        for prompt in Texts(1).traffic(400):
            if is_asked:
                pool.likely_victim()
            hits[-1].append(server.serve(prompt))
    assert hits[0] == hits[1]


@pytest.mark.parametrize("kind", [PATHS, STATES])
def test_what_is_said_to_go_next_does(kind: str) -> None:
    server, pool = served(kind)
    for prompt in Texts(1).traffic(400):
        server.serve(prompt)
        likely = pool.likely_victim()
        assert likely is pool.next_victim()
