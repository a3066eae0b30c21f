"""The contract of eviction policies, on which the tree relies."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unified_tree import (
    Chunked,
    Component,
    ConfigurationError,
    EvictionPolicy,
    InsertResult,
    Key,
    Match,
    Path,
    Point,
    PolicyFactory,
    StaleBoundaryError,
    Tier,
    Trailing,
    UnifiedTree,
)
from unified_tree.controllers.testing.checks import (
    LIMIT_S,
    BrokenClauseError,
    Check,
    described,
    expect,
    expect_equal,
    run_checks,
)
from unified_tree.policies.standard_policy import Standard
from unified_tree.policies.table import EVENTS, overrides, policy_factory

if TYPE_CHECKING:
    from unified_tree.locks.locks import Receipt
    from unified_tree.nodes.node import Node, Value
    from unified_tree.policies.eviction_policy import Rank
    from unified_tree.policies.tree_view import TreeView


FULL = Component(name="full", coverage=Path())
MAMBA = Component(name="mamba", coverage=Point())
SWA = Component(name="swa", coverage=Trailing(5))
COMPOSITIONS: dict[str, Sequence[Component]] = {
    "full": (FULL,),
    "mamba": (FULL, MAMBA),
    "window_and_mamba": (FULL, SWA, MAMBA),
    "draft_of_its_own": (FULL, Component(name="draft", coverage=Path(), required=False), MAMBA),
    "rebuilt_window": (FULL, Component(name="swa", coverage=Trailing(5), rebuild_tokens=5)),
}
STEPS = 150


def check_policy(factory: str | PolicyFactory, *, limit_s: float = LIMIT_S) -> None:
    """Check that an eviction policy keeps the contract of `EvictionPolicy`, on one tier with pools of their own.

    Not checked: host, budgets that pools share, tenants, and `withdrew`.

    Args:
        factory: makes one for a tree, or the name it goes by; see UnifiedTree.
        limit_s: seconds that a clause may take.

    Raises AssertionError that names every clause that is broken, or says why there is no policy to check.

    >>> check_policy("lru")
    """
    try:
        made = policy_factory(factory)
        UnifiedTree([FULL], 2, policy=made)
    except ConfigurationError as error:
        raise BrokenClauseError(f"there is no policy to check: {error}") from error
    except Exception as error:  # the factory is the user's
        raise BrokenClauseError(f"there is no policy to check, its factory raises {described(error)}") from error
    run_checks(policy_checks(), lambda: made, limit_s)


def policy_checks() -> list[Check]:
    """The single checks: each is called with a policy's factory."""
    victims = [
        Check(
            the_victim_has_the_smallest_rank,
            f"the_victim_has_the_smallest_rank_of_all_that_can_go_{kinds}",
            f"the victim has the smallest rank of all that can go (model: {kinds.replace('_', ' ')})",
            kinds=kinds,
        )
        for kinds in COMPOSITIONS
    ]
    others = (the_same_history_has_the_same_victims, everything_can_be_evicted, it_tells_of_itself_without_failing)
    return [*victims, *map(Check, others)]


def victims_of(factory: str | PolicyFactory) -> str:
    """In which order the values a, b, c and d of one scripted history are evicted, to compare with what a policy documents.

    They are made in this order, with priorities 2, 0, 1, 0, and then used: a twice, c, d twice, b.

    >>> victims_of("lru"), victims_of("priority")
    ('acdb', 'dbca')
    """
    letters = LetterTree([FULL], policy=policy_factory(factory))
    for letter, priority in zip("abcd", (2, 0, 1, 0), strict=True):
        letters.put(2 * letter, priority=priority)
    for letter in "aacddb":
        letters.match(2 * letter)
    return "".join("abcd"[letters.evict(1)["full"][0] - 100] for _ in range(4))


def the_victim_has_the_smallest_rank(factory: PolicyFactory, kinds: str) -> None:
    """Each victim's rank is the smallest of all that could go; so a rank changes only when its value is used."""
    life = RandomLife(factory, COMPOSITIONS[kinds], seed=kinds)
    life.run(STEPS)
    expect(len(life.victims) > 30, f"only {len(life.victims)} values were evicted: the check looked at too little")


def the_same_history_has_the_same_victims(factory: PolicyFactory) -> None:
    """A policy shares nothing with that of another tree, and decides by its own tree's history alone."""
    lives = [RandomLife(factory, COMPOSITIONS["window_and_mamba"], seed="twice") for _ in range(2)]
    for life in lives:
        life.run(STEPS)
    expect_equal(lives[1].victims, lives[0].victims, "the victims of the same history, run again")


def everything_can_be_evicted(factory: PolicyFactory) -> None:
    """Whatever a policy ranks, eviction ends with an empty tree when it is asked for all pages, and no call fails."""
    letters = LetterTree([FULL, SWA, MAMBA], policy=factory)
    for text in ("abcd", "abcdef", "abxx", "zzzz"):
        letters.put(text, [len(text)])
        letters.match(text)
    for component in ("full", "swa", "mamba"):
        letters.evict(100, component)
    expect_equal(letters.tree.node_count, 0, "nodes left when all pages were to be evicted")
    expect_no_failures(letters.tree)


def it_tells_of_itself_without_failing(factory: PolicyFactory) -> None:
    """`figures` returns numbers by name. For each value that can go, `explain` returns a text and `standing` a rank.
    `likely_victim` returns one of these values.
    """
    letters = LetterTree([FULL, MAMBA], policy=factory)
    for text in ("abcd", "abcdef", "abxx", "zzzz"):
        letters.put(text, [len(text)])
        letters.match(text)
    state = letters.tree.state
    for name, number in state.policy.figures().items():
        expect(not isnan(number), f"figures() has no number for {name!r}")
    for i, pool in enumerate(state.pools(Tier.DEVICE)):
        likely = pool.likely_victim()
        expect(likely is None or likely.is_placed, f"likely_victim returned {likely!r}, which cannot go")
        for value in [value for value in values(letters.tree, i) if value.is_placed]:
            said = state.policy.explain(state.policy.reason(value), state.clock)
            expect(bool(said), f"explain returned {said!r} for the rank {_shown((value.rank, value.second_rank))}")
            pool.standing(value)  # a failure is counted
    expect_no_failures(letters.tree)


def expect_no_failures(tree: UnifiedTree) -> None:
    """Raise AssertionError if a policy raised or ranked by what is no number."""
    for component in tree.components:
        for tier in (Tier.DEVICE, Tier.HOST):
            if component.shares is None:
                pool = tree.pool(component.name, tier)
                failures, why = pool.policy_failures, pool.last_policy_failure
                message = f"the policy of {component.name!r} failed {failures} times, the last time: {why}"
                expect(not failures, message, cause="the policy fails")


class Watched(EvictionPolicy):
    """A policy under watch: compares each victim with all that could have gone instead."""

    def __init__(self, inner: EvictionPolicy | Standard, life: RandomLife) -> None:
        self._inner = inner
        self._life = life
        self.chooses = inner.chooses if isinstance(inner, Standard) else overrides(inner, "next_victim")
        self.follows_texts = bool(getattr(inner, "follows_texts", False))
        for name in (*EVENTS, "next_victim", "likely_victim", "standing", "explain", "admits"):
            is_told = name != "went" and (name != "next_victim" or self.chooses)
            if is_told and (hasattr(inner, name) if isinstance(inner, Standard) else overrides(inner, name)):
                setattr(self, name, getattr(inner, name))

    def rank(self, value: Value) -> Rank:
        """See EvictionPolicy.rank."""
        return self._inner.rank(value)

    def went(self, value: Value, *, is_whole: bool) -> None:
        """See EvictionPolicy.went."""
        if is_whole:
            self._life.watch(value, self)
        if isinstance(self._inner, Standard) or overrides(self._inner, "went"):
            self._inner.went(value, is_whole=is_whole)


class RandomLife:
    """A tree that lives at random under a policy.

    Attributes:
        victims: what was evicted, by component, length and pages.
    """

    def __init__(self, factory: PolicyFactory, components: Sequence[Component], seed: str) -> None:
        self.victims: list[tuple[int, int, bytes]] = []
        self._factory = factory
        self._broken: tuple[str, str] | None = None
        self._rng = random.Random(seed)
        self._letters = LetterTree(components, policy=self._watched)
        self._texts = ["ab"]
        self._receipts: list[Receipt] = []

    def _watched(self, view: TreeView) -> Watched:
        return Watched(self._factory(view), self)

    def run(self, steps: int) -> None:
        """So many random operations. Raises AssertionError for a wrong victim, or a policy that failed."""
        rng, letters = self._rng, self._letters
        owned = [component.name for component in letters.tree.components if component.shares is None]
        for _ in range(steps):
            if rng.random() < 0.6:
                self._put()
            elif rng.random() < 0.7:
                letters.match(rng.choice(self._texts))
            elif self._receipts:
                self._receipts.pop(rng.randrange(len(self._receipts))).release()
            if rng.random() < 0.5:
                letters.tree.evict({rng.choice(owned): rng.randrange(1, 6)}, cut_pages=rng.choice((None, None, 1)))
        expect_no_failures(letters.tree)
        if self._broken is not None:
            raise BrokenClauseError(*self._broken)
        expect_equal(letters.tree.check(), [], "what is unsound in the tree")

    def _put(self) -> None:
        rng, letters = self._rng, self._letters
        base = rng.choice(self._texts)
        text = base[: rng.randrange(len(base) + 1)] + "".join(rng.choices("xyz", k=rng.randrange(1, 7)))
        lengths = rng.sample(range(2, len(text) + 1, 2), k=min(len(text) // 2, rng.randrange(3)))
        result = letters.put(text, lengths, priority=rng.randrange(3))
        self._texts.append(text)
        if rng.random() < 0.2 and letters.match(text, touch=False).device.length:
            try:
                self._receipts.append(letters.tree.lock(result.boundary))
            except StaleBoundaryError:
                self._receipts.append(letters.tree.lock(letters.match(text, touch=False).device))

    def watch(self, victim: Value, policy: Watched) -> None:
        """Note a victim, and compare it with all that could have gone. What is broken is said at the end: a policy that raises
        is none that the tree listens to."""
        tree = self._letters.tree
        self.victims.append((victim.component, victim.node.end, victim.pages))
        if self._broken is not None:
            return
        candidates = [value for value in values(tree, victim.component) if is_removable(tree, value)]
        first: tuple[bool, tuple[float, float]] = (not (victim.stranded or victim.spare), (victim.rank, victim.second_rank))
        own = first
        if victim not in candidates:
            words = "a value was evicted that could not go"
            self._broken = words, words
        for value in () if policy.chooses else candidates:
            rank, was = policy.rank(value), (value.rank, value.second_rank)
            now = _pair(rank)
            if now is None or now != was:
                self._broken = _changed(was, now, rank)
                return
            first = min(first, (not (value.stranded or value.spare), now))
        if own != first:
            words = f"a value of rank {_shown(own[1])} was evicted where one of {_shown(first[1])} could have gone"
            self._broken = words, words


def _changed(was: tuple[float, float], now: tuple[float, float] | None, rank: Rank) -> tuple[str, str]:
    """What is wrong with a rank that is not what it was when its value was last used, and the cause."""
    if now is None:
        return f"the rank {rank!r} is no number", "the policy fails"
    return f"the rank changed without a touch: was {_shown(was)}, is {_shown(now)}", "the rank changed without a touch"


def _pair(rank: Rank) -> tuple[float, float] | None:
    """A rank as the tree takes it; None for what is no number."""
    try:
        first, second = rank if isinstance(rank, tuple) else (rank, 0.0)
        pair = float(first), float(second)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if isnan(pair[0]) or isnan(pair[1]) else pair


def _shown(rank: tuple[float, float]) -> str:
    return f"{rank[0]:g}" if not rank[1] else f"({rank[0]:g}, {rank[1]:g})"


def values(tree: UnifiedTree, component: int, tier: Tier = Tier.DEVICE) -> Iterator[Value]:
    """All values of a component on a tier."""
    pending: list[Node] = list(tree.state.roots.values())
    while pending:
        node = pending.pop()
        pending.extend(node.children())
        value = node.values(tier)[component]
        if value is not None:
            yield value


def is_removable(tree: UnifiedTree, value: Value) -> bool:
    """Unlocked; of a path a leaf, and of a required one at a node where nothing is locked."""
    node, component = value.node, tree.components[value.component]
    if value.locks:
        return False
    if not isinstance(component.coverage, Path):
        return True
    if any(child.device[value.component] is not None for child in node.children()):
        return False
    return not (component.required and any(other is not None and other.locks for other in node.device))


def key(text: str, namespace: str = "", *, bigram: bool = False) -> Key:
    """A key with a token a letter."""
    return Key([ord(letter) for letter in text], namespace, bigram=bigram)


def lists(pages: dict[str, NDArray[np.int64]]) -> dict[str, list[int]]:
    """Page arrays as lists, to compare."""
    return {name: ids.tolist() for name, ids in pages.items()}


class LetterTree:
    """A tree of letters. Pages are two tokens unless said otherwise.

    >>> letters = LetterTree([Component(name="full", coverage=Path())], policy="fifo")
    >>> letters.put("abcd").canonical["full"].tolist(), letters.match("abzz").device.length
    ([100, 101], 2)
    >>> letters.evict(1)
    {'full': [100, 101]}
    """

    def __init__(self, components: Sequence[Component], page_size: int = 2, **options: Any) -> None:
        self.tree = UnifiedTree(components, page_size, **options)
        self._next = {component.name: 100 * (i + 1) for i, component in enumerate(components)}

    def fresh(self, component: str, count: int) -> NDArray[np.int64]:
        """New page ids: 100, 101, … for the first component, 200, … for the second."""
        first = self._next[component]
        self._next[component] += count
        return np.arange(first, first + count)

    def put(
        self,
        text: str,
        states: Iterable[int] = (),
        *,
        since: int | None = None,
        window: int | None = None,
        namespace: str = "",
        **options: Any,
    ) -> InsertResult:
        """Insert a text with fresh pages: the paths from token `since` (where the tree ends), the windows' last `window`
        pages (what they need), and states at the lengths given."""
        tree, size, whole = self.tree, self.tree.page_size, key(text, namespace)
        end = len(text) // size
        known = tree.match_prefix(whole, touch=False).path_length if since is None else since
        pages, given_states = {}, {}
        for component in tree.components:
            if component.shares is not None:
                continue
            match component.coverage:
                case Path():
                    pages[component.name] = self.fresh(component.name, end - known // size)
                case Trailing() | Chunked():
                    needed = component.coverage.pages_needed(end * size, size)
                    pages[component.name] = self.fresh(component.name, needed if window is None else window)
                case Point():
                    given_states[component.name] = {at: int(self.fresh(component.name, 1)[0]) for at in states}
        return tree.insert(whole, pages, given_states, **options)

    def match(self, text: str, namespace: str = "", **options: Any) -> Match:
        """Match a text."""
        return self.tree.match_prefix(key(text, namespace), **options)

    def evict(self, count: int, component: str = "full", tier: Tier = Tier.DEVICE) -> dict[str, list[int]]:
        """Evict, as lists."""
        return lists(self.tree.evict({component: count}, tier).freed)
