"""The counters of a cache. A total counts up from zero, and is declared once, with its meaning, for statistics, metrics and
tapes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.counters.observers import OBSERVER_FAILED, Observers
from unified_tree.controllers.counters.transfer_counters import TransferCounters
from unified_tree.inputs.printable import printable, traceback_of
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from unified_tree.terms.results import EvictResult

LOG = logging.getLogger("unified_tree.cache")
MAX_REASONS = 64
OTHER_REASONS = "(others)"
WHAT = "what"


def total(what: str) -> Any:
    """A dataclass field that counts; `what` is the help text of its metric."""
    return field(default=0, metadata={WHAT: what})


def totals_of(kind: type[Any]) -> Mapping[str, str]:
    """The totals of a dataclass, by name, and what they count."""
    return {each.name: each.metadata[WHAT] for each in fields(kind) if WHAT in each.metadata}


@dataclass(slots=True, kw_only=True)
class CacheTotals:
    """The totals that a cache counts, and that `CacheStats` and its metrics show as they are."""

    requests: int = total("leases acquired")
    prompt_tokens: int = total("prompt tokens of those leases")
    hit_tokens: int = total("prompt tokens not computed again, less those whose load failed")
    host_hit_tokens: int = total("prompt tokens loaded back from host by loads that have ended, or whose request has")
    storage_hit_tokens: int = total("prompt tokens loaded back that had been prefetched for the request")
    arriving_tokens: int = total("prompt tokens whose state was to arrive from another server")
    rebuilt_tokens: int = total("cached tokens run again to rebuild windows")
    evictions: int = total("values evicted from device")
    tombstones: int = total("evicted values whose node stayed")
    deleted_nodes: int = total("nodes that left the tree, and leaves that lost their end")
    lost: int = total("evicted values that boundaries needed and that had no copy")
    duplicate_pages: int = total("pages freed at commit because the tree had their tokens")
    refused: int = total("calls that raised OutOfPagesError")
    loads: int = total("load backs started")
    ended_sessions: int = total("sessions that have ended, or were unused for longest when too many were open")


@dataclass(slots=True, kw_only=True)
class CacheCounters(CacheTotals):
    """The counters of a cache; see CacheStats.

    Attributes:
        load_hit_tokens: of the hit tokens those that were to be loaded back.
        tenant_hints: the hints by group of namespaces, by its index; empty without tenants.
        observers: are told of all that is counted, and of what a cache does besides.
    """

    load_hit_tokens: int = 0
    load_wait_ns: int = 0
    transfers: dict[EffectKind, TransferCounters] = field(init=False)
    drops: dict[str, int] = field(default_factory=dict)
    hints: dict[tuple[str, str], int] = field(default_factory=dict)
    tenant_hints: dict[int, dict[tuple[str, str], int]] = field(default_factory=dict)
    hit_tokens_without: dict[str, int] = field(default_factory=dict)
    victims: dict[tuple[Tier, str], int] = field(default_factory=dict)
    evicted_device_pages: dict[str, int] = field(default_factory=dict)
    observers: Observers = field(init=False)

    def __post_init__(self) -> None:
        self.observers = Observers(lambda: self.count_drop(OBSERVER_FAILED))
        self.transfers = {kind: TransferCounters(self.tell) for kind in EffectKind}

    def evicted(self, tier: Tier, name: str, result: EvictResult) -> None:
        """Count an eviction for one pool of a tier."""
        self.victims[tier, name] = self.victims.get((tier, name), 0) + result.victims
        self.deleted_nodes += result.deleted_nodes
        for freed, pages in (result.freed if tier is Tier.DEVICE else result.freed_elsewhere).items():
            self.evicted_device_pages[freed] = self.evicted_device_pages.get(freed, 0) + pages.size
        if tier is Tier.DEVICE:
            self.evictions += result.victims
            self.tombstones += result.tombstones
            self.lost += result.lost
        if self.observers.all:
            self.observers.tell("evicted", tier, name, result)

    def resumed_without(self, components: list[str], hit_tokens: int) -> None:
        """Count a hit that lacked optional components."""
        for name in components:
            self.hit_tokens_without[name] = self.hit_tokens_without.get(name, 0) + hit_tokens

    def tell(self, call: Callable[..., object], *arguments: object) -> None:
        """Tell an observer of pages or transfers what was done. Its errors end no step: each is counted as a drop, and
        logged with its traceback the 1st, 2nd, 4th, 8th … time.
        """
        try:
            call(*arguments)
        except Exception as error:  # foreign code in the middle of a call that is done
            self.count_drop(OBSERVER_FAILED)
            count = self.drops[OBSERVER_FAILED]
            if count & (count - 1) == 0:
                LOG.error("an observer failed: %s: %s", call, traceback_of(error))

    def count_drop(self, reason: str) -> None:
        """Count and log an operation that was dropped or failed. Of reasons that others word, the first MAX_REASONS are told
        apart.
        """
        if reason not in self.drops:
            reason = printable(reason) if len(self.drops) < MAX_REASONS else OTHER_REASONS
        count = self.drops.get(reason, 0) + 1
        self.drops[reason] = count
        if count & (count - 1) == 0:  # the 1st, 2nd, 4th, 8th …: what repeats each step does not fill a log
            LOG.info("%s (%d so far)", reason, count)
