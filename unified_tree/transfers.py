"""Effects: copies between device and host that the tree asks for, acknowledged or aborted exactly once.

While an effect is open its sources are pinned and its targets belong to it, not to any node. It remembers what it copies as
spans of tokens above a node that cannot go away, so nodes may be split meanwhile: the pages are published to whatever halves
there are when the copies are acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.errors import EffectError
from unified_tree.matching import window_values
from unified_tree.node import PAGE_ID_BYTES, Node, Tier, Value
from unified_tree.resumability import refresh

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.locking import Locks
    from unified_tree.receipt import Boundary, Receipt
    from unified_tree.state import TreeState


class EffectKind(Enum):
    """Which way an effect copies."""

    BACKUP = "device to host"
    LOAD = "host to device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Copy page `source[i]` of a component to its page `target[i]` on the other tier; int64 ids of equal length."""

    component: str
    source: NDArray[np.int64]
    target: NDArray[np.int64]


@dataclass(slots=True)
class _Span:
    """Target pages for the tokens [begin, end) of one component, `end` being in or at the end of `node`."""

    component: int
    node: Node
    begin: int
    end: int
    target: bytes


@dataclass(slots=True, eq=False)
class Effect:
    """Copies asked for. `copies` lists the paths first, then the sidecars, one entry a component."""

    kind: EffectKind
    boundary: Boundary
    copies: tuple[Copy, ...]
    spans: list[_Span] = field(repr=False)
    receipts: list[Receipt] = field(repr=False)
    targets: dict[str, NDArray[np.int64]] = field(repr=False)


class Effects:
    """The open effects of one tree."""

    def __init__(self, state: TreeState, locks: Locks) -> None:
        self._state = state
        self._locks = locks
        self.open: list[Effect] = []

    def backup_needs(self, boundary: Boundary) -> dict[str, int]:
        """Host pages by component; see UnifiedTree.backup_needs."""
        return self._count(self._missing(boundary, Tier.HOST), Tier.HOST)

    def load_needs(self, boundary: Boundary) -> dict[str, int]:
        """Device pages by component; see UnifiedTree.load_needs."""
        return self._count(self._missing(boundary, Tier.DEVICE), Tier.DEVICE)

    def backup(self, boundary: Boundary, pages: Mapping[str, NDArray[np.int64]]) -> Effect:
        """See UnifiedTree.backup."""
        self._locks.locate(boundary, Tier.DEVICE, None)
        return self._begin(EffectKind.BACKUP, boundary, pages, Tier.HOST)

    def load(self, boundary: Boundary, pages: Mapping[str, NDArray[np.int64]]) -> Effect:
        """See UnifiedTree.load."""
        self._locks.locate(boundary, Tier.HOST, None)
        return self._begin(EffectKind.LOAD, boundary, pages, Tier.DEVICE)

    def acknowledge(self, effect: Effect) -> dict[str, NDArray[np.int64]]:
        """See UnifiedTree.acknowledge."""
        self._close(effect)
        self._state.clock += 1
        tier = Tier.HOST if effect.kind is EffectKind.BACKUP else Tier.DEVICE
        unused: dict[int, list[bytes]] = {}
        for span in effect.spans:
            self._publish(span, tier, unused)
        for receipt in effect.receipts:
            receipt.release()
        names = self._state.components
        return {names[i].name: np.frombuffer(b"".join(chunks), np.int64) for i, chunks in unused.items()}

    def abort(self, effect: Effect) -> dict[str, NDArray[np.int64]]:
        """See UnifiedTree.abort."""
        self._close(effect)
        for receipt in effect.receipts:
            receipt.release()
        return dict(effect.targets)

    def _close(self, effect: Effect) -> None:
        if effect not in self.open:
            raise EffectError(f"the {effect.kind.name.lower()} of {effect.boundary} ended before, or belongs to another tree")
        self.open.remove(effect)
        target = Tier.HOST if effect.kind is EffectKind.BACKUP else Tier.DEVICE
        for name, ids in effect.targets.items():
            self._state.pools(target)[self._state.index[name]].ledger.unclaim(ids)

    def _count(self, missing: list[tuple[Value, int, int]], target: Tier) -> dict[str, int]:
        counts: dict[str, int] = {}
        for value, begin, end in missing:
            if self._takes_pages(value, target):
                name = self._state.components[value.component].name
                counts[name] = counts.get(name, 0) + (end - begin)
        return counts

    def _takes_pages(self, value: Value, target: Tier) -> bool:
        return target is Tier.HOST or self._state.owner_of[value.component] == value.component

    def _missing(self, boundary: Boundary, target: Tier) -> list[tuple[Value, int, int]]:
        """Source values a boundary needs that the target tier lacks, as (value, first page, last page) within the value."""
        state = self._state
        source = Tier.HOST if target is Tier.DEVICE else Tier.DEVICE
        node, length = self._locks.find(boundary)
        if node is None:
            return []
        wanted: list[Value] = []
        for i in state.paths:
            wanted += reversed(window_values(node, length, i, length, source))
        for i in state.points:
            value = node.values(source)[i] if node.end == length else None
            if value is not None:
                wanted.append(value)
        for i, window in state.windows:
            wanted += reversed(window_values(node, length, i, window, source))
        found = []
        for value in wanted:
            there = value.node.values(target)[value.component]
            have = there.page_count if there is not None else 0
            beyond = max(0, value.node.end - length) // state.page_size
            if value.page_count > max(have, beyond):
                found.append((value, 0, value.page_count - max(have, beyond)))
        return found

    def _begin(self, kind: EffectKind, boundary: Boundary, pages: Mapping[str, NDArray[np.int64]], target: Tier) -> Effect:
        state = self._state
        given = {name: np.asarray(ids, np.int64) for name, ids in pages.items() if len(ids)}
        needs = self._count(self._missing(boundary, target), target)
        if {name: ids.size for name, ids in given.items()} != needs:
            raise EffectError(
                f"a {kind.name.lower()} of {boundary} takes {needs} pages, given were { {n: i.size for n, i in given.items()} }"
            )
        for name, ids in given.items():
            state.pools(target)[state.index[name]].ledger.check(ids)
        source = Tier.HOST if target is Tier.DEVICE else Tier.DEVICE
        receipts = [self._locks.acquire(boundary, source, None)]
        if target is Tier.DEVICE:
            receipts.append(self._locks.pin_present(boundary))
        spans, copies = self._spans(self._missing(boundary, target), given, target)
        for name, ids in given.items():
            state.pools(target)[state.index[name]].ledger.claim(ids)
        effect = Effect(kind, boundary, copies, spans, receipts, given)
        self.open.append(effect)
        return effect

    def _spans(
        self, missing: list[tuple[Value, int, int]], given: dict[str, NDArray[np.int64]], target: Tier
    ) -> tuple[list[_Span], tuple[Copy, ...]]:
        """Deal the given pages out; a sharer's device copy goes to the pages its owner has or gets there."""
        state = self._state
        dealt = dict.fromkeys(given, 0)
        spans: list[_Span] = []
        sources: dict[int, list[bytes]] = {}
        targets: dict[int, list[bytes]] = {}
        for value, first, last in missing:
            i, node = value.component, value.node
            if self._takes_pages(value, target):
                name = state.components[i].name
                ids = given[name][dealt[name] : dealt[name] + last - first].tobytes()
                dealt[name] += last - first
            else:
                ids = self._owner_pages(node, state.owner_of[i], spans, value.page_count)[: (last - first) * PAGE_ID_BYTES]
                if len(ids) < (last - first) * PAGE_ID_BYTES:
                    continue  # its owner is not on device for all of it: nothing to be valid in
            begin = node.end - (value.page_count - first) * state.page_size
            spans.append(_Span(i, node, begin, begin + (last - first) * state.page_size, ids))
            sources.setdefault(i, []).append(value.pages[first * PAGE_ID_BYTES : last * PAGE_ID_BYTES])
            targets.setdefault(i, []).append(ids)
        copies = tuple(
            Copy(
                component=state.components[i].name,
                source=np.frombuffer(b"".join(sources[i]), np.int64),
                target=np.frombuffer(b"".join(targets[i]), np.int64),
            )
            for i in sources
        )
        return spans, copies

    def _owner_pages(self, node: Node, owner: int, spans: list[_Span], page_count: int) -> bytes:
        """The device pages an owner has at a node, or is being given there by this effect: its last `page_count`."""
        coming = b"".join(span.target for span in spans if span.component == owner and span.node is node)
        there = node.device[owner]
        pages = coming + (there.pages if there is not None else b"")
        return pages[-page_count * PAGE_ID_BYTES :]

    def _publish(self, span: _Span, tier: Tier, unused: dict[int, list[bytes]]) -> None:
        """Give the nodes of a span their pages, from the top down; what is there by now is not needed."""
        state = self._state
        crossed: list[Node] = []
        at: Node | None = span.node
        while at is not None and at.parent is not None and at.end > span.begin:
            if at.start < span.end:
                crossed.append(at)
            at = at.parent
        for node in reversed(crossed):
            first, last = max(node.start, span.begin), min(node.end, span.end)
            offset = (first - span.begin) // state.page_size * PAGE_ID_BYTES
            pages = span.target[offset : offset + (last - first) // state.page_size * PAGE_ID_BYTES]
            if self._place(node, span.component, tier, pages, last):
                refresh(state, node, window_changed=not state.is_path[span.component] and span.component not in state.points)
            elif tier is Tier.HOST or state.owner_of[span.component] == span.component:
                unused.setdefault(span.component, []).append(pages)

    def _place(self, node: Node, component: int, tier: Tier, pages: bytes, last: int) -> bool:
        """Place pages that end at token `last` if they join what the node has; False if it has them by now."""
        state = self._state
        value = node.values(tier)[component]
        if value is None:
            owner = node.device[state.owner_of[component]]
            is_sharer = tier is Tier.DEVICE and state.owner_of[component] != component
            if last != node.end or (is_sharer and (owner is None or not owner.pages.endswith(pages))):
                return False
            if state.is_path[component] and not self._continues(node, component, tier):
                return False
            state.place(node, component, tier, pages)
            return True
        if last != node.end - value.page_count * state.page_size:
            return False
        state.extend(value, pages)
        return True

    def _continues(self, node: Node, component: int, tier: Tier) -> bool:
        """Whether a path value here would have one above it: on device for device, on either tier for host."""
        parent = node.parent
        if parent is None or parent.parent is None or parent.device[component] is not None:
            return True
        return tier is Tier.HOST and parent.host[component] is not None
