"""Why a key did not match further: which component on which tier lost how much, and the cause of each token's miss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from unified_tree.inputs.printable import printable
from unified_tree.lookup.matching import match, walk, window_gap
from unified_tree.misses.causes import LOAD_REFUSED, misses
from unified_tree.nodes.node import Node, Value
from unified_tree.nodes.order import KEPT, LEFT, SPARE, STRANDED
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from unified_tree.declare.keys import Key
    from unified_tree.misses.causes import InFlight, Miss
    from unified_tree.nodes.line import Eviction
    from unified_tree.state.tree_state import TreeState


REASONS: Final = (
    "no remembered prompt has these tokens here",
    "other tokens came behind this prefix",
    "evicted",
    "the path is known, but nothing that a request could resume from was saved here",
    "known in another namespace",
    "known before the weights changed",
    "the prompt's end fills no page",
    "behind the last length at which a state can be saved",
    "on host, and not loaded",
    "on host, but a load failed",
    "another request computes it now",
    "a store was about to bring it",
    "the last token is always computed",
    "evicted so long ago that only its beginning is remembered",
    "a store listed it and did not give it, or did not answer",
)
"""By the code of the cause."""
SPARE_SAID: Final = (
    "spare, since only a branch in the middle of a prompt would resume from it",
    "spare, since the state just before it serves almost as much",
)
"""Of a window, and of a state."""
LONGEST_REASON: Final = 400
"""Characters of what a policy says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Tokens [begin, end) of a key that cannot be resumed from because of one component.

    Attributes:
        component: its name, or `unknown` for tokens that no node holds.
        kept_on: the tier that still has it, HOST; None if no tier has.
    """

    component: str
    kept_on: Tier | None
    begin: int
    end: int

    @property
    def tokens(self) -> int:
        """How many tokens are lost."""
        return self.end - self.begin

    def __str__(self) -> str:
        span = f"[{self.begin}, {self.end}), {self.tokens} {'token' if self.tokens == 1 else 'tokens'}"
        if self.component == "unknown":
            return f"{span}: in no node of the tree"
        where = "on no tier" if self.kept_on is None else f"on {self.kept_on.name.lower()}, not on device"
        return f"{span}: {self.component} is {where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How far a key can be resumed, and what prevents a longer hit.

    Attributes:
        device_length, reachable_length, path_length, known_length: tokens resumable on device; resumable over device and host;
            covered by the paths; held by nodes at all.
        losses: one for each component, computed as if it were the only one missing; so they may overlap.
        misses: if a request had this prompt now, and loaded what is on host, why it would compute the other tokens; empty if
            the tree keeps no memory of evictions. `reasons` are the same as sentences.
        standings: where the hit ends, and where what is known of the key ends, why each value stands where it does among the
            victims, as sentences.
    """

    device_length: int
    reachable_length: int
    path_length: int
    known_length: int
    losses: tuple[Loss, ...]
    misses: tuple[Miss, ...] = ()
    reasons: tuple[str, ...] = ()
    standings: tuple[str, ...] = ()

    def __str__(self) -> str:
        loaded = f", {self.reachable_length} once loaded from host" if self.reachable_length > self.device_length else ""
        head = f"{self.device_length} tokens can be resumed on device{loaded}; the paths cover {self.path_length}"
        return "\n".join([head, *(f"  {line}" for line in (*self.losses, *self.reasons, *self.standings))])


def explain(state: TreeState, key: Key, in_flight: InFlight | None = None) -> Explanation:
    """See UnifiedTree.explain.

    Args:
        in_flight: the prompts under way; None for a tree alone, which knows none.
    """
    whole = key.length // state.page_size * state.page_size
    found = match(state, key, whole, touch=False)
    root = state.roots.get((key.namespace, key.bigram))
    node, known = walk(state, key, root, whole) if root is not None else (None, 0)
    losses: list[Loss] = []
    if node is not None:
        for i in range(len(state.components)):
            losses += losses_of(state, node, known, i)
    losses.sort(key=lambda loss: loss.kept_on is None)
    losses += unknown_tail(known, key.length)
    causes: list[Miss] = []
    if state.ghosts is not None and key.length:
        prompt = match(state, key, key.length - 1, touch=False)
        causes = misses(state, key, prompt, prompt.reachable.length, (LOAD_REFUSED, None), in_flight)
    ends = [state.nodes.get(found.device.node) if found.device.length else None, node]
    nodes = dict.fromkeys(end for end in ends if end is not None)
    kept = [value for end in nodes for value in (*end.device, *end.host) if value is not None]
    owned = [each for each in kept if each.tier is Tier.HOST or state.layout.owner_of[each.component] == each.component]
    return Explanation(
        standings=tuple(standing_of(state, value) for value in owned),
        misses=tuple(causes),
        reasons=tuple(reason(state, miss) for miss in causes),
        device_length=found.device.length,
        reachable_length=found.reachable.length,
        path_length=found.path_length,
        known_length=known,
        losses=tuple(losses),
    )


def losses_of(state: TreeState, node: Node, known: int, component: int) -> list[Loss]:
    """What a component, by index, has lost of a prefix that ends in a node: on device alone, and on both tiers. Cost: O(nodes
    passed and of the windows).
    """
    kind = state.components[component]
    if not kind.required:
        return []
    reach = _reach_alone(state, node, known, component, device_only=True)
    with_host = _reach_alone(state, node, known, component, device_only=False)
    ranges = ((Tier.HOST, reach, with_host), (None, with_host, known))
    return [Loss(component=kind.name, kept_on=tier, begin=begin, end=end) for tier, begin, end in ranges if begin < end]


def unknown_tail(known: int, length: int) -> list[Loss]:
    """What no node holds of a key."""
    return [Loss(component="unknown", kept_on=None, begin=known, end=length)] if known < length else []


def reason(state: TreeState, miss: Miss) -> str:
    """A miss as a sentence."""
    span, name = f"[{miss.begin}, {miss.end})", miss.cause.name
    text = REASONS[miss.code]
    eviction = miss.eviction
    if eviction is not None and state.ghosts is not None:
        pool = f"the {eviction.tier.name.lower()} pool of {state.components[eviction.component].name}"
        whose = f", to make room for namespace '{printable(eviction.beneficiary)}'" if eviction.beneficiary else ""
        text = f"evicted from {pool} {state.ghosts.time_s() - eviction.at_s:.1f} s ago{whose}: {why_evicted(state, eviction)}"
    detail = "" if miss.detail is None else f" ({printable(miss.detail)})"
    return f"{span} {name}: {text}{detail}"


def why_evicted(state: TreeState, eviction: Eviction) -> str:
    """Why the first victim of an eviction was chosen, in words."""
    return _why(state, eviction.component, eviction, eviction.clock)


def _why(state: TreeState, component: int, ranked: Eviction | Value, clock: int) -> str:
    """Why something stands where it does in its pool's order, or did at a victim's time, in words."""
    whose = _whose(state, component, ranked)
    if ranked.urgency == STRANDED:
        return f"{whose}stranded, since no request can resume from it"
    if ranked.urgency == SPARE:
        return whose + SPARE_SAID[component in state.layout.points]
    if ranked.urgency == LEFT:
        demoted, ended = "a later turn supersedes it, or a hint demoted it", "only an ended session could go on from it"
        if isinstance(ranked, Value):
            return whose + (demoted if ranked.demoted else ended)
        return f"{whose}{demoted}, or {ended}"
    if ranked.urgency == KEPT:
        return f"{whose}a hint keeps it, and nothing else was left to evict"
    reason = state.policy.reason(ranked) if isinstance(ranked, Value) else ranked.reason
    return whose + printable(state.policy.explain(reason, clock), LONGEST_REASON)


def _whose(state: TreeState, component: int, ranked: Eviction | Value) -> str:
    """With tenants, whose share something counts on, and how full that is or was; else nothing."""
    if isinstance(ranked, Value):
        shares = state.pools(ranked.tier)[component].shares
        share = None if shares is None else shares.of(ranked)
        held = None if share is None else (share.name, share.used, share.units)
    else:
        held = ranked.share
    if held is None:
        return ""
    name, used, units = held
    unit = "pages" if state.shared_pools[ranked.tier] is None else "blocks"
    if name:
        return f"group '{printable(name)}' holds {used} {unit}, its share is {units}; there: "
    return f"the namespaces without a group hold {used} {unit}, their share is {units}; there: "


def last_reason(state: TreeState, component: int, tier: Tier) -> str:
    """Why a pool's last victim went, in words; empty if nothing did, or nothing is remembered of it."""
    eviction = state.pools(tier)[component].last_eviction
    return "" if eviction is None else why_evicted(state, eviction)


def standing_of(state: TreeState, value: Value) -> str:
    """Where a value stands among the victims of its pool, and what goes next there, in words."""
    node, pool = value.node, state.pools(value.tier)[value.component]
    place = f"at {node.end}" if value.component in state.layout.points else f"[{node.start}, {node.end})"
    what = f"{pool.component.name} on {pool.tier.name.lower()} {place}"
    if value.locks:
        return f"{what}: in use, and locked"
    if not value.is_placed:
        return f"{what}: longer texts go on from it, and go before it"
    first = pool.likely_victim()
    next_victim = "its policy does not say which value goes next"
    if first is value:
        next_victim = "it is the next victim"
    elif first is not None and first.node.root is not None:
        root = first.node.root.name[0]
        of = f", of namespace '{printable(root)}'" if root else ""
        why = _why(state, first.component, first, state.clock)
        next_victim = f"the next victim is at node {first.node.id}{of}: {why}"
    return f"{what}: {_why(state, value.component, value, state.clock)}; {next_victim}"


def _reach_alone(state: TreeState, node: Node, length: int, component: int, *, device_only: bool) -> int:
    """The longest length at or above (node, length) that one component alone would allow."""
    if component in state.layout.points or state.layout.is_path[component]:
        while node.parent is not None:
            there = node.device[component] is not None or (not device_only and node.host[component] is not None)
            if there and (state.layout.is_path[component] or length == node.end):
                return length
            node = node.parent
            length = node.end
        return 0
    window = dict(state.layout.windows)[component]
    while node.parent is not None:
        gap = window_gap(state, node, length, component, window, device_only=device_only)
        if gap is None:
            return length
        node, length = gap
    return 0
