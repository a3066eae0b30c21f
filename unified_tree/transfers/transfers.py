"""The tree's interface for a controller: which pages to copy between device and host, and the outcome of the copies."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from unified_tree.declare.keys import checked_key, checked_limit
from unified_tree.inputs.printable import repr_of
from unified_tree.inserts import grafting
from unified_tree.inserts.grafting import GraftResult
from unified_tree.lookup.matching import spare_from
from unified_tree.nodes.effect import Effect, EffectKind
from unified_tree.terms.errors import EffectError
from unified_tree.terms.results import NOWHERE, Boundary, checked_boundary
from unified_tree.transfers.open_effects import OpenEffects, Supply

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.declare.keys import Key
    from unified_tree.locks.locks import Locks, Receipt
    from unified_tree.nodes.node import Node
    from unified_tree.state.tree_state import TreeState


class Transfers:
    """A tree's interface for a controller that moves its pages; `UnifiedTree.transfers` is the tree's only instance.

    `backup` and `load` ask for copies, the caller makes them, and `acknowledge` or `abort` ends them. A *boundary* is a length
    one can resume from. Every method that raises leaves the tree unchanged.

    Attributes:
        effects: the copies asked for and not ended. Internal; a controller calls it for each request.

    >>> import numpy as np
    >>> from unified_tree import Component, Key, Path, Tier, UnifiedTree
    >>> tree = UnifiedTree([Component(name="full", coverage=Path())], page_size=2)
    >>> boundary = tree.insert(Key([1, 2, 3, 4]), {"full": np.array([7, 8])}).boundary
    >>> tree.transfers.backup_needs(boundary)
    {'full': 2}
    >>> effect = tree.transfers.backup(boundary, {"full": np.array([0, 1])})
    >>> effect.copies[0].source.tolist(), effect.copies[0].target.tolist()
    ([7, 8], [0, 1])
    >>> tree.transfers.acknowledge(effect), tree.pages(boundary, "full", Tier.HOST).tolist()
    ({}, [0, 1])
    """

    def __init__(self, state: TreeState, locks: Locks) -> None:
        self._state = state
        self._locks = locks
        self.effects = OpenEffects(state, locks)

    def backup_needs(self, boundary: Boundary, components: Collection[str] | None = None) -> dict[str, int]:
        """Host pages by component that a backup of this boundary would take now. Cost: O(nodes on the path)."""
        return self.effects.needs(EffectKind.BACKUP, checked_boundary(boundary), components)

    def load_needs(self, boundary: Boundary, components: Collection[str] | None = None) -> dict[str, int]:
        """Device pages by component that a load back of this boundary would take now. Cost: O(nodes on the path)."""
        return self.effects.needs(EffectKind.LOAD, checked_boundary(boundary), components)

    def backup(self, boundary: Boundary, pages: Supply, components: Collection[str] | None = None) -> Effect:
        """Ask for copies of what a boundary needs and the host lacks, but for what open effects copy already.

        The sources are locked until the effect ends.

        Args:
            pages: host page ids by component, exactly as many as `backup_needs` returns; or a function from these needs to the
                ids; or a `PageSource`. Either is called when the sources are locked, so it may evict.
            components: copy only these; then only the paths' coverage is required.

        Raises StaleBoundaryError, EffectError, PageError, or the function's error, with nothing changed.
        """
        return self.effects.begin(EffectKind.BACKUP, checked_boundary(boundary), pages, components)

    def load(self, boundary: Boundary, pages: Supply, components: Collection[str] | None = None) -> Effect:
        """Ask for copies of what a boundary needs and the device lacks, from host into device pages; as `backup`."""
        return self.effects.begin(EffectKind.LOAD, checked_boundary(boundary), pages, components)

    def acknowledge(self, effect: Effect) -> dict[str, NDArray[np.int64]]:
        """The copies were made: publish them. Returns the target pages that the tree no longer needed, for the caller to free.

        Raises EffectError if the effect ended before or belongs to another tree.
        """
        return self.effects.acknowledge(_checked_effect(effect))

    def abort(self, effect: Effect) -> dict[str, NDArray[np.int64]]:
        """The copies were not made. Returns all target pages, for the caller to free. Raises as `acknowledge`."""
        return self.effects.abort(_checked_effect(effect))

    def pages_with_loads(self, boundary: Boundary, component: str) -> NDArray[np.int64]:
        """As `UnifiedTree.pages` on device, with the targets of open loads included. Cost: as that, and O(spans) a load."""
        return self.effects.pages_with_loads(checked_boundary(boundary), component)

    def lock_present(self, boundary: Boundary) -> Receipt:
        """Lock the part of a boundary that is on device, covered or not. Raises StaleBoundaryError if the boundary is gone."""
        return self._locks.lock_present(checked_boundary(boundary))

    def host_path_end(self, key: Key, *, limit: int | None = None, after: Boundary = NOWHERE) -> Boundary:
        """How far every required path lies on host along `key`: where pages from elsewhere can be grafted.

        It need not be covered by windows and states; `lock(..., Tier.HOST, components=paths)` keeps it.

        Args:
            after: a boundary on this key, no longer than the limit, from a match made just before: what lies above is not
                compared again.

        Cost: as a match, of what lies behind `after`.
        """
        checked_key(key)
        return grafting.host_path_end(self._state, key, checked_limit(key, limit), checked_boundary(after))

    def graft(self, key: Key, pages: Mapping[str, NDArray[np.int64]], *, after: Boundary = NOWHERE) -> GraftResult:
        """Put host pages of a key's tail into the tree that did not come from the device: fetched from a store, say.

        Args:
            key: only its whole pages count.
            pages: by component the host page ids of the key's last pages, int64: of a path as many as the host lacks, of a
                window those of its last tokens, one state. Required paths must reach back to `host_path_end`.
            after: a boundary on this key, which the caller keeps locked: what lies above is not compared again.

        Raises InsertError, PageError or InvalidKeyError, with nothing changed. Cost: as an insert.
        """
        checked_key(key)
        return grafting.graft(self._state, key, pages, checked_boundary(after))

    def is_boundary(self, boundary: Boundary) -> bool:
        """Whether `boundary`, at a node's end, is covered over device and host. Cost: O(1); see `UnifiedTree.settle`."""
        return self._state.resumability.is_boundary(checked_boundary(boundary))

    def hits(self, boundary: Boundary) -> int:
        """How many matches ended in the boundary's node since it was made; 0 if it is gone. Cost: O(1)."""
        node = self._state.nodes.get(checked_boundary(boundary).node)
        value = node.device[self._state.layout.required_owned_paths[0]] if node is not None else None
        return value.hits if value is not None else 0

    def boundaries(self) -> list[Boundary]:
        """The boundaries at node ends, of plain paths only those at leaves. None that needs spare windows that are on device
        alone. Cost: O(tree), and O(nodes of the windows) a boundary.
        """
        state = self._state
        live = (node for node in state.nodes if not state.nodes.is_retired(node))
        return [Boundary(node.id, node.end) for node in live if self._is_kept(node)]

    def _is_kept(self, node: Node) -> bool:
        """Whether a node's end is a boundary that was kept for its own sake."""
        state = self._state
        if not state.layout.is_gated:
            return node.first_child is None
        return state.resumability.is_covered(node) and spare_from(state, node, node.end) is None


def _checked_effect(effect: object) -> Effect:
    if not isinstance(effect, Effect):
        raise EffectError(f"an Effect is needed, not {repr_of(effect)}")
    return effect
