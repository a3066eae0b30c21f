"""One row of the report: which cache it has, and running it."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import TYPE_CHECKING

from unified_tree.controllers.cache.prefix_cache import PrefixCache
from unified_tree.controllers.replay.clairvoyance import Clairvoyance
from unified_tree.controllers.replay.linked_fetches import LinkedFetches
from unified_tree.controllers.replay.prefill_pace import PrefillPace
from unified_tree.controllers.replay.row_figures import row_figures
from unified_tree.controllers.replay.row_tiers import RowTiers, Verification, stand_up
from unified_tree.controllers.replay.server import Server
from unified_tree.controllers.replay.tally import Tally
from unified_tree.controllers.replay.timed_cache import TimedCache
from unified_tree.controllers.replay.verified_pages import VerifiedPages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unified_tree.components import Composition
    from unified_tree.controllers.replay.host_settings import HostSettings
    from unified_tree.controllers.replay.linker_settings import LinkerSettings
    from unified_tree.controllers.replay.row_result import RowResult
    from unified_tree.controllers.replay.server_settings import ServerSettings
    from unified_tree.controllers.replay.storage_settings import StorageSettings
    from unified_tree.controllers.replay.workload import Workload


class RowKind(Enum):
    """What a row is for: a policy under test, or a reference.

    UNBOUNDED never evicts. CLAIRVOYANT evicts with knowledge of the requests to come. PATH_ONLY has the same path pools, and
    windows and states that no match has to wait for, without bounds: what the path pools alone would allow.
    """

    POLICY = "policy"
    UNBOUNDED = "unbounded"
    CLAIRVOYANT = "clairvoyant"
    PATH_ONLY = "path-only"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpec:
    """A row to run.

    Attributes:
        kind: what it is for.
        policy: the eviction policy by name; not read by CLAIRVOYANT.
        page_counts: device pages by component.
        capacity: device budget as a multiple of the one asked for; for the plot.
    """

    kind: RowKind
    policy: str
    page_counts: Mapping[str, int]
    capacity: float = 1.0

    @property
    def label(self) -> str:
        """The row's name in the report."""
        return self.policy if self.kind is RowKind.POLICY else self.kind.value

    @property
    def store_name(self) -> str:
        """What its part of a store goes by, of letters, digits and -; other rows of a report have others."""
        return self.label if self.capacity == 1.0 else f"{self.label}-{round(100 * self.capacity)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all rows have in common: who asks for what, of which model, on how much memory (bytes a rank), how fast.

    Attributes:
        host: the host tier; the unbounded row has none, for nothing leaves its device.
        storage: the store behind the host tier, for the rows that have one.
        linker: the prefix linker beside the cache, for the rows whose device pages have an end.
        verification: whether pages hold bytes that are compared.
    """

    workload: Workload
    composition: Composition
    device_bytes: int
    settings: ServerSettings
    host: HostSettings | None = None
    storage: StorageSettings | None = None
    linker: LinkerSettings | None = None
    verification: Verification = Verification.OFF


def run_row(plan: Plan, spec: RowSpec, progress: Callable[[], None] | None = None) -> RowResult:
    """Replay the plan's workload with the row's cache.

    Raises ConfigurationError for a composition, page counts or a policy that no cache can be made of.
    """
    start_s = perf_counter()
    workload = plan.workload
    clairvoyance = Clairvoyance(workload, plan.composition) if spec.kind is RowKind.CLAIRVOYANT else None
    composition = plan.composition.path_only() if spec.kind is RowKind.PATH_ONLY else plan.composition
    page_counts, tiers = make_tiers(plan, spec, composition)
    with ExitStack() as open_things:
        cache = open_things.enter_context(
            closing(
                PrefixCache(
                    composition.components,
                    composition.page_size,
                    page_counts or None,
                    policy=clairvoyance or spec.policy,
                    host=tiers.host,
                    storage=None if tiers.storage is None else tiers.storage.tier,
                )
            )
        )
        link = None
        if tiers.link is not None:
            open_things.callback(tiers.link.linker.close)  # should the link not come to be
            link = open_things.enter_context(closing(tiers.link.to(cache)))
        if clairvoyance is not None:
            clairvoyance.attach(cache)
        pools = [component.name for component in composition.components if component.shares is None]
        tally = Tally(cache, workload, pools, clairvoyance, progress, plan.settings.step_ms)
        pages = VerifiedPages(cache, tiers.stores) if tiers.stores is not None else None
        timed = TimedCache(cache)
        max_tokens = _max_tokens(composition, spec)
        pace = PrefillPace(plan.settings, composition)
        linked = None
        if link is not None and tiers.link is not None:
            linked = LinkedFetches(link, tiers.link, plan.settings.step_ms)
        server = Server(timed, workload, plan.settings, tally, max_tokens, tiers, pages, pace, linked)
        server.run()
        virtual_s = server.now_s
        if linked is not None:
            linked.finish()
        if tiers.storage is not None:
            timed.polled_ns -= tiers.storage.reading.spent_ns + tiers.storage.writing.spent_ns
            cache.drain()  # a server that stops in good order writes what waits, and a later replay finds it
        wall_s = perf_counter() - start_s
        return row_figures(plan, spec, tally, timed, pages, tiers, link, virtual_s=virtual_s, wall_s=wall_s)


def make_tiers(plan: Plan, spec: RowSpec, composition: Composition) -> tuple[dict[str, int], RowTiers]:
    """The row's device pages by component, and what stands behind its cache."""
    page_counts: dict[str, int] = dict(spec.page_counts)
    host, host_counts = plan.host, dict(plan.host.page_counts) if plan.host is not None else {}
    if spec.kind is RowKind.UNBOUNDED:
        page_counts, host = {}, None
    elif spec.kind is RowKind.PATH_ONLY:
        paths = {c.name for c in plan.composition.components if c.coverage.is_path}
        page_counts = {name: count for name, count in page_counts.items() if name in paths}
        host_counts = {name: count for name, count in host_counts.items() if name in paths}
    tiers = stand_up(
        composition,
        page_counts,
        host,
        host_counts,
        plan.verification,
        plan.storage,
        plan.linker,
        row=spec.store_name,
        workload=plan.workload.name,
    )
    return page_counts, tiers


def path_pools(composition: Composition) -> tuple[str, ...]:
    """The components with pages of their own that every token of a prefix needs."""
    return tuple(c.name for c in composition.components if c.shares is None and c.coverage.is_path)


def _max_tokens(composition: Composition, spec: RowSpec) -> int | None:
    """The longest sequence that the path pools hold; None if they have no end."""
    counts = [spec.page_counts[name] for name in path_pools(composition) if name in spec.page_counts]
    return None if spec.kind is RowKind.UNBOUNDED or not counts else min(counts) * composition.page_size
