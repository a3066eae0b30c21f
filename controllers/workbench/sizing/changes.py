"""The gain of a change of memory, by the model of a cache: for a report that has replayed one size alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from unified_tree.controllers.pools import propose_page_counts
from unified_tree.controllers.workbench.report.report import LEAST_GAIN, MORE, Change, more_device
from unified_tree.controllers.workbench.runs.plan import GIB, fitting_split
from unified_tree.controllers.workbench.sizing.needs import Needs
from unified_tree.controllers.workbench.sizing.sample import Sample
from unified_tree.controllers.workbench.sizing.size_report import pages_text
from unified_tree.controllers.workbench.sizing.sizes import best_split
from unified_tree.controllers.workbench.sizing.surface import Surface, survey
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from unified_tree.controllers.workbench.runs.plan import Plan

    Sizes: TypeAlias = list[tuple[int, Mapping[str, int]]]

PATH_SHARES = (0.75, 1.0, 1.25)
"""Of the present paths, for other splits of the same device."""
MOST_REQUESTS = 20_000
"""Of a larger workload a sample of about so many is gone over."""
LEAST_SPLIT_GAIN = 0.01
"""The model is up to a point off: less is no reason for another split."""
DEVICE_RATIOS, HOST_RATIOS = (MORE, 8), (4, 16, 64)
"""How many times the device's memory is weighed, as its size and as a host tier's: the first ones, and the others where none of
those brings enough."""


class Changes:
    """The model's passes over a plan's workload, and what they say.

    Args:
        plan: what is replayed. The model knows neither stores nor linkers.
        page_counts: the device's pages by pool.

    Attributes:
        split: the split of the device that hits most, once looked at; None for no better one than the present one.
    """

    def __init__(self, plan: Plan, page_counts: Mapping[str, int]) -> None:
        self._plan = plan
        self._page_counts = page_counts
        self._needs = Needs.of(plan.composition.components, plan.composition.page_size, plan.settings.chunk_tokens)
        self._present_tokens = self._needs.path_tokens(page_counts)
        self._is_modelled = plan.storage is None and plan.linker is None and self._present_tokens is not None
        self._sample: Sample | None = None
        self.split: dict[str, int] | None = None

    @property
    def pass_count(self) -> int:
        """How many passes are made first."""
        return len(self._sizes(*self._larger(DEVICE_RATIOS[:1], HOST_RATIOS[:1]), self._shares)) if self._is_modelled else 0

    @property
    def _shares(self) -> tuple[float, ...]:
        return PATH_SHARES if self._needs.is_gated else (1.0,)

    def look(self, jobs: int, progress: Callable[[], None]) -> list[Change]:
        """The gains of more memory and of another split under `lru`, however small. Where no memory of the first sizes
        brings enough, larger ones are looked at, and the smallest of each tier that does is added, or else the largest.

        Cost: up to nine passes of about a tenth of a replay; `progress` is called after each.
        """
        if not self._is_modelled:
            return []
        first, surface = self._weighed(DEVICE_RATIOS[:1], HOST_RATIOS[:1], self._shares, jobs, progress)
        changes = first + self._other_split(surface)
        if any(change.gain >= LEAST_GAIN for change in changes):
            return changes
        larger, _ = self._weighed(DEVICE_RATIOS[1:], HOST_RATIOS[1:], (1.0,), jobs, progress)
        for tier in dict.fromkeys(change.tier for change in larger):
            of_tier = [change for change in larger if change.tier == tier]
            changes.append(next((change for change in of_tier if change.gain >= LEAST_GAIN), of_tier[-1]))
        return changes

    def _weighed(
        self,
        device_ratios: Sequence[int],
        host_ratios: Sequence[int],
        shares: Sequence[float],
        jobs: int,
        progress: Callable[[], None],
    ) -> tuple[list[Change], Surface]:
        """More memory of either tier, ascending, and the surface of these sizes and of the present paths' shares."""
        plan = self._plan
        devices, hosts = self._larger(device_ratios, host_ratios)
        sizes = self._sizes(devices, hosts, shares)
        if self._sample is None:
            self._sample = Sample.of(plan.workload, MOST_REQUESTS / len(plan.workload.requests))
        surface = survey(self._sample, self._needs, plan.settings, sizes, jobs, progress)
        present = self._rate(surface, self._page_counts)
        weighed: list[tuple[str, str, Mapping[str, int], Mapping[str, int] | None]] = [
            ("device", more_device(plan.device_bytes, ratio), counts, None) for ratio, counts in devices
        ]
        for ratio, counts in hosts:
            what = f"{ratio * plan.device_bytes / GIB:,.4g} GiB of host memory behind it (--host-gib)"
            weighed.append(("host", what, self._page_counts, counts))
        changes = [
            Change(what=what, gain=self._rate(surface, device, host) - present, is_modelled=True, tier=tier)
            for tier, what, device, host in weighed
        ]
        return changes, surface

    def _larger(self, device_ratios: Sequence[int], host_ratios: Sequence[int]) -> tuple[Sizes, Sizes]:
        """The pages of larger devices and of host tiers, by how many times the device's memory they are."""
        devices = ((ratio, fitting_split(self._plan, ratio * self._plan.device_bytes)) for ratio in device_ratios)
        hosts = ((ratio, _host_pages(self._plan, ratio)) for ratio in host_ratios)
        return [(ratio, counts) for ratio, counts in devices if counts], [(ratio, counts) for ratio, counts in hosts if counts]

    def _sizes(self, devices: Sizes, hosts: Sizes, shares: Sequence[float]) -> list[int]:
        """The tokens of path to go over the workload with, ascending."""
        page, present = self._needs.page_tokens, self._present_tokens
        assert present is not None
        sizes = {max(page, int(share * present) // page * page) for share in shares}
        sizes |= {tokens for _, counts in (*devices, *hosts) if (tokens := self._needs.path_tokens(counts))}
        return sorted(sizes)

    def _other_split(self, surface: Surface) -> list[Change]:
        if not self._needs.is_gated:
            return []
        plan, host = self._plan, None if self._plan.host is None else self._plan.host.page_counts
        best = best_split(surface, plan.device_bytes, plan.settings.concurrency, [self._page_counts], host)
        assert best is not None  # the present split, if no other
        gain = self._rate(surface, best) - self._rate(surface, self._page_counts)
        if gain < LEAST_SPLIT_GAIN:
            return []
        self.split = best
        return [Change(what=f"another split, --pages {pages_text(best)}", gain=gain, is_modelled=True, is_free=True)]

    def _rate(self, surface: Surface, device: Mapping[str, int], host: Mapping[str, int] | None = None) -> float:
        return surface.hit_rate(device, host or (None if self._plan.host is None else self._plan.host.page_counts))


def _host_pages(plan: Plan, times: float) -> Mapping[str, int] | None:
    """The pages of a host tier that is weighed; None where there is one already."""
    if plan.host is not None:
        return None
    try:
        return propose_page_counts(plan.composition, host_bytes=int(times * plan.device_bytes))
    except ConfigurationError:
        return None
