"""The default policy, `density`: the value that promises the fewest hits for its room and time goes first.

A value promises its `Worth`. The victim is the least of the `Candidates`. A value that only a branch would resume from goes
before, as under `cost`.

Until something is learned, values go by recency. `RecencyShadow` simulates recency beside: while that would hit more, values
go by recency again.

The tree's order is that of last uses, as under `lru`. Time is counted in ticks of the tree's clock, so every rank of a
deployment decides alike.
"""

from __future__ import annotations

from _thread import interrupt_main
from typing import TYPE_CHECKING, Final

from unified_tree.nodes.node import Value, group_of
from unified_tree.nodes.order import SPARE, URGENCIES
from unified_tree.policies.density.candidates import Candidates
from unified_tree.policies.density.recency_shadow import RecencyShadow, Request, Ring
from unified_tree.policies.density.turns import Place, Session, Turn, latest, session_of
from unified_tree.policies.density.worth import Reason, Worth
from unified_tree.policies.standard_policy import Standard, last_used
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unified_tree.nodes.line import Line
    from unified_tree.nodes.node import Node
    from unified_tree.nodes.order import Order
    from unified_tree.policies.tree_view import TreeView

FIRST_LEARNED: Final = 64
"""After so many turns something is learned, and after as many again, up to `revise_every`."""
EARLY_SLICES: Final = 4
"""A turn takes so many slices of learning, each of them short, while there are `revise_every`; more while there are fewer."""
LEARNED: Final = object()
STEPS_UP: Final = 16
"""So many nodes above a new boundary the one before it is looked for."""


class HitDensity(Standard):
    """See the module's text."""

    chooses = True
    follows_texts = True
    hears_uses = True
    hears_texts = True
    weighs_copies = True

    def __init__(self, view: TreeView) -> None:
        super().__init__(view)
        settings, components = view.settings, view.components
        self._is_path = [each.coverage.is_path for each in components]
        self._gates = [i for i, each in enumerate(components) if not each.coverage.is_path and each.required]
        self._is_state = [not each.coverage.is_path and each.coverage.window_tokens is None for each in components]
        size = view.page_size
        windows = [1 if self._is_state[i] else components[i].coverage.boundary_pages(size) * size for i in self._gates]
        self._shadow = RecencyShadow(settings, windows)
        self._learning: Iterator[None] | None = None
        self._worth = Worth(view, self._is_path, [each.coverage.window_tokens or 1 for each in components])
        self._by_recency = True
        self._switch_count = 0
        self._inflation = [0.0] * (2 * len(components))  # the score of the last spare victim, at most
        self._candidates: dict[int, Candidates] = {}  # by group of namespaces, pool and urgency
        self._has_budget = False  # that all pools share
        self._host_room = [0] * len(components)  # of a kind, once it was full; of a budget, at 0
        self._rings: list[Ring | None] = [None] * len(components)  # of what a boundary needs, in the shadow

    # -- ranking

    def rank(self, value: Value) -> tuple[float, float]:
        """By its last use; where only a branch would need it, as `cost` does."""
        if value.spare and not value.stranded:
            return (value.score, float(value.touched))
        return (float(value.touched), 0.0)

    def standing(self, value: Value) -> tuple[float, float]:
        """By what a block promises; as in its pool where recency decides, and for what no boundary needs."""
        if self._by_recency or value.urgency <= SPARE:
            return (value.rank, value.second_rank)
        room = max(1, self._view.page_blocks(value.component, value.tier))
        if self._is_state[value.component]:
            room *= self._view.page_size
        return (self._worth.of(value) / room, value.rank)

    def touched(self, value: Value) -> None:
        if value.spare and value.touched == value.created:  # GreedyDual-Size; one that is resumed from is spare no longer
            value.score = self._inflation[self._spare_pool(value)] + self._view.restore_cost(value)

    def placed(self, value: Value) -> None:
        if value.tier is Tier.DEVICE and not self._is_path[value.component]:
            line = value.node.line
            if line is not None and (not value.touched or (value.spare and self._is_state[value.component])):
                self._shadow.unsaved(line, value.node.end)
        if value.tier is Tier.HOST and value.created == self._view.now:  # a copy has come, for which others went
            self._cut_shadow(value, goes=False)
        if value.urgency > SPARE and not self._by_recency:
            self._candidates_of(value).look_at(value)

    def next_victim(self, order: Order, first: Value) -> Value:
        return first if self._by_recency else self._candidates_of(first).least(order, first)

    def likely_victim(self, order: Order, first: Value) -> Value | None:
        return first if self._by_recency else self._candidates_of(first).copy().least(order, first)

    def reason(self, value: Value) -> object:
        reason = self._worth.reason(value)
        reason.by_recency, reason.is_learned = self._by_recency, self._worth.turns.is_ready
        return reason

    def explain(self, reason: object, now: int) -> str:
        assert isinstance(reason, Reason)
        said, lost = reason.words()
        used = last_used(reason.used, now)
        if not reason.by_recency or not reason.used:
            return f"{said}, {used}{lost}"
        if not reason.is_learned:
            return f"{used}, ranked as by lru until {FIRST_LEARNED} turns are known; the least recently used goes first"
        return f"{used}, ranked as by lru, which would have hit more lately; the learned order says: {said}{lost}"

    def figures(self) -> dict[str, float]:
        """Whether it evicts as `lru` now, and how often that changed; the turns it knows; of the tokens that came lately, how
        many more than with `lru` were hit, and how many there were.
        """
        return {
            "evicts_as_lru": float(self._by_recency),
            "order_changes": float(self._switch_count),
            "turns": float(self._worth.turns.count),
            "lead_tokens": self._shadow.lead,
            "recent_tokens": self._shadow.came,
        }

    def _spare_pool(self, value: Value) -> int:
        """Where the inflation of its spare values is kept; pools that share a budget have that of the first."""
        return self._worth.pool_of(value) - (value.component if self._has_budget else 0)

    def _candidates_of(self, value: Value) -> Candidates:
        root = value.node.root
        group = 0 if root is None else root.group if root.owner_groups is None else group_of(value.node)
        place = (group * len(self._inflation) + self._worth.pool_of(value)) * URGENCIES + value.urgency
        candidates = self._candidates.get(place)
        if candidates is None:
            candidates = self._candidates[place] = Candidates(self._worth, value.urgency)
        return candidates

    # -- what happens

    def went(self, value: Value, is_whole: bool) -> None:
        if value.urgency == SPARE:
            spare_pool = self._spare_pool(value)
            self._inflation[spare_pool] = max(self._inflation[spare_pool], value.score)
        if value.urgency > SPARE and value.touched:
            self._worth.note_age(value)
        if value.tier is Tier.HOST:
            at = 0 if self._has_budget else value.component
            self._host_room[at] = max(self._host_room[at], self._held(value.component)[1])
        if value.copied:
            return
        if value.urgency > SPARE:
            if value.tier is Tier.DEVICE:
                self._cut_shadow(value, goes=is_whole)
        elif value.stranded and self._is_path[value.component] and self._rings[value.component] is not None:
            line, parent = value.node.line, value.node.parent
            if line is not None and parent is not None:
                self._shadow.stranded(line, parent.end, value.node.end)

    def _cut_shadow(self, value: Value, *, goes: bool) -> None:
        """Cut the shadow to what the device holds of a kind, without a value that is about to go, or to the host's room if that
        is more; a budget has blocks of all kinds. Nothing is cut while the host was never full. Cost: O(components).
        """
        i, has_budget = value.component, self._has_budget
        ring, host_room = self._rings[i], self._host_room[0 if has_budget else i]
        if ring is None:
            return
        on_device, on_host = self._held(i)
        if goes:
            on_device -= value.page_count * (self._view.page_blocks(i, Tier.DEVICE) if has_budget else 1)
        if host_room or not on_host:
            held = max(host_room, on_device)
            ring.cut(held if self._is_state[i] and not has_budget else held * self._view.page_size)

    def _held(self, component: int) -> tuple[int, int]:
        """Pages of a kind on device and on host; of budgets blocks of all kinds, on host as on device. Cost: O(components)."""
        on_device = on_host = 0
        for i in range(len(self._rings)) if self._has_budget else range(component, component + 1):
            blocks = self._view.page_blocks(i, Tier.DEVICE) if self._has_budget else 1
            on_device += self._view.held_pages(i, Tier.DEVICE) * blocks
            on_host += self._view.held_pages(i, Tier.HOST) * blocks
        return on_device, on_host

    def arrived(self, node: Node | None, length: int, hit: int) -> object:
        line = None if node is None else node.line
        turn = None if line is None else latest(line)
        request = self._shadow.arrived(None if turn is None else line, length, hit)
        if line is None or turn is None:
            return request
        self._note_mode()
        if not turn.is_gone_on_from(length):
            request.place = self._fork(line, length)
        elif not turn.is_open:  # else it tries again
            self._go_on(turn, length)
        return request

    def _note_mode(self) -> None:
        by_recency = self._shadow.is_ahead or not self._worth.turns.is_ready
        if self._by_recency != by_recency:
            self._by_recency = by_recency
            self._worth.revision += 1
            self._switch_count += 1
            try:
                import logging  # takes longer to import than this package

                order = "lru" if by_recency else "the learned order"
                logging.getLogger("unified_tree.policy").info("density evicts by %s from tick %d on", order, self._view.now)
            except KeyboardInterrupt:  # as while it learns
                interrupt_main()

    def withdrew(self, arrival: object) -> None:
        if isinstance(arrival, Request) and arrival.place is not None:
            arrival.place.is_open = True

    def grew(self, node: Node, last: int, arrival: object) -> None:  # noqa: ARG002
        line, parent = node.line, node.parent
        if line is None or parent is None:
            return
        start, turn = parent.end, latest(line)
        if turn is None:
            fork, above = max(0, line.fork), line.parent
            before = None if above is None else latest(above)
            if before is not None and before.is_gone_on_from(fork):
                # Where evicted text comes back, the fork lies beyond what was matched, maybe in a later chunk of the prompt.
                turn = before if before.is_open or before.end == start else self._go_on(before, fork)
                turn.shares(fork)
            else:
                if above is not None and before is not None and fork > start:
                    self._fork(above, fork)
                turn = self._begin(Turn(self._view.now, fork, fork, None))
            session_of(line).turn = turn
        else:
            if not turn.is_open and start < turn.end:  # evicted text comes back
                turn = self._go_on(turn, start)
            if start == turn.begin:
                turn.shares(min(node.end, turn.end_before))
        self._shadow.grew(arrival if isinstance(arrival, Request) else None, line, start, node.end)
        self._note_mode()
        turn.went_on(node.end, self._view.now)

    def published(self, node: Node, length: int) -> None:
        turn = None if node.line is None else latest(node.line)
        if turn is not None and turn.is_open:
            turn.went_on(max(length, turn.end), self._view.now)

    def saved(self, node: Node, resumed: int, arrival: object) -> None:
        line = node.line
        if line is None:
            return
        self._shadow.saved(arrival if isinstance(arrival, Request) else None, line, node.end, resumed)
        turn = latest(line)
        if turn is not None and turn.saved_to < resumed:
            before, turn.saved_to = turn.saved_to, resumed
            self._look_at_earlier(node, before)

    def _look_at_earlier(self, node: Node, length: int) -> None:
        """The windows and states at a length above a node are not their session's last ones any more.

        Cost: O(STEPS_UP), and that of their worth.
        """
        above = node.parent
        for _ in range(STEPS_UP):
            if above is None or above.end <= length:
                break
            above = above.parent
        if above is None or above.end != length or self._by_recency:
            return
        for value in above.device:
            if value is not None and value.is_placed and value.urgency > SPARE and not self._is_path[value.component]:
                self._candidates_of(value).look_at(value)

    def _go_on(self, before: Turn, length: int) -> Turn:
        """A request goes on from a session's last turn, at some length."""
        self._worth.reach.note(before)
        turn = before.by = Turn(self._view.now, before.start, length, before)
        if before.saved_to:
            self._worth.note_resumed(is_last=length >= before.saved_to)
            if length >= before.saved_to:
                turn.saved_to = before.saved_to
        return self._begin(turn)

    def _fork(self, line: Line, length: int) -> Place | None:
        """A request shares only the beginning of a session's text. The place where it forks off; None if nothing can be saved
        there.
        """
        length -= length % self._view.save_grid_tokens
        if length <= 0:
            return None
        session: Session = session_of(line)
        if session.places is None:
            session.places = {}
        places = session.places
        place = places.pop(length, None)
        if place is None:
            if len(places) >= self._view.settings.listed_places:
                del places[next(iter(places))]
            place = Place(self._view.now)
        places[length] = place
        if place.used(self._view.now):
            self._worth.places.note(place.uses)
        return place

    def _begin(self, turn: Turn) -> Turn:
        """A session has a new turn. Cost: O(1), and with some turns slices of learning."""
        turns = self._worth.turns
        turns.enter(turn)
        if turns.count == 1:
            self._meet_pools()
        count, every = turns.count, self._view.settings.revise_every
        if self._learning is None and (count % every == 0 or (count < every and count % FIRST_LEARNED == 0)):
            self._learning = self._learn()
        try:
            for _ in range(max(1, EARLY_SLICES * every // count)):
                if self._learning is not None and next(self._learning, LEARNED) is LEARNED:
                    self._learning = None
        except KeyboardInterrupt:  # numpy runs Python, where signals are handled, in the middle of a change of the tree
            self._learning = None
            interrupt_main()
        return turn

    def _meet_pools(self) -> None:
        """The tree is complete: its pools share a budget, or have rings of their own in the shadow. Cost: O(components)."""
        view = self._view
        self._shadow.save_grid_tokens = view.save_grid_tokens
        of_page = [view.page_blocks(i, Tier.DEVICE) for i in range(len(self._is_path))]
        of_token = sum([blocks for blocks, is_path in zip(of_page, self._is_path, strict=True) if is_path])
        self._has_budget = of_token > 0
        if self._has_budget:
            self._shadow.share(of_token, [of_page[i] * (view.page_size if self._is_state[i] else 1) for i in self._gates])
        for i, is_path in enumerate(self._is_path):
            if is_path and view.components[i].required:
                self._rings[i] = self._shadow.texts
        for i, gate in zip(self._gates, self._shadow.gates, strict=True):
            self._rings[i] = gate.ring

    def _learn(self) -> Iterator[None]:
        """In slices; see `_begin`."""
        yield from self._worth.turns.learn(self._view.now)
        self._note_mode()
        self._worth.revision += 1
