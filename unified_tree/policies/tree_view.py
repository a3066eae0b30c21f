"""The tree as its policy sees it: what is fixed, what is held, and what a value costs to bring back."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.declare.component import Component
    from unified_tree.declare.settings import TreeSettings
    from unified_tree.nodes.node import Value
    from unified_tree.terms.tier import Tier


class TreeView:
    """What a policy may ask of its tree. A factory gets it before the tree is complete, so ask later.

    Attributes:
        components: the kinds of state, in the order of `Value.component`.
        page_size: tokens a page.
        settings: every bound.
        now: the tree's clock, in ticks, as `Value.touched`. A tick is one insert, one match that is a use and finds something,
            one `UnifiedTree.touch`, one copy between device and host that lands, or one prefetch. A commit makes an insert of
            each length that it publishes.
    """

    __slots__ = ("components", "now", "page_size", "settings")

    def __init__(self, components: tuple[Component, ...], page_size: int, settings: TreeSettings) -> None:
        self.components = components
        self.page_size = page_size
        self.settings = settings
        self.now = 0

    @property
    @abstractmethod
    def save_grid_tokens(self) -> int:
        """The grid on which every kind can be saved."""

    @abstractmethod
    def restore_cost(self, value: Value) -> float:
        """What it costs to bring a value back, per byte it frees; larger is worth keeping. Units: FLOPs a byte.

        Cost: O(nodes up to the boundary before it), at most the setting `cost_steps`.
        """

    @abstractmethod
    def tokens_lost(self, value: Value) -> int:
        """How many tokens have to be computed again without a value, whatever other tiers have. Cost: as `restore_cost`."""

    @abstractmethod
    def held_pages(self, component: int, tier: Tier) -> int:
        """Pages that the tree holds of a kind on a tier, with those that copies are filling. Cost: O(1)."""

    @abstractmethod
    def page_blocks(self, component: int, tier: Tier) -> int:
        """Blocks that a page takes of the budget that the pools of a tier share; 0 where each pool has its own pages."""

    @abstractmethod
    def reorder(self, value: Value) -> None:
        """Ask for a value's rank again, if it is evictable now. Cost: O(log n)."""
