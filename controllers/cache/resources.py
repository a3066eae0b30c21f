"""The parts of a cache, and what it keeps of each component."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.cache.miss_ledger import MissLedger
    from unified_tree.controllers.cache.sessions import Sessions
    from unified_tree.controllers.cache.sharing import Sharing
    from unified_tree.controllers.cache.tenant_stats import TenantCounters
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.host.hybrid_cache_controller import HybridCacheController
    from unified_tree.controllers.pages.tier_pages import TierPages
    from unified_tree.controllers.ranks.rank_agreement import RankAgreement
    from unified_tree.controllers.storage_tier import StorageController
    from unified_tree.declare.component_layout import ComponentLayout
    from unified_tree.tree import UnifiedTree


class CacheLayout:
    """The pages that a request keeps of each component; never changed.

    Args:
        kinds: the components, as the tree groups them.

    Attributes:
        page_size, components, save_grid_tokens, state_grid_tokens: of the components.
        paths: names of the `Path` components with pages of their own.
        windows: names and `Suffix` of the windows with pages of their own.
        point: name of the `Point` component with pages of its own; None without one.
        window_indices, saved_indices, optional_paths: the windows, the windows and the point, and the paths of their own that
            are optional, by their place among the components.
        sharers: components in the pages of another.
        optional: components that a boundary does not need; `can_give_up` the names of those with pages of their own.
        needs_saves: whether resuming at a length needs a window or a state that was saved there.
        gating: names of the components that take no pages of an optional one; None if no component does.
        owner_of: by component, the one whose device pages hold it.

    Raises ConfigurationError for two `Point` components with pages of their own.
    """

    def __init__(self, kinds: ComponentLayout) -> None:
        self.components = every = kinds.components
        self.page_size = kinds.page_size
        self.save_grid_tokens = kinds.save_grid_tokens
        self.state_grid_tokens = kinds.state_grid_tokens
        points = [every[i].name for i in kinds.on_device.points]
        if len(points) > 1:
            raise ConfigurationError(
                f"one Point component may have pages of its own, the others share them; there are {points}: keep both states "
                f"in one page, or give all but one of them shares={points[0]!r}"
            )
        self.point = points[0] if points else None
        paths, windows = kinds.on_device.paths, kinds.on_device.windows
        self.paths = tuple([every[i].name for i in paths])
        self.windows = tuple([(every[i].name, window) for i, window in windows])
        self.window_indices = tuple([i for i, _ in windows])
        self.saved_indices = tuple(sorted([*self.window_indices, *kinds.on_device.points]))
        self.needs_saves = bool(self.saved_indices)
        self.optional_paths = tuple([i for i in paths if not every[i].required])
        self.sharers = tuple([c for c in every if c.shares is not None])
        self.optional = tuple([c for c in every if not c.required])
        self.can_give_up = without = tuple([c.name for c in self.optional if c.shares is None])
        self.gating = [c.name for c in every if (c.shares or c.name) not in without] if without else None
        self.owner_of: Mapping[str, str] = {c.name: c.shares or c.name for c in every}

    def pages(self, tokens: int) -> int:
        """Pages for so many tokens, rounded up."""
        return -(-tokens // self.page_size)

    def floor_to_page(self, tokens: int) -> int:
        """`tokens`, rounded down to whole pages."""
        return tokens // self.page_size * self.page_size


class CacheResources:
    """The parts of a cache: its leases, hints and statistics share them.

    Attributes:
        tree: what is cached; `state` and `locks` are its own.
        layout: which components have pages of their own.
        device: the device pools.
        controller: moves state between device and host; None without a host tier.
        storage: reads and writes the store behind the host tier; None without one.
        ranks: agreement with the other ranks.
        counters: counts events. tenants: counts them by group of namespaces. sharing: which prefixes namespaces have in common.
        ledger: books why tokens had to be computed.
        sessions: the open sessions.
        draft_tokens: see PrefixCache.
    """

    def __init__(
        self,
        *,
        tree: UnifiedTree,
        layout: CacheLayout,
        device: TierPages,
        controller: HybridCacheController | None,
        ranks: RankAgreement,
        counters: CacheCounters,
        tenants: TenantCounters,
        sharing: Sharing,
        ledger: MissLedger,
        sessions: Sessions,
        draft_tokens: int,
    ) -> None:
        self.tree = tree
        self.state = tree.state
        self.locks = tree.locks
        self.layout = layout
        self.device = device
        self.controller = controller
        self.storage: StorageController | None = None
        self.ranks = ranks
        self.counters = counters
        self.tenants = tenants
        self.sharing = sharing
        self.ledger = ledger
        self.sessions = sessions
        self.draft_tokens = draft_tokens
