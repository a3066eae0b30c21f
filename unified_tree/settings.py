"""Every bound of the tree, with its default."""

from __future__ import annotations

from dataclasses import dataclass, fields

from unified_tree.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSettings:
    """Bounds that trade one call's time for another's; none changes which prompts hit. All are integers of one or more.

    Attributes:
        settle_limit: nodes whose marks a call updates beyond those that it changed itself; see `UnifiedTree.settle`.
        evict_reclaim_limit: nodes of invalidated namespaces that an eviction looks at before each victim.
        max_listed_children: children of a node that are only a list; more get a table.
        cost_steps: how many nodes the cost-aware policy goes up to find the boundary (a length one can resume from) before a
            state or window; beyond that it uses the distance so far.
    """

    settle_limit: int = 16
    evict_reclaim_limit: int = 32
    max_listed_children: int = 8
    cost_steps: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            number = getattr(self, field.name)
            if type(number) is not int or number < 1:
                raise ConfigurationError(f"{field.name} must be an integer of one or more, not {number!r}")
