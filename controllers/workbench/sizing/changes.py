"""What a change of memory would bring, by the model of a cache: for a report that has replayed one size alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.pools import propose_page_counts
from unified_tree.controllers.workbench.report.answers import MORE, Change, more_device
from unified_tree.controllers.workbench.runs.budget_split import split_for_server
from unified_tree.controllers.workbench.sizing.curve import GIB
from unified_tree.controllers.workbench.sizing.needs import Needs
from unified_tree.controllers.workbench.sizing.sample import Sample
from unified_tree.controllers.workbench.sizing.size_report import pages_text
from unified_tree.controllers.workbench.sizing.sizes import best_split
from unified_tree.controllers.workbench.sizing.surface import Surface, survey
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unified_tree.controllers.workbench.runs.plan import Plan

PATH_SHARES = (0.75, 1.0, 1.25)
"""Of the present paths, for other splits of the same device."""
MOST_REQUESTS = 20_000
"""Of a larger workload a sample of about so many is gone over."""
LEAST_SPLIT_GAIN = 0.01
"""The model is up to a point off: less is no reason for another split."""
HOST_RATIO = 4
"""A host tier that is weighed has so many times the device's memory."""


class Changes:
    """The model's passes over a plan's workload, and what they say.

    Args:
        plan: what is replayed. The model knows neither stores nor linkers.
        page_counts: the device's pages by pool.

    Attributes:
        pass_count: how many passes there are to make.
        split: the split of the device that hits most, once looked at; None for no better one than the present one.
    """

    def __init__(self, plan: Plan, page_counts: Mapping[str, int]) -> None:
        self._plan = plan
        self._page_counts = page_counts
        self._needs = Needs.of(plan.composition.components, plan.composition.page_size, plan.settings.chunk_tokens)
        self._more = _split(plan, MORE)
        self._host = _host_pages(plan)
        self._sizes = self._path_sizes() if plan.storage is None and plan.linker is None else []
        self.split: dict[str, int] | None = None

    @property
    def pass_count(self) -> int:
        """See above. Cost of a pass: about a tenth of a replay."""
        return len(self._sizes)

    def _path_sizes(self) -> list[int]:
        page, present = self._needs.page_tokens, self._needs.path_tokens(self._page_counts)
        if present is None:
            return []
        shares = PATH_SHARES if self._needs.is_gated else (1.0,)
        sizes = {max(page, int(share * present) // page * page) for share in shares}
        sizes |= {tokens for counts in (self._more, self._host) if counts and (tokens := self._needs.path_tokens(counts))}
        return sorted(sizes)

    def look(self, jobs: int, progress: Callable[[], None]) -> list[Change]:
        """Make the passes, and say what more memory and another split would bring under `lru`."""
        if not self._sizes:
            return []
        plan = self._plan
        sample = Sample.of(plan.workload, MOST_REQUESTS / len(plan.workload.requests))
        surface = survey(sample, self._needs, plan.settings, self._sizes, jobs, progress)
        present = self._rate(surface, self._page_counts)
        changes = []
        if self._more is not None:
            gain = self._rate(surface, self._more) - present
            changes.append(Change(what=more_device(plan.device_bytes), gain=gain, is_modelled=True))
        if self._host is not None:
            gain = self._rate(surface, self._page_counts, self._host) - present
            what = f"{HOST_RATIO * plan.device_bytes / GIB:.4g} GiB of host memory behind it (--host-gib)"
            changes.append(Change(what=what, gain=gain, is_modelled=True))
        best = best_split(surface, plan.device_bytes, plan.settings.concurrency)
        if best is not None and self._needs.is_gated:
            gain = self._rate(surface, best) - present
            if gain >= LEAST_SPLIT_GAIN:
                self.split = best
                changes.append(Change(what=f"another split, --pages {pages_text(best)}", gain=gain, is_modelled=True))
        return changes

    def _rate(self, surface: Surface, device: Mapping[str, int], host: Mapping[str, int] | None = None) -> float:
        """Under recency the larger tier has all that the smaller one has; what the device rejects hits nothing."""
        behind = host or (None if self._plan.host is None else self._plan.host.page_counts)
        rate = surface.served_hit_rate(device)
        if behind is not None:
            rate = max(rate, surface.served_hit_rate(behind, serves=False))
        return rate * (1.0 - surface.rejected(device).token_share)


def _split(plan: Plan, times: float) -> dict[str, int] | None:
    try:
        return split_for_server(plan.composition, int(plan.device_bytes * times), plan.settings)
    except ConfigurationError:
        return None


def _host_pages(plan: Plan) -> Mapping[str, int] | None:
    """The pages of a host tier that is weighed; None where there is one already."""
    if plan.host is not None:
        return None
    try:
        return propose_page_counts(plan.composition, host_bytes=HOST_RATIO * plan.device_bytes)
    except ConfigurationError:
        return None
