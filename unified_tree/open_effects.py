"""Effects: copies between device and host that the tree asks for, acknowledged or aborted exactly once.

While an effect is open, its sources are locked and marked as being copied, so that no other effect copies them again. Its
targets belong to it, not to any node. It stores what it copies as spans of tokens above a locked node. Nodes may be split
meanwhile: at the acknowledgement the pages are published to the nodes that the span crosses then. If a value has gained older
pages since, another effect copies only those.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from unified_tree.effect import Copy, Effect, EffectKind, Span
from unified_tree.errors import EffectError
from unified_tree.int64 import INT64
from unified_tree.landing import crossed, land
from unified_tree.matching import collect, window_values
from unified_tree.node import PAGE_ID_BYTES, Node, Tier, Value, opposite
from unified_tree.page_ids import page_ids
from unified_tree.receipt import record
from unified_tree.splitting import split

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.locking import Locks
    from unified_tree.pool import PageLedger
    from unified_tree.receipt import Boundary
    from unified_tree.state import TreeState

DEVICE: Final = Tier.DEVICE
HOST: Final = Tier.HOST
BACKUP: Final = EffectKind.BACKUP
LOAD: Final = EffectKind.LOAD
"""Members of an Enum are looked up by a Python function, so they are looked up once."""
Missing = dict[int, list[tuple[Value, int, int]]]
"""Source values that the target tier lacks, by component, as (value, first page, last page) within the value."""
Supply = Mapping[str, "NDArray[np.int64]"] | Callable[[dict[str, int]], Mapping[str, "NDArray[np.int64]"]]
"""Target pages by component, or what makes them: it is given how many are needed, when all sources are locked."""


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
        copies_given: bool = True,
    ) -> Effect | None:
        """As `begin`; None, with nothing changed, if the target tier has all of it or open effects copy what it lacks.

        Args: copies_given: False if the caller never changes the arrays that it gives.
        """
        state, locks, target = self._state, self._locks, target_of(kind)
        wanted = locks.indices(components, HOST)
        # Covered over both tiers is enough: a load stands on what is on device, a backup on what the host has already.
        node, length = locks.locate(boundary, HOST, wanted)
        missing, after = self._missing(kind, node, length, wanted)
        if not (missing or may_be_empty):
            return None
        if node is not None and length < node.end:
            node = split(state, node, length)
            missing, after = self._missing(kind, node, length, wanted)
        receipts = [locks.issue(boundary, HOST, node, wanted), locks.issue(boundary, DEVICE, node, None)]
        try:
            given = self._supplied(kind, boundary, supply, self._count(missing, target), copies_given)
        except BaseException:
            for receipt in receipts:
                receipt.release()
            raise
        spans, copies = self._spans(missing, given, target)
        effect = Effect(kind, boundary, copies, after, spans, receipts, given)
        for span in spans:
            value = span.node.values(opposite(target))[span.component]
            assert value is not None
            value.copying = (*value.copying, effect) if value.copying else (effect,)
            if kind is LOAD:
                value.was_read = True
        self.open[effect] = None
        return effect

    def _supplied(
        self, kind: EffectKind, boundary: Boundary, supply: Supply, needs: dict[str, int], copies_given: bool
    ) -> dict[str, NDArray[np.int64]]:
        """The target pages that were given, which were checked."""
        pages = supply(needs) if callable(supply) else supply
        given: dict[str, NDArray[np.int64]] = {}
        as_needed = True
        for name, ids in pages.items():
            own = page_ids(name, ids)
            if copies_given:
                own = own.copy()
            if len(own):
                given[name] = own
                as_needed = as_needed and needs.get(name, 0) == len(own)
        if not as_needed or len(given) != len(needs):
            counts = {name: len(ids) for name, ids in given.items()}
            raise EffectError(f"a {kind.name.lower()} of {boundary} takes {needs} pages, given were {counts}")
        target = target_of(kind)
        for name, ids in given.items():
            self._ledger(name, target).check(ids)
        return given

    def _ledger(self, name: str, tier: Tier) -> PageLedger:
        return self._state.pools(tier)[self._state.index[name]].ledger

    def acknowledge(self, effect: Effect) -> dict[str, NDArray[np.int64]]:
        """See Transfers.acknowledge."""
        for other in effect.after:
            if other in self.open:
                raise EffectError(f"the {effect.kind.name.lower()} of {effect.boundary} stands on one that has not ended")
        self._close(effect)
        self._state.tick()
        unused: dict[int, list[bytes]] = {}
        for span in effect.spans:
            land(self._state, span, target_of(effect.kind), unused)
        self._state.resumability.settle_share()
        for receipt in effect.receipts:
            receipt.release()
        return self._state.by_name(unused)

    def abort(self, effect: Effect) -> dict[str, NDArray[np.int64]]:
        """See Transfers.abort."""
        self._close(effect)
        for receipt in effect.receipts:
            receipt.release()
        return dict(effect.targets)

    def _close(self, effect: Effect) -> None:
        if effect not in self.open:
            raise EffectError(f"the {effect.kind.name.lower()} of {effect.boundary} ended before, or belongs to another tree")
        del self.open[effect]
        target = target_of(effect.kind)
        for span in effect.spans:
            if self._takes_pages(span.component, target):
                self._state.pools(target)[span.component].ledger.unclaim(span.target)
            for node in crossed(span):
                value = node.values(opposite(target))[span.component]
                if value is not None and value.copying:
                    value.copying = tuple([other for other in value.copying if other is not effect])

    def pages_with_loads(self, boundary: Boundary, component: str) -> NDArray[np.int64]:
        """See Transfers.pages_with_loads."""
        return np.frombuffer(b"".join(collect(self._state, self._locks, boundary, component, DEVICE, self._with_loads)), INT64)

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

    def _count(self, missing: Missing, target: Tier) -> dict[str, int]:
        counts: dict[str, int] = {}
        for i, parts in missing.items():
            if self._takes_pages(i, target):
                count = 0
                for _, first, last in parts:
                    count += last - first
                counts[self._state.components[i].name] = count
        return counts

    def _takes_pages(self, component: int, target: Tier) -> bool:
        return bool(target) or self._state.owner_of[component] == component

    def _missing(
        self, kind: EffectKind, node: Node | None, length: int, only: tuple[int, ...] | None
    ) -> tuple[Missing, tuple[Effect, ...]]:
        """What a boundary needs, the target tier lacks and no effect copies yet; and the effects that copy the rest."""
        state, target = self._state, target_of(kind)
        found: Missing = {}
        others: dict[Effect, None] = {}
        if node is None:
            return found, ()
        source = opposite(target)
        for i in state.paths:
            if only is None or i in only:
                self._add_missing(_lacking(node, i, source, target), length, target, found, others)
        for i in state.points:
            value = node.values(source)[i] if node.end == length else None
            if value is not None and (only is None or i in only):
                self._add_missing([value], length, target, found, others)
        for i, window in state.windows:
            if only is None or i in only:
                self._add_missing(window_values(node, length, i, window, source), length, target, found, others)
        return found, tuple(others) if others else ()

    def _add_missing(self, values: list[Value], length: int, target: Tier, found: Missing, others: dict[Effect, None]) -> None:
        """Add what the target tier lacks of one component's values, which are given from the bottom up."""
        size = self._state.page_size
        parts: list[tuple[Value, int, int]] = []
        for value in reversed(values):
            end, count = value.node.end, value.page_count
            there = value.node.values(target)[value.component]
            have = there.page_count if there is not None else 0
            have = max(have, max(0, end - length) // size)
            if count <= have:
                continue
            begin = end - count * size
            end -= have * size
            lacking = end
            for effect in value.copying:
                copied_from = effect.copied_from(value.component, begin, end)
                if copied_from < end:
                    others[effect] = None
                    lacking = min(lacking, copied_from)
            if begin < lacking:
                parts.append((value, 0, (lacking - begin) // size))
        if parts:
            found[values[0].component] = parts

    def _spans(
        self, missing: Missing, given: dict[str, NDArray[np.int64]], target: Tier
    ) -> tuple[list[Span], tuple[Copy, ...]]:
        """Claim and distribute the given pages; a sharer's device copy goes to the pages that its owner has or gets there."""
        state = self._state
        spans: list[Span] = []
        copies: list[Copy] = []
        for i, parts in missing.items():
            name = state.components[i].name
            takes_pages = self._takes_pages(i, target)
            whole, dealt = given[name].tobytes() if takes_pages else b"", 0
            if takes_pages:
                state.pools(target)[i].ledger.claim(whole)
            sources: list[bytes] = []
            targets: list[bytes] = []
            for value, first, last in parts:
                node = value.node
                size = (last - first) * PAGE_ID_BYTES
                if takes_pages:
                    ids = whole[dealt : dealt + size]
                    dealt += size
                else:
                    ids = self._owner_pages(node, state.owner_of[i], spans, value.page_count)[:size]
                    if len(ids) < size:
                        continue  # its owner is not on device for all of it: nothing to be valid in
                    targets.append(ids)
                begin = node.end - (value.page_count - first) * state.page_size
                spans.append(Span(i, node, begin, begin + (last - first) * state.page_size, ids))
                sources.append(value.pages[first * PAGE_ID_BYTES : last * PAGE_ID_BYTES])
            if sources:
                copies.append(record(Copy, (name, _ids(sources), given[name] if takes_pages else _ids(targets))))
        return spans, tuple(copies)

    def _owner_pages(self, node: Node, owner: int, spans: list[Span], page_count: int) -> bytes:
        """The device pages an owner has at a node, or is being given there by some effect: its last `page_count`."""
        coming = b"".join(span.target for span in spans if span.component == owner and span.node is node)
        pages = coming + self._with_loads(node, owner)
        return pages[-page_count * PAGE_ID_BYTES :]


def _ids(parts: list[bytes]) -> NDArray[np.int64]:
    """Page ids in several parts, as one array."""
    return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), INT64)


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
