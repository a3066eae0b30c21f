"""One running sequence's state in the pools: rows in and out by token, through the page tables of its lease."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from unified_tree.terms.errors import LeaseError

if TYPE_CHECKING:
    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.resources import CacheLayout
    from unified_tree.controllers.pools import DevicePool


class SequenceRows:
    """Reads and writes of one lease's pages. A row is what one slot of a page holds in one layer and part.

    Args:
        lease: whose tables say where; read anew at each call, since a commit or an arrived load changes them.
        pools: device pools by component.
        layout: of the cache.

    Attributes:
        buffers: state that has no page because it is empty at every page's end: rows that have not filled a compressed entry.
    """

    def __init__(self, lease: Lease, pools: Mapping[str, DevicePool], layout: CacheLayout) -> None:
        self.lease = lease
        self.pools = pools
        self.layout = layout
        self.page_size = layout.page_size
        self.buffers: dict[Hashable, torch.Tensor] = {}
        points = [c.name for c in layout.components if c.coverage.is_exact]
        self._states = {name: set(pools[name].format.layer_ids) for name in points}
        """The layers of each state; one page holds all states of a boundary."""
        self._copies_due = {name: set(layers) for name, layers in self._states.items()}

    def read(self, component: str, layer_id: int, part: str, first_token: int, last_token: int) -> torch.Tensor:
        """The rows of the slots that end in the tokens (first_token, last_token]: a copy, [slot, *shape].

        Raises LeaseError where the lease holds no page.
        """
        return self.pools[component].slots(layer_id, part)[self._slots(component, first_token, last_token)]

    def write(self, component: str, layer_id: int, part: str, first_token: int, rows: torch.Tensor) -> None:
        """Write rows from `first_token`'s on. Those before the lease's `write_from` are discarded: their pages are others'
        too, or are not exact yet.
        """
        ratio = self._tokens_per_slot(component)
        skipped = max(0, self.lease.write_from[component] // ratio - first_token // ratio)
        rows = rows[skipped:]
        first_token += skipped * ratio
        if len(rows):
            slots = self._slots(component, first_token, (first_token // ratio + len(rows)) * ratio)
            self.pools[component].slots(layer_id, part)[slots] = rows

    def kept_until(self, component: str) -> int:
        """The first token whose state is this sequence's to write."""
        return self.lease.write_from[component]

    @property
    def window_from(self) -> int:
        """The first token whose windows can be read: of a rebuild, the one it starts at."""
        return self.lease.compute_from if self.lease.rebuilt_tokens else 0

    def read_page(self, component: str, layer_id: int, part: str, page: int) -> torch.Tensor:
        """The one row of a component that keeps a state a page, by page index: a copy."""
        return self.pools[component].tensor(layer_id, part)[self._page(component, page), 0].clone()

    def write_page(self, component: str, layer_id: int, part: str, page: int, row: torch.Tensor) -> None:
        """Write the one row of a component that keeps a state a page."""
        if (page + 1) * self.page_size > self.lease.write_from[component]:
            self.pools[component].tensor(layer_id, part)[self._page(component, page), 0] = row

    def read_state(self, component: str, layer_id: int, part: str) -> torch.Tensor:
        """The running state: a copy, since models change states in place."""
        return self.pools[component].tensor(layer_id, part)[self._state_page(), 0].clone()

    def write_state(self, component: str, layer_id: int, part: str, row: torch.Tensor) -> None:
        """Write the running state, into the lease's own page."""
        self.pools[component].tensor(layer_id, part)[self._state_page(), 0] = row

    def copy_cached_state(self, layer_id: int) -> None:
        """Make the copies that the lease asks for before its first run, of one layer. Once; later calls do nothing."""
        for copy in self.lease.state_copies:
            for component, due in self._copies_due.items():
                if layer_id in due:
                    due.remove(layer_id)
                    self._copy_state(component, layer_id, copy.source, copy.target)

    def save_state(self, page: int) -> None:
        """Copy the running state into another page, in every layer."""
        for component, layer_ids in self._states.items():
            for layer_id in layer_ids:
                self._copy_state(component, layer_id, self._state_page(), page)

    def _copy_state(self, component: str, layer_id: int, source: int, target: int) -> None:
        pool = self.pools[component]
        for part in pool.format.parts:
            states = pool.tensor(layer_id, part.name)
            states[target] = states[source]

    def _state_page(self) -> int:
        if self.lease.state_page is None:
            raise LeaseError(f"{self.lease} has no page for a running state")
        return self.lease.state_page

    def _page(self, component: str, page: int) -> int:
        found = self.lease.page(component, page)
        if found < 0:
            raise LeaseError(f"{self.lease} holds no page {page} of {component}")
        return found

    def _tokens_per_slot(self, component: str) -> int:
        return self.page_size // self.pools[component].format.slots_per_page

    def _slots(self, component: str, first_token: int, last_token: int) -> torch.Tensor:
        ratio = self._tokens_per_slot(component)
        per_page = self.page_size // ratio
        slots = np.arange(first_token // ratio, last_token // ratio)
        first_page = first_token // self.page_size
        table = self.lease.pages(component, first_page)
        if slots.size and slots[-1] // per_page - first_page >= table.size:
            raise LeaseError(f"{self.lease} has no pages of {component} for {last_token} tokens")
        pages = table[slots // per_page - first_page]
        if (pages < 0).any():
            raise LeaseError(f"{self.lease} holds no {component} for some of the tokens [{first_token}, {last_token})")
        return torch.from_numpy(pages * per_page + slots % per_page)
