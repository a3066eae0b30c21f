"""Putting pages and states into the tree.

`insert_plan` has checked everything, so nothing here can fail. Nodes are split where a state, a window or a branch begins.
Pages that the tree lacks are placed; the rest are collected as duplicates. Then the boundaries around them are updated.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.inserts.insert_plan import Plan, known_pages, plan_insert
from unified_tree.nodes.children import attach
from unified_tree.nodes.claim import Claim
from unified_tree.nodes.node import Node, Value, window_values
from unified_tree.state.claims import pass_by
from unified_tree.state.splitting import keep_window, split, split_at
from unified_tree.terms.results import NOWHERE, Boundary, InsertResult, record
from unified_tree.terms.tier import PAGE_ID_BYTES, Tier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.declare.keys import Key
    from unified_tree.inserts.insert_plan import Pages, States
    from unified_tree.state.tree_state import TreeState


def insert(
    state: TreeState,
    key: Key,
    pages: Pages,
    states: States,
    after: Boundary | None,
    without: Collection[str],
    priority: int,
    *,
    repeatable: bool = False,
    keeps_spare: bool = False,
    ends_spare: bool = False,
) -> InsertResult:
    """See UnifiedTree.insert; the key, the boundary and the priority were checked."""
    plan = plan_insert(
        state,
        key,
        pages,
        states,
        after,
        without,
        priority,
        repeatable=repeatable,
        keeps_spare=keeps_spare,
        ends_spare=ends_spare,
    )
    if plan is None:
        return InsertResult(NOWHERE, 0, {}, {}, {})
    try:
        state.tick()
    except BaseException:  # of the clock, which is not ours
        for i in plan.taken:
            state.device_pools[i].ledger.release(plan.given[i])
        raise
    return Insertion(state, plan).run()


class Insertion:
    """One insert. `run` does it and returns the result."""

    __slots__ = ("_changed", "_duplicates", "_has_new_window", "_plan", "_replaced", "_state")

    def __init__(self, state: TreeState, plan: Plan) -> None:
        self._state = state
        self._plan = plan
        self._duplicates: dict[int, list[bytes]] = {}
        self._replaced: dict[int, list[bytes]] = {}
        self._changed: dict[Node, None] = {}  # nodes with new values
        self._has_new_window = False

    def run(self) -> InsertResult:
        """See UnifiedTree.insert."""
        state, plan = self._state, self._plan
        deepest = self._grow()
        canonical = self._offer_paths(deepest)
        if self._admits_windows(deepest):
            for i, _ in state.layout.on_device.windows:
                if i in plan.given:
                    canonical[i] = self._offer_window(i, deepest)
                    if not plan.ends_spare:
                        keep_window(state, deepest, i, plan.kept_from[i])
            if self._has_new_window and not plan.ends_spare:
                self._use_windows(deepest)
                self._saved(deepest, plan.resumed)
        else:
            for i, _ in state.layout.on_device.windows:
                if i in plan.taken:
                    state.device_pools[i].ledger.release(plan.given[i])
        for i, by_length in plan.states.items():
            self._offer_states(i, by_length, deepest)
        if state.layout.is_gated:
            for node in sorted(self._changed, key=_end) if len(self._changed) > 1 else self._changed:
                state.resumability.update(node)
            if plan.kept_from and not plan.ends_spare and self._strands_a_repeat(deepest):
                split(state, deepest, plan.resumed)
            state.resumability.settle_share()
        for i, parts in self._duplicates.items():
            if i in plan.taken:
                for pages in parts:
                    state.device_pools[i].ledger.release(pages)
        names = state.components
        return record(
            InsertResult,
            (
                record(Boundary, (deepest.id, plan.end)),
                plan.matched,
                self._by_name(self._duplicates),
                self._by_name(self._replaced),
                {names[i].name: ids for i, ids in canonical.items()},
            ),
        )

    def _strands_a_repeat(self, deepest: Node) -> bool:
        """Whether a window page that a repeat needs ends a node above from which no boundary at a node's end needs any page.

        That is the first of the pages kept, which the key's end itself does without. It goes first unless a node ends where the
        repeat resumes. Cost: O(nodes of the windows).
        """
        plan = self._plan
        if plan.resumed in (plan.end, deepest.start):
            return False
        first_ends = [first + self._state.page_size for first in plan.kept_from.values()]
        at, first_end = deepest, min(first_ends)
        while at.start >= first_end:
            assert at.parent is not None
            at = at.parent
            if at.end in first_ends:
                return True
        return False

    def _by_name(self, parts: dict[int, list[bytes]]) -> dict[str, NDArray[np.int64]]:
        if not parts:
            return {}
        return {name: ids for name, ids in self._state.by_name(parts).items() if ids.size}

    def _compare(self, component: int, given: bytes, kept: bytes) -> None:
        """Collect the `given` pages that differ from the `kept` ones as duplicates."""
        if component not in self._plan.known:
            self._duplicates.setdefault(component, []).append(given)
        elif given != kept:
            given_ids, kept_ids = np.frombuffer(given, np.int64), np.frombuffer(kept, np.int64)
            self._duplicates.setdefault(component, []).append(given_ids[given_ids != kept_ids].tobytes())

    def _grow(self) -> Node:
        """Split and add nodes so that one ends at every state, and at the key's end if a value must end there.

        Returns the node in which the key's end lies.
        """
        state, plan = self._state, self._plan
        node, matched, end = plan.node, plan.matched, plan.end
        if matched < node.end and (end > matched or self._ends_here(node)):
            node = split(state, node, matched)
        lengths = [end]
        if plan.states:
            lengths = sorted({length for by_length in plan.states.values() for length in by_length})
            if lengths and lengths[0] <= matched:
                node = self._cut_path(node, [length for length in lengths if length <= matched])
            lengths = [length for length in lengths if matched < length < end]
            lengths.append(end)
        if plan.keeps_spare:
            lengths = self._with_spare_end(lengths)
        mark = plan.key.mark
        if mark is not None and matched < mark.fork < end:  # a node has one owner
            lengths = sorted({*lengths, mark.fork})
        if end == matched:
            if state.listener is not None:
                state.listener.published(node, end)
            return node
        width: int = plan.key.width_bytes
        data: bytes | memoryview = plan.key.data
        base: int = plan.key.begin * width
        for length in lengths:
            node = grow(state, node, bytes(data[node.end * width - base : length * width - base]), length, end)
            if state.layout.is_gated:
                self._changed[node] = None
        return node

    def _with_spare_end(self, lengths: list[int]) -> list[int]:
        """The lengths at which new nodes end, with the one where spare windows end, if there are any in new nodes."""
        plan, size = self._plan, self._state.page_size
        ends = [
            first
            for i, first in plan.kept_from.items()
            if plan.matched < first and plan.end - len(plan.given[i]) * size < first
        ]
        return sorted({*lengths, *ends}) if ends else lengths

    def _cut_path(self, node: Node, lengths: list[int]) -> Node:
        """Cut the path to `node` at these ascending lengths; returns the node in which the key's end lies then.

        Cost: O(nodes up to the first length), and one copy of what is cut.
        """
        last = len(lengths)
        at: Node = node
        while last:
            while at.start >= lengths[last - 1]:
                assert at.parent is not None
                at = at.parent
            first = last
            while first and lengths[first - 1] > at.start:
                first -= 1
            inside = [length for length in lengths[first:last] if length < at.end]
            last = first
            if inside:
                pieces = split_at(self._state, at, inside)
                if at is node and inside[-1] == self._plan.end:
                    node = pieces[-1]
        return node

    def _ends_here(self, node: Node) -> bool:
        """Whether a key that ends inside `node` brings what must sit at a node's end: a window, or a path it lacks."""
        plan, state = self._plan, self._state
        return any(not state.layout.is_path[i] or (len(ids) and node.device[i] is None) for i, ids in plan.given.items())

    def _offer_paths(self, deepest: Node) -> dict[int, NDArray[np.int64]]:
        """Fill path values from the top down, where the one above is there; returns the canonical pages by component."""
        state, plan, above = self._state, self._plan, deepest.parent
        canonical = {}
        for i in state.layout.on_device.paths:
            ids = plan.given.get(i)
            if ids is None or len(ids) == 0:
                continue
            begin = plan.end - len(ids) * state.page_size
            raw: bytes = ids.tobytes()
            if begin >= plan.matched and above is not None and above.end == begin and continues(deepest, i):
                self._place(deepest, i, raw)  # the common case: one new leaf takes all
                canonical[i] = np.frombuffer(raw, np.int64)
                continue
            crossed = []
            at: Node | None = deepest
            while at is not None and at.parent is not None and at.end > begin:
                crossed.append(at)
                at = at.parent
            kept = [self._offer_path(node, i, raw, begin) for node in reversed(crossed)]
            canonical[i] = np.frombuffer(b"".join(kept), np.int64)
        return canonical

    def _offer_path(self, node: Node, i: int, raw: bytes, begin: int) -> bytes:
        """Offer one node its share of the given pages, which begin at token `begin`; returns what is kept there."""
        size, end = self._state.page_size, self._plan.end
        first, last = max(node.start, begin), min(node.end, end)
        given = raw[(first - begin) // size * PAGE_ID_BYTES : (last - begin) // size * PAGE_ID_BYTES]
        whole = first == node.start and last == node.end
        value = node.device[i]
        if value is None:
            if whole and continues(node, i):
                self._place(node, i, given)
                return given
            self._duplicates.setdefault(i, []).append(given)
            return b"\xff" * len(given)  # -1: the tree has none here
        offset = (first - node.start) // size * PAGE_ID_BYTES
        kept = value.pages[offset : offset + len(given)]
        if whole and not value.locks and self._carries_more(node, i):
            if given != kept:
                self._replace_pages(value, given)
            self._place_sharers(node, i)
            return given
        self._compare(i, given, kept)
        return kept

    def _place(self, node: Node, i: int, pages: bytes, *, is_spare: bool = False) -> None:
        plan = self._plan
        self._state.place(node, i, Tier.DEVICE, pages, plan.priority, are_taken=i in plan.taken, is_spare=is_spare)
        self._place_sharers(node, i)

    def _place_sharers(self, node: Node, i: int) -> None:
        """Mark valid what the given pages carry besides their owner; a path sharer only where it continues."""
        state, plan = self._state, self._plan
        if state.layout.is_gated:
            self._changed[node] = None
        sharers = state.layout.sharers_of[i]
        if not sharers:
            return
        owner = node.device[i]
        assert owner is not None
        for sharer in sharers:
            if sharer in plan.absent or node.device[sharer] is not None:
                continue
            if not state.layout.is_path[sharer] or continues(node, sharer):
                state.place(node, sharer, Tier.DEVICE, owner.pages, plan.priority)

    def _carries_more(self, node: Node, i: int) -> bool:
        """Whether the given pages hold the state of a sharer that the node lacks, and of all that it has."""
        state, absent = self._state, self._plan.absent
        gained = False
        for sharer in state.layout.sharers_of[i]:
            if node.device[sharer] is not None:
                if sharer in absent:
                    return False
            elif sharer not in absent and (not state.layout.is_path[sharer] or continues(node, sharer)):
                gained = True
        return gained

    def _replace_pages(self, value: Value, given: bytes) -> None:
        """Swap an unlocked path value's pages for as many given ones, which carry all its sharers."""
        state = self._state
        ledger = state.device_pools[value.component].ledger
        replaced = _without(value.pages, given)
        ledger.release(value.pages)
        ledger.acquire(given)
        self._replaced.setdefault(value.component, []).append(replaced)
        value.pages = given
        for sharer in state.layout.sharers_of[value.component]:
            shared = value.node.device[sharer]
            if shared is not None:
                shared.pages = given

    def _admits_windows(self, deepest: Node) -> bool:
        """Whether all policies admit the given windows that `deepest` lacks."""
        for i, _ in self._state.layout.on_device.windows:
            if i in self._plan.given and self._state.device_pools[i].is_selective and deepest.device[i] is None:
                raw = self._plan.given[i].tobytes()
                size = min(len(raw), (deepest.end - deepest.start) // self._state.page_size * PAGE_ID_BYTES)
                if size and not self._admits(deepest, i, raw[-size:]):
                    return False
        return True

    def _admits(self, node: Node, i: int, pages: bytes) -> bool:
        """Whether a selective policy lets a window or state be kept at a node that has none."""
        state = self._state
        return state.device_pools[i].admits(Value(node, i, Tier.DEVICE, pages, state.clock, self._plan.priority))

    def _offer_window(self, i: int, deepest: Node) -> NDArray[np.int64]:
        """Keep of the given tail the pages that a boundary at its end needs, as suffixes of the nodes they cross, and those
        before as spare ones if that was asked for; returns the canonical pages.
        """
        state, plan = self._state, self._plan
        raw = plan.given[i].tobytes()
        older_size = max(0, len(raw) - (plan.end - plan.kept_from[i]) // state.page_size * PAGE_ID_BYTES)
        older = raw[:older_size]
        raw = raw[older_size:]
        kept: list[bytes] = []
        node = deepest
        while raw and node.parent is not None:
            size = min(len(raw), (node.end - node.parent.end) // state.page_size * PAGE_ID_BYTES)
            kept.append(self._offer_suffix(node, i, raw[-size:]))
            raw = raw[:-size]
            if raw or node.start == plan.kept_from[i]:
                node = node.parent
        if older and plan.keeps_spare:
            self._offer_spare(i, node, older, kept)
        elif older:
            kept_before = self._kept_before(i, len(older) // PAGE_ID_BYTES) if i in plan.known else b""
            self._compare(i, older, kept_before)
        return np.frombuffer(b"".join(reversed(kept)), np.int64)

    def _offer_spare(self, i: int, node: Node, older: bytes, kept: list[bytes]) -> None:
        """Fill nodes that lack a window, from `node` upwards, with older pages than a boundary at the end needs."""
        state, plan = self._state, self._plan
        at = plan.kept_from[i]
        while older and node.parent is not None:
            size = min(len(older), (at - node.parent.end) // state.page_size * PAGE_ID_BYTES)
            given = older[-size:]
            older = older[:-size]
            value = node.device[i]
            if value is None and at == node.end:
                self._place(node, i, given, is_spare=True)
                kept.append(given)
            else:
                behind = (node.end - at) // state.page_size * PAGE_ID_BYTES
                there = b"" if value is None else value.pages[: max(0, len(value.pages) - behind)][-size:]
                there = b"\xff" * (size - len(there)) + there  # -1: the tree has none here
                self._compare(i, given, there)
                kept.append(there)
            at = node.parent.end
            node = node.parent

    def _kept_before(self, i: int, page_count: int) -> bytes:
        """What the tree keeps at the place of the first `page_count` given pages, -1 where it has nothing."""
        plan, size = self._plan, self._state.page_size
        begin = plan.end - plan.given[i].size * size
        kept = np.empty(page_count, np.int64)
        kept.fill(-1)
        if begin < plan.matched:
            have = known_pages(plan.node, plan.matched, i, begin, size)[:page_count]
            kept[: have.size] = have
        return kept.tobytes()

    def _offer_suffix(self, node: Node, i: int, given: bytes) -> bytes:
        """Offer one node the last pages of a window; returns what is kept at their place."""
        value = node.device[i]
        self._has_new_window |= value is None or len(given) > len(value.pages)
        if value is None:
            self._place(node, i, given, is_spare=self._plan.ends_spare)
            return given
        if not value.locks and len(given) >= len(value.pages) and self._carries_more(node, i):
            replaced = _without(value.pages, given)
            self._state.remove(value)
            self._replaced.setdefault(i, []).append(replaced)
            self._place(node, i, given)
            return given
        overlap = min(len(given), len(value.pages))
        self._compare(i, given[len(given) - overlap :], value.pages[len(value.pages) - overlap :])
        if len(given) > len(value.pages):
            self._extend_suffix(value, given[: len(given) - overlap])
        return value.pages[len(value.pages) - len(given) :]

    def _extend_suffix(self, value: Value, front: bytes) -> None:
        """Put older pages before a suffix the tree has, with the sharers that have all of it and continue."""
        state = self._state
        complete = [
            shared
            for sharer in state.layout.sharers_of[value.component]
            if (shared := value.node.device[sharer]) is not None
            and shared.pages == value.pages
            and sharer not in self._plan.absent
        ]
        state.extend(value, front)
        for shared in complete:
            shared.pages = value.pages
            state.note_copies(value.node, shared.component)
        self._changed[value.node] = None

    def _offer_states(self, i: int, by_length: dict[int, int], deepest: Node) -> None:
        at, is_selective = deepest, self._state.device_pools[i].is_selective
        for length, page in reversed(by_length.items()):
            while at.end > length:
                assert at.parent is not None
                at = at.parent
            assert at.end == length
            given = page.to_bytes(PAGE_ID_BYTES, "little", signed=True)
            value = at.device[i]
            if value is not None:
                self._compare(i, given, value.pages)
            elif is_selective and not self._admits(at, i, given):
                self._duplicates.setdefault(i, []).append(given)
            else:
                self._place(at, i, given)
                if at is not deepest or not self._has_new_window:  # else it was told
                    self._saved(at, at.end)

    def _use_windows(self, deepest: Node) -> None:
        """Older pages in the windows of a new boundary are used with it. Cost: O(nodes of the windows)."""
        state = self._state
        for i, _ in state.layout.on_device.windows:
            if i in self._plan.given:
                for value in window_values(deepest, self._plan.kept_from[i], i, Tier.DEVICE):
                    if value.touched < state.clock:
                        state.device_pools[i].used(value, value.node.end, state.clock, hits=0)

    def _saved(self, node: Node, resumed: int) -> None:
        """Tell the policy of a boundary's new windows or states."""
        if self._state.listener is not None:
            self._state.listener.saved(node, resumed, self._state.arrival)


def _end(node: Node) -> int:
    return node.end


def continues(node: Node, component: int) -> bool:
    """Whether the parent of `node` has this path on device."""
    parent = node.parent
    return parent is not None and (parent.parent is None or parent.device[component] is not None)


def grow(state: TreeState, parent: Node, edge: bytes, end: int, last: int) -> Node:
    """A new leaf under a node that has no child that begins with the same page, of a text up to `last`. Cost: O(1)."""
    node = state.new_node(parent, edge, end)
    claimant, above = state.claimant, parent.claim
    if claimant is not None:
        pass_by(state, parent, claimant)
        node.claim = Claim(claimant, node)
        state.has_claims = True
    elif above is not None:  # whoever brings it has passed there, or will say so
        node.claim = Claim(above.owner, node)
    attach(parent, node, state.page_size, state.settings.max_listed_children)
    if state.texts is not None:
        node.line = state.texts.line_of_leaf(parent, edge, end)
    if state.listener is not None:
        state.listener.grew(node, last, state.arrival)
    return node


def _without(pages: bytes, others: bytes) -> bytes:
    """The pages that are not among others, both as int64; by a set, since numpy would run Python, where a signal is handled."""
    kept = set(np.frombuffer(others, np.int64).tolist())
    page_ids = np.frombuffer(pages, np.int64)
    return page_ids[np.array([page not in kept for page in page_ids.tolist()], np.bool_)].tobytes()
