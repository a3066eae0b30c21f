"""Effects: copies between device and host that the tree asks for, acknowledged or aborted exactly once.

While an effect is open, its sources are locked and marked as being copied, so that no other effect copies them again. Its
targets belong to it, not to any node. It stores what it copies as spans of tokens above a locked node. Nodes may be split
meanwhile: at the acknowledgement the pages are published to the nodes that the span crosses then. If a value has gained older
pages since, another effect copies only those.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from unified_tree.inputs.arguments import INT64
from unified_tree.inputs.printable import repr_of
from unified_tree.inserts.grafting import crossed, land
from unified_tree.inserts.insert_plan import page_ids
from unified_tree.nodes.effect import Copy, Effect, EffectKind, Span
from unified_tree.nodes.node import Node, Value, window_values
from unified_tree.state.page_set import PageSource
from unified_tree.state.splitting import split
from unified_tree.terms.errors import EffectError
from unified_tree.terms.results import record
from unified_tree.terms.tier import DEVICE, HOST, PAGE_ID_BYTES, Tier, opposite

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.locks.locks import Locks
    from unified_tree.state.tree_state import TreeState
    from unified_tree.terms.results import Boundary

BACKUP: Final = EffectKind.BACKUP
LOAD: Final = EffectKind.LOAD
"""Members of an Enum are looked up by a Python function, so they are looked up once."""
FROM_BUFFER: Final[Any] = np.frombuffer
"""Looked up once, too."""
Given = Mapping[str, "NDArray[np.int64]"] | Callable[[dict[str, int]], Mapping[str, "NDArray[np.int64]"]]
"""Target pages by component, or what makes them: it is given how many are needed, when all sources are locked."""
Supply = PageSource | Given


class OpenEffects:
    """The open effects of one tree."""

    def __init__(self, state: TreeState, locks: Locks) -> None:
        self._state = state
        self._locks = locks
        self.open: dict[Effect, None] = {}

    def needs(self, kind: EffectKind, boundary: Boundary, components: Collection[str] | None) -> dict[str, int]:
        """Target pages by component; see Transfers.backup_needs and load_needs."""
        node, length = self._locks.find(boundary)
        return self._count(self._missing(kind, node, length, self._locks.indices(components, HOST))[0], target_of(kind))

    def begin(self, kind: EffectKind, boundary: Boundary, supply: Supply, components: Collection[str] | None) -> Effect:
        """See Transfers.backup and load."""
        effect = self.begin_unless_empty(kind, boundary, supply, components, may_be_empty=True)
        assert effect is not None
        return effect

    def begin_unless_empty(
        self,
        kind: EffectKind,
        boundary: Boundary,
        supply: Supply,
        components: Collection[str] | None,
        *,
        may_be_empty: bool = False,
    ) -> Effect | None:
        """As `begin`; None, with nothing changed, if the target tier has all of it or open effects copy what it lacks."""
        locks = self._locks
        wanted = locks.indices(components, HOST)
        # Covered over both tiers is enough: a load stands on what is on device, a backup on what the host has already.
        node, length = locks.locate(boundary, HOST, wanted)
        spans, after = self._missing(kind, node, length, wanted)
        if not (spans or may_be_empty):
            return None
        # The whole node is locked while pages are looked for: a refusal leaves no cut behind.
        receipt = locks.issue_for_effect(boundary, node, wanted)
        ranks = [(held, held.rank, held.second_rank) for held in (*receipt.paths, *receipt.values)]
        try:
            taken, counts = self._to_take(spans, target_of(kind))
            given = self._given(kind, boundary, supply, taken, counts)
            if node is not None and length < node.end:
                node = split(self._state, node, length)
                spans, after = self._missing(kind, node, length, wanted)
                whole, receipt = receipt, locks.issue_for_effect(boundary, node, wanted)
                whole.release()
            effect = Effect(kind, boundary, after, spans, receipt)
            self._claim(effect, given)
        except BaseException:
            receipt.release()
            for kept, rank, second_rank in ranks:
                self._state.pools(kept.tier)[kept.component].keep_rank(kept, rank, second_rank)
            raise
        source = DEVICE if kind is BACKUP else HOST
        for span in effect.spans:
            value = span.node.values(source)[span.component]
            assert value is not None
            value.copying = (*value.copying, effect) if value.copying else (effect,)
            if kind is LOAD:
                value.was_read = True
        self.open[effect] = None
        return effect

    def _to_take(self, spans: list[Span], target: Tier) -> tuple[list[int], list[int]]:
        """Which components' target pages these spans take, and how many."""
        components: list[int] = []
        counts: list[int] = []
        for span in spans:
            i = span.component
            if self._takes_pages(i, target):
                count = len(span.source) // PAGE_ID_BYTES
                if components and components[-1] == i:
                    counts[-1] += count
                else:
                    components.append(i)
                    counts.append(count)
        return components, counts

    def _given(
        self, kind: EffectKind, boundary: Boundary, supply: Supply, components: list[int], counts: list[int]
    ) -> list[NDArray[np.int64]]:
        """Target pages; those of a caller are checked, and copied."""
        if isinstance(supply, PageSource):
            return supply.take_each(components, counts) if components else []
        state, target = self._state, target_of(kind)
        needs = {state.components[i].name: count for i, count in zip(components, counts, strict=True)}
        pages: object = supply(needs) if callable(supply) else supply
        if not isinstance(pages, Mapping):
            raise EffectError(f"the pages of a {kind.name.lower()} are a mapping from components to ids, not {repr_of(pages)}")
        given = {name: ids.copy() for name, ids in [(name, page_ids(name, ids)) for name, ids in pages.items()] if len(ids)}
        found = {name: len(ids) for name, ids in given.items()}
        if found != needs:
            raise EffectError(f"a {kind.name.lower()} of {boundary} takes {needs} pages, given were {found}")
        for i in components:
            state.pools(target)[i].ledger.check(given[state.components[i].name])
        return [given[name] for name in needs]

    def _claim(self, effect: Effect, given: list[NDArray[np.int64]]) -> None:
        """Claim the target pages of a new effect, and list its copies. Raises with nothing changed."""
        target = target_of(effect.kind)
        claimed: list[tuple[int, bytes]] = []
        try:
            self._distribute(effect, target, given, claimed)
        except BaseException:  # pages that are another's, or no memory
            for i, ids in claimed:
                self._state.pools(target)[i].ledger.unclaim(ids)
            raise

    def _distribute(
        self, effect: Effect, target: Tier, given: list[NDArray[np.int64]], claimed: list[tuple[int, bytes]]
    ) -> None:
        """Claim the given pages, deal them to the spans, and list the copies. A sharer's device copy goes to the pages that its
        owner has or gets there; where the owner is not on device for all of it, there is nothing to be valid in. What was
        claimed is added to `claimed`, by component.
        """
        state, found = self._state, effect.spans
        kept: list[Span] = []
        effect.spans = kept
        copies: list[Copy] = []
        at, groups = 0, 0
        while at < len(found):
            i = found[at].component
            first = len(kept)
            ids: NDArray[np.int64] | None = None
            if self._takes_pages(i, target):
                ids = given[groups]
                groups += 1
                whole, dealt = ids.tobytes(), 0
                state.pools(target)[i].ledger.claim(whole)
                claimed.append((i, whole))
                while at < len(found) and found[at].component == i:
                    span = found[at]
                    behind = dealt + len(span.source)
                    span.target = whole if behind - dealt == len(whole) else whole[dealt:behind]
                    dealt = behind
                    kept.append(span)
                    at += 1
            else:
                while at < len(found) and found[at].component == i:
                    span = found[at]
                    span.target = self._owner_pages(span, kept)
                    if len(span.target) == len(span.source):
                        kept.append(span)
                    at += 1
                if len(kept) > first:
                    ids = FROM_BUFFER(b"".join([span.target for span in kept[first:]]), INT64)
                    effect.in_others = (*effect.in_others, state.components[i].name)
            if ids is not None:
                name = state.components[i].name
                source = kept[first].source
                if len(kept) > first + 1:
                    source = b"".join([span.source for span in kept[first:]])
                copies.append(record(Copy, (name, FROM_BUFFER(source, INT64), ids)))
                effect.page_counts[name] = len(ids)
        effect.copies = tuple(copies)

    def acknowledge(self, effect: Effect) -> dict[str, NDArray[np.int64]]:
        """See Transfers.acknowledge."""
        for other in effect.after:
            if other in self.open:
                raise EffectError(f"the {effect.kind.name.lower()} of {effect.boundary} stands on one that has not ended")
        self._close(effect)
        state, target = self._state, target_of(effect.kind)
        state.tick()
        unused: dict[int, list[bytes]] = {}
        for span in effect.spans:
            if self._takes_pages(span.component, target):
                state.pools(target)[span.component].ledger.landing(span.target)
            left = land(state, span, target)
            if left:
                for pages in left:
                    state.pools(target)[span.component].ledger.release(pages)
                unused[span.component] = unused.get(span.component, []) + left
        if unused:
            effect.unused = state.by_name(unused)
        state.resumability.settle_share()
        effect.receipt.release()
        return effect.unused

    def abort(self, effect: Effect) -> dict[str, NDArray[np.int64]]:
        """See Transfers.abort."""
        self._close(effect)
        target = target_of(effect.kind)
        for span in effect.spans:
            if self._takes_pages(span.component, target):
                self._state.pools(target)[span.component].ledger.unclaim(span.target)
        effect.unused = effect.targets
        effect.receipt.release()
        return effect.unused

    def _close(self, effect: Effect) -> None:
        if effect not in self.open:
            raise EffectError(f"the {effect.kind.name.lower()} of {effect.boundary} ended before, or belongs to another tree")
        del self.open[effect]
        source = DEVICE if effect.kind is BACKUP else HOST
        for span in effect.spans:
            for node in crossed(span):
                value = node.values(source)[span.component]
                if value is not None and value.copying:
                    if len(value.copying) == 1 and value.copying[0] is effect:
                        value.copying = ()
                    else:
                        value.copying = tuple([other for other in value.copying if other is not effect])

    def pages_with_loads(self, boundary: Boundary, component: str) -> NDArray[np.int64]:
        """See Transfers.pages_with_loads."""
        i = self._state.layout.index_of(component)
        return np.frombuffer(b"".join(self._locks.pages(boundary, i, DEVICE, self._with_loads)), INT64)

    def _with_loads(self, node: Node, component: int) -> bytes:
        """The device pages of a node's last tokens, those on their way included."""
        there, copy = node.device[component], node.host[component]
        pages = there.pages if there is not None else b""
        size = self._state.page_size
        start = node.end - len(pages) // PAGE_ID_BYTES * size
        for effect in copy.copying if copy is not None else ():  # one that copies older pages than another began later
            for span in effect.spans:
                if span.component == component and span.begin < start <= span.end:
                    begin = max(node.start, span.begin)
                    first = (begin - span.begin) // size * PAGE_ID_BYTES
                    pages = span.target[first : (start - span.begin) // size * PAGE_ID_BYTES] + pages
                    start = begin
        return pages

    def _count(self, spans: list[Span], target: Tier) -> dict[str, int]:
        counts: dict[str, int] = {}
        for span in spans:
            if self._takes_pages(span.component, target):
                name = self._state.components[span.component].name
                counts[name] = counts.get(name, 0) + len(span.source) // PAGE_ID_BYTES
        return counts

    def _takes_pages(self, component: int, target: Tier) -> bool:
        return target is HOST or self._state.layout.owner_of[component] == component

    def _missing(
        self, kind: EffectKind, node: Node | None, length: int, only: tuple[int, ...] | None
    ) -> tuple[list[Span], tuple[Effect, ...]]:
        """What a boundary needs, the target tier lacks and no effect copies yet, component by component from the top down,
        without targets; and the effects that copy the rest.
        """
        state, target = self._state, target_of(kind)
        found: list[Span] = []
        others: dict[Effect, None] | None = None
        if node is None:
            return found, ()
        source = opposite(target)
        for i in state.layout.paths:
            if only is None or i in only:
                others = self._add_missing(_lacking(node, i, source, target), length, target, found, others)
        for i in state.layout.points:
            value = node.values(source)[i] if node.end == length else None
            if value is not None and (only is None or i in only):
                others = self._add_missing([value], length, target, found, others)
        for i, window in state.layout.windows:
            if only is None or i in only:
                others = self._add_missing(window_values(node, window.start(length), i, source), length, target, found, others)
        return found, () if others is None else tuple(others)

    def _add_missing(
        self, values: list[Value], length: int, target: Tier, found: list[Span], others: dict[Effect, None] | None
    ) -> dict[Effect, None] | None:
        """Add what the target tier lacks of one component's values, which are given from the bottom up; returns the effects
        that copy the rest, those given included.
        """
        size = self._state.page_size
        at = len(values)
        while at:
            at -= 1
            value = values[at]
            node, i = value.node, value.component
            end, count = node.end, value.page_count
            there = node.values(target)[i]
            have = there.page_count if there is not None else 0
            if end > length:
                have = max(have, (end - length) // size)
            if count <= have:
                continue
            begin = end - count * size
            end -= have * size
            lacking = end
            for effect in value.copying:
                copied_from = effect.copied_from(i, begin, end)
                if copied_from < end:
                    if others is None:
                        others = {}
                    others[effect] = None
                    lacking = min(lacking, copied_from)
            if begin < lacking:
                pages = value.pages
                if lacking < node.end:
                    pages = pages[: (lacking - begin) // size * PAGE_ID_BYTES]
                found.append(Span(i, node, begin, lacking, pages, b""))
        return others

    def _owner_pages(self, span: Span, coming: list[Span]) -> bytes:
        """The device pages for a sharer's span, at most: those that its owner has at the node, or is being given there by some
        effect.
        """
        owner, node = self._state.layout.owner_of[span.component], span.node
        given = b"".join([other.target for other in coming if other.component == owner and other.node is node])
        pages = given + self._with_loads(node, owner)
        held = (node.end - span.begin) // self._state.page_size * PAGE_ID_BYTES
        return pages[-held:][: len(span.source)]


def _lacking(node: Node, component: int, source: Tier, target: Tier) -> list[Value]:
    """A path's values on one tier at and above a node that another tier lacks, deepest first.

    Paths are prefix-closed on each tier, so the first value found ends the search. Cost: O(nodes that lack it).
    """
    found: list[Value] = []
    at: Node | None = node
    while at is not None and at.parent is not None and at.values(target)[component] is None:
        value = at.values(source)[component]
        if value is not None:
            found.append(value)
        at = at.parent
    return found


def target_of(kind: EffectKind) -> Tier:
    """Where an effect's pages go."""
    return HOST if kind is BACKUP else DEVICE
