"""Which rows a report has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.replay.budget_split import split_for_server
from unified_tree.controllers.replay.row import RowKind, RowSpec
from unified_tree.errors import ConfigurationError
from unified_tree.policies import policy_factory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unified_tree.controllers.replay.row import Plan

SWEEP_CAPACITIES = (0.25, 0.5, 2.0)
SWEEP_POLICIES = 2


def report_specs(policies: Sequence[str], page_counts: Mapping[str, int]) -> list[RowSpec]:
    """A row a policy and then the references: clairvoyant, unbounded, and path-only under the first of the policies.

    Raises ConfigurationError for an unknown policy.
    """
    for policy in policies:
        policy_factory(policy)
    rows = [RowSpec(kind=RowKind.POLICY, policy=policy, page_counts=page_counts) for policy in dict.fromkeys(policies)]
    references = (RowKind.CLAIRVOYANT, RowKind.UNBOUNDED, RowKind.PATH_ONLY)
    return rows + [RowSpec(kind=kind, policy=policies[0], page_counts=page_counts) for kind in references]


def sweep_specs(policies: Sequence[str], plan: Plan) -> list[RowSpec]:
    """Rows at other device budgets, for the plot: of the cost-aware policy and the first other one, where asked for.

    A budget too small for the composition is left out.
    """
    preferred = sorted(dict.fromkeys(policies), key=lambda policy: policy != "cost")[:SWEEP_POLICIES]
    specs = []
    for capacity in SWEEP_CAPACITIES:
        try:
            page_counts = split_for_server(plan.composition, int(plan.device_bytes * capacity), plan.settings)
        except ConfigurationError:
            continue
        specs += [
            RowSpec(kind=RowKind.POLICY, policy=policy, page_counts=page_counts, capacity=capacity) for policy in preferred
        ]
    return specs
