"""One row's link to prefixes kept elsewhere: real device pages for it, names that keep rows apart, and its pace.

A linker fills device pages itself, so they are tensors here even where nothing is verified, of as few bytes as with --verify.
A row's prefixes are found by replays of the same workload, model, page size and kind of content only, as those of a store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unified_tree.controllers.prefix_linker import LinkedPrefixes, linked_pools
from unified_tree.controllers.replay.paced_linker import PacedLinker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.pools import DevicePool
    from unified_tree.controllers.prefix_linker import LinkedPool
    from unified_tree.controllers.replay.linker_settings import LinkerSettings
    from unified_tree.controllers.replay.row_plan import RowPlan
    from unified_tree.controllers.transfer_engines import VirtualClock


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLink:
    """A linker over a row's device pages, and what to make the link with.

    Attributes:
        linker: closed with the link.
        clock: the replay's.
    """

    linker: PacedLinker
    pools: Sequence[LinkedPool]
    clock: VirtualClock
    weights_version: str
    wait_s: float

    def to(self, cache: PrefixCache) -> LinkedPrefixes:
        """The link of the row's cache. Raises ConfigurationError for a cache that cannot be linked."""
        return LinkedPrefixes(
            cache,
            self.linker,
            self.pools,
            weights_version=self.weights_version,
            wait_s=self.wait_s,
            clock=lambda: self.clock.now / 1e9,
        )


def open_link(row: RowPlan, settings: LinkerSettings, pools: Mapping[str, DevicePool], clock: VirtualClock) -> RowLink:
    """Open a row's linker over device pages by component; those of a daemon are in memory that it can map.

    Raises ConfigurationError for components that cannot be carried, and both it and LinkError as the linker.
    """
    linked = linked_pools(row.moved_composition, pools, paths_only=not settings.is_daemon)
    linker = settings.open(linked, row.composition.name)
    return RowLink(
        linker=PacedLinker(linker, clock, settings.cost, row.true_bytes, row.composition.page_size),
        pools=linked,
        clock=clock,
        weights_version=f"{row.name} of {row.workload}",
        wait_s=settings.prefetch.patience_s(0),
    )
