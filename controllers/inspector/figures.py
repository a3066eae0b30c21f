"""The figures of a cache: what its pools hold, what it has counted, and the causes of misses."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.cache.stats import TOTALS, PolicyStats
from unified_tree.controllers.doctor.figures import kind_of, label_of, printable_sums
from unified_tree.controllers.pages.tier_pages import total_pages
from unified_tree.inputs.printable import printable
from unified_tree.memory.ages import BOUNDS_S
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.controllers.inspector.inspected import Inspected
    from unified_tree.state.tree_state import TreeState
    from unified_tree.tree import UnifiedTree


def is_in_pages(tree: UnifiedTree) -> bool:
    """Whether sizes are shown in pages, because no component says how many bytes its pages have."""
    return not any(component.page_bytes for component in tree.components)


def page_bytes(tree: UnifiedTree) -> dict[str, int]:
    """How large a page of each component is shown, in bytes, or in pages."""
    in_pages = is_in_pages(tree)
    return {component.name: 1 if in_pages else component.page_bytes for component in tree.components}


class PageSizes:
    """The sizes of one tree's pages."""

    def __init__(self, tree: UnifiedTree) -> None:
        self._page_tokens = {
            component.name: tree.page_size if component.coverage.is_path else 0 for component in tree.components
        }
        self._page_bytes = page_bytes(tree)

    def of(self, counts: Mapping[str, int]) -> tuple[int, int, int]:
        """How many tokens, pages and bytes so many pages by component are; the tokens are those of which a path has pages."""
        tokens = max((count * self._page_tokens[name] for name, count in counts.items()), default=0)
        return tokens, sum(counts.values()), sum(count * self._page_bytes[name] for name, count in counts.items())


POOL_FIELDS = (
    "component", "tier", "total", "used", "tree", "protected", "stranded", "copied", "loading", "page_bytes", "victims"
)  # fmt: skip


def description(cache: Inspected) -> dict[str, Any]:
    """What a cache is made of, which does not change."""
    tree, sizes = cache.tree, page_bytes(cache.tree)
    return {
        "page_size": tree.page_size,
        "save_grid_tokens": tree.state.layout.save_grid_tokens,
        "ghost_bytes": tree.state.settings.ghost_bytes,
        "has_host": cache.controller is not None,
        "remembers": cache.ledger.is_on,
        "in_pages": is_in_pages(tree),
        "components": [
            {
                "name": component.name,
                "coverage": repr(component.coverage),
                "kind": kind_of(component.coverage),
                "page_bytes": sizes[component.name],
                "shares": component.shares,
                "required": component.required,
            }
            for component in tree.components
        ],
    }


def figures(cache: Inspected) -> dict[str, Any]:
    """The totals since the cache was made, and its pools now. Cost: O(components)."""
    counters, ledger, rows, ghosts = cache.counters, cache.ledger, pools(cache), cache.tree.state.ghosts
    shown: dict[str, Any] = {
        "clock": cache.tree.state.clock,
        "nodes": cache.tree.node_count,
        "leases": cache.lease_count,
        "totals": {name: getattr(counters, name) for name in TOTALS},
        "drops": counters.drops,
        "transfers": {
            kind.name.lower(): [moved.count, moved.pages, moved.size_bytes] for kind, moved in counters.transfers.items()
        },
        "pools": rows,
        "misses": ledger.tokens,
        "namespace_count": 0 if ghosts is None else ghosts.root_count,
        "evicted": [[component, int(tier), tokens] for (component, tier), tokens in ledger.evicted.items()],
        "short_by": [[component, int(tier), tokens] for (component, tier), tokens in ledger.short_by.items()],
        "beneficiaries": printable_sums(ledger.beneficiaries),
        "of_namespaces": [
            [label_of(cause, detail), printable(name), tokens] for (cause, detail, name), tokens in ledger.namespaces.items()
        ],
        "details": [[int(cause), printable(detail), tokens] for (cause, detail), tokens in ledger.details.items()],
    }
    ages = cache.tree.state.ages
    if ages is not None:
        index = cache.tree.state.layout.index
        measured = [(index[row[0]], row[1], ages.of(index[row[0]], row[1])) for row in rows]
        shown["ages"] = {
            "edges_s": [*BOUNDS_S, 2 * BOUNDS_S[-1]],
            "pools": [
                {"component": i, "tier": int(tier), "hit": pool.reuse_gap.counts, "evicted": pool.idle.counts}
                for i, tier, pool in measured
            ],
        }
    policy = PolicyStats.of(cache.tree)
    shown["policy"] = {
        "name": printable(policy.name),
        "figures": {name: value for name, value in policy.figures.items() if isfinite(value)},
        "failures": policy.failures,
        "last_failure": None if policy.last_failure is None else printable(policy.last_failure, 1000),
    }
    if cache.storage is not None:
        stored = cache.storage.stats()
        shown["storage"] = {
            "quarantined": dict(stored.quarantined),
            "faults": dict(stored.faults),
            "freed_bytes": stored.freed_bytes,
            "errors": stored.errors,
            "last_error": None if stored.last_error is None else printable(stored.last_error, 1000),
            "is_degraded": stored.is_degraded,
        }
    return shown


def ages_of_uses(state: TreeState) -> list[list[float]]:
    """How long ago some operations of the tree were, in seconds, as [operation, age], the last first.

    From the last one backwards the steps grow, so the others can be told from these to a tenth. Empty if no ages are
    measured. Cost: O(log operations).
    """
    ages = state.ages
    if ages is None:
        return []
    shown: list[list[float]] = []
    back = 0
    while back <= state.clock:
        stamp = state.clock - back
        shown.append([stamp, round(state.now_s - ages.time_of(stamp), 4)])
        back = max(back + 1, back * 11 // 10)
    return shown


def pools(cache: Inspected) -> list[list[Any]]:
    """One row a pool, of POOL_FIELDS; the device pages of a component count those that share them."""
    tree, controller, sizes = cache.tree, cache.controller, page_bytes(cache.tree)
    tiers = [(Tier.DEVICE, cache.device.allocators)]
    if controller is not None:
        tiers.append((Tier.HOST, controller.host.allocators))
    rows = []
    for tier, allocators in tiers:
        for name, allocator in allocators.items():
            pool = tree.pool(name, tier)
            size_bytes = sizes[name]
            if tier is Tier.DEVICE:
                size_bytes += sum(c.page_bytes for c in tree.components if c.shares == name)
            rows.append(
                [
                    name,
                    tier,
                    total_pages(allocator),
                    allocator.used_pages,
                    pool.used_pages,
                    pool.protected_pages,
                    pool.stranded_pages,
                    pool.copied_pages,
                    pool.ledger.in_flight_pages,
                    size_bytes,
                    cache.counters.victims.get((tier, name), 0),
                ]
            )
    return rows
