"""The split of a device's memory that a trace recommends, for pools whose sizes are settled at the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.cli.size_options import MOST_REQUESTS
from unified_tree.controllers.workbench.runs.budget_split import split_for_server
from unified_tree.controllers.workbench.sizing.needs import Needs
from unified_tree.controllers.workbench.sizing.sample import Sample
from unified_tree.controllers.workbench.sizing.sizes import path_sizes, sizes_of
from unified_tree.controllers.workbench.sizing.surface import survey

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.runs.plan import Plan


def learned_split(plan: Plan, *, jobs: int | None = None) -> dict[str, int]:
    """Device pages by pool that hit most of the plan's workload under `lru`: what `unified-tree size` recommends.

    Args:
        jobs: passes at once; None for as many as there are cores.

    Goes over a sample of about `MOST_REQUESTS` requests, whole sessions, some 15 times. Raises ConfigurationError where not
    even one request would fit.
    """
    proposed = split_for_server(plan.composition, plan.device_bytes, plan.settings)
    needs = Needs.of(plan.composition.components, plan.composition.page_size, plan.settings.chunk_tokens)
    sample = Sample.of(plan.workload, MOST_REQUESTS / len(plan.workload.requests))
    surface = survey(sample, needs, plan.settings, path_sizes(plan, needs, proposed), jobs, lambda: None)
    return dict(sizes_of(plan, surface, proposed).recommended.page_counts)
