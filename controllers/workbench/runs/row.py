"""Running one row of the report: the cache it has, the tiers behind it, the server before it, and what came of it.

The tiers are a host tier on a simulated bus, a store behind that or a linker, bytes, or none of it. A row's pages in a store,
or its prefixes behind a linker, are found by replays of the same workload (by its name), model, page size and kind of content
only: block numbers mean something within one workload, and pages without bytes must not be taken for pages with them. A linker
fills device pages itself, so they are tensors here even where nothing is verified, of as few bytes as with --verify.
"""

from __future__ import annotations

import os
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context, parent_process
from multiprocessing.managers import SyncManager
from queue import Empty, Queue
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.cache.prefix_cache import PrefixCache
from unified_tree.controllers.doctor import REJECTED, Figures
from unified_tree.controllers.host.host_tier import HostTier
from unified_tree.controllers.inspector import Inspector
from unified_tree.controllers.pools import HostLayout, check_host_memory
from unified_tree.controllers.pools.host_layout import host_page_bytes
from unified_tree.controllers.prefix_linker import LinkedPrefixes, linked_pools
from unified_tree.controllers.storage import StorageRegistry
from unified_tree.controllers.storage_tier import StorageTier, stored_pools
from unified_tree.controllers.transfer_engines import CpuEngine, NullEngine, VirtualClock
from unified_tree.controllers.workbench.runs.certificate import Situation
from unified_tree.controllers.workbench.runs.clairvoyance import Clairvoyance, PlannedClairvoyance
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowPlan, RowSpec
from unified_tree.controllers.workbench.runs.row_counters import NOT_ADMITTED, RowCounters
from unified_tree.controllers.workbench.runs.row_result import RowResult, StoreTraffic, VerifiedStats
from unified_tree.controllers.workbench.server.fetches import Fetches, LinkFetches, RowLink, RowStorage, StoreFetches
from unified_tree.controllers.workbench.server.paced_transfers import PacedEngine, PacedJobs, PacedLinker
from unified_tree.controllers.workbench.server.page_store import (
    NEEDS_TORCH,
    ChunkedPages,
    MeteredStorage,
    PageStores,
    make_stores,
)
from unified_tree.controllers.workbench.server.server import Server
from unified_tree.controllers.workbench.server.step_clock import PrefillPace, StepClock
from unified_tree.controllers.workbench.server.timed_cache import TimedCache, TracedSessions
from unified_tree.controllers.workbench.server.traffic import Traffic
from unified_tree.controllers.workbench.server.verified_pages import Verification, VerifiedPages
from unified_tree.misses.miss_cause import MissCause
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from unified_tree.components import Composition
    from unified_tree.controllers.pools import DevicePool
    from unified_tree.controllers.storage import StorageEngine, StoredPool
    from unified_tree.controllers.storage_tier import PageMemory
    from unified_tree.controllers.workbench.runs.plan import RowPlan
    from unified_tree.controllers.workbench.server.server_settings import LinkerSettings, StorageSettings
    from unified_tree.declare.tenants import Tenants

    Progress = Callable[[int, int], None]
    Channel = Queue[tuple[int, int]]


PLANS = 2
"""So many plans are followed at most, each made for what was asked the time before. A third adds at most 0.04
points."""
CLOSE = 0.998
"""A replay that hits this share of what is possible needs no other plan."""
SAVES_OF_A_PLAN = 64
"""Places at which a request saves where such a plan says so, at most."""


def run_row(plan: Plan, spec: RowSpec, progress: Callable[[], None] | None = None) -> RowResult:
    """Replay the plan's workload with the row's cache; a clairvoyant one again, by plans for what was asked the first time, and
    the best of these counts.

    Raises ConfigurationError for a composition, page counts or a policy that no cache can be made of.
    """
    if spec.kind is not RowKind.CLAIRVOYANT:
        return _replay(plan, spec, None, progress)[0]
    result, situation = _replay(plan, spec, Clairvoyance(plan.workload, plan.composition), progress)
    if situation is None:
        return result
    for _ in range(PLANS):
        if result.hit_tokens >= CLOSE * situation.most_hit_tokens:
            break
        planned = situation.plan()
        saves = planned.saves(plan.workload)
        following = PlannedClairvoyance(plan.workload, plan.composition, planned, saves)
        again, situation = _replay(replace(plan, workload=saves.with_checkpoints(plan.workload)), spec, following, None)
        assert situation is not None
        result = max(result, again, key=lambda row: row.hit_tokens)
    return result


def _replay(
    plan: Plan, spec: RowSpec, clairvoyance: Clairvoyance | None, progress: Callable[[], None] | None
) -> tuple[RowResult, Situation | None]:
    """One replay, and what it asked of the cache; None where that is not wanted, or with a store or a linker, for nothing
    bounds what they hold.
    """
    start_s = perf_counter()
    workload = plan.workload
    row = RowPlan.of(plan, spec)
    tiers = stand_up(row)
    clock = StepClock(plan.settings, tiers.clock)
    with ExitStack() as open_things:
        tenants = None if clairvoyance is not None else _tenants(plan, spec)
        cache = open_things.enter_context(closing(_cache(row, tiers, clairvoyance or spec.policy, clock, tenants)))
        link = None
        if tiers.link is not None:
            open_things.callback(tiers.link.linker.close)  # should the link not come to be
            link = open_things.enter_context(closing(tiers.link.to(cache)))
        inspector = None
        if spec.recording is not None:
            try:
                inspector = Inspector.record(cache, spec.recording, time_s=lambda: clock.now_s)
            except OSError as error:
                raise ConfigurationError(f"{spec.recording}: cannot be written: {error.strerror or error}") from error
            open_things.enter_context(inspector)
            progress = _followed(inspector, progress)
        counters = RowCounters(cache, workload, clairvoyance, progress, plan.settings.step_ms, is_linked=link is not None)
        pages = VerifiedPages(cache, tiers.stores) if tiers.stores is not None else None
        sessions = TracedSessions(workload) if plan.settings.names_sessions else None
        timed = TimedCache(cache, pages, row.max_tokens, counters.look_at_held, row.tokens_in, sessions, packs=row.packs)
        fetches = _fetches(clock, timed, tiers, link)
        traffic = Traffic(timed, clock, tiers.engine, fetches)
        Server(timed, workload, plan.settings, counters, traffic, PrefillPace(plan.settings, row.composition)).run()
        virtual_s = clock.now_s
        fetches.finish()
        if tiers.storage is not None:
            timed.polled.ns -= tiers.storage.reading.spent_ns + tiers.storage.writing.spent_ns
            cache.drain()  # a server that stops in good order writes what waits, and a later replay finds it
        wall_s = perf_counter() - start_s
        if inspector is not None:
            inspector.record_tree()
            if inspector.failure is not None:
                raise ConfigurationError(f"{spec.recording}: cannot be written: {inspector.failure}")
        counters.look_at_pools()
        served = counters.requests[counters.requests["is_served"]]
        turned_away = counters.requests[~counters.requests["is_served"]]
        rejected_tokens = int(turned_away["prompt_tokens"].sum())
        missed = dict(zip([cause.label for cause in MissCause], served["miss_tokens"].sum(axis=0).tolist(), strict=True))
        page_size = row.composition.page_size  # all but the last tokens, for a store may have them from before
        ceiling_tokens = int(((served["prompt_tokens"] - 1) // page_size).sum()) * page_size
        situation = None
        if (spec.is_bounded or clairvoyance is not None) and row.storage is None and row.linker is None:
            situation = Situation(workload, counters, row, certify=plan.certify)
            ceiling_tokens = situation.repeated_tokens
        result = RowResult(
            policy=spec.label,
            is_path_only=spec.is_path_only,
            capacity=spec.capacity,
            device_bytes=plan.device_bytes,
            served=served,
            turned_away=turned_away,
            preempted=counters.preempted_count,
            miss_tokens=missed | ({REJECTED: rejected_tokens} if rejected_tokens else {}),
            figures=Figures.of(cache, spec.label).with_rejected(
                turned_away[turned_away["admission"] == NOT_ADMITTED]["prompt_tokens"].tolist()
            ),
            prefill_flops=_flops(plan.composition, served["prompt_tokens"]),
            prefill_flops_saved=_flops(plan.composition, served["hit_tokens"]),
            cache=cache.stats(),
            peak_pages=counters.peak_pages,
            peak_host_pages=counters.peak_host_pages,
            residency=counters.residency(),
            polled_ns=timed.polled.ns,
            virtual_s=virtual_s,
            wall_s=wall_s,
            ceiling_tokens=ceiling_tokens,
            traffic=_store_traffic(tiers),
            link=None if link is None else link.counters,
            has_latency=plan.settings.prefill_flops_per_s is not None,
            optimum_high_tokens=None if situation is None else situation.most_hit_tokens,
            verified=None if pages is None else VerifiedStats(checked_bytes=pages.checked_bytes, wrong_bytes=pages.wrong_bytes),
        )
        return result, situation


def _flops(composition: Composition, lengths: NDArray[np.int64]) -> float | None:
    """FLOPs of so long prompts; None where the model states none."""
    if not composition.states_flops:
        return None
    each, counts = np.unique(lengths, return_counts=True)
    flops: float = sum(
        count * composition.prefill_flops(0, tokens) for tokens, count in zip(each.tolist(), counts.tolist(), strict=True)
    )
    return flops


def _tenants(plan: Plan, spec: RowSpec) -> Tenants | None:
    tenants = plan.tenants
    if tenants is None or not spec.is_apart:
        return tenants
    return replace(tenants, groups=tuple(replace(group, shares=False) for group in tenants.groups), share_after=None)


def _cache(row: RowPlan, tiers: RowTiers, policy: str | Clairvoyance, clock: StepClock, tenants: Tenants | None) -> PrefixCache:
    """The row's cache. Its policy remembers as much as a server's does, and its causes all."""
    more: dict[str, Any] = {"save_limit": SAVES_OF_A_PLAN} if isinstance(policy, PlannedClairvoyance) else {}
    cache = PrefixCache(
        row.composition.components,
        row.composition.page_size,
        None if row.budget is not None else row.page_counts or None,
        budget=row.budget,
        policy=policy,
        host=tiers.host,
        storage=None if tiers.storage is None else tiers.storage.tier,
        time_s=lambda: clock.now_s,
        tenants=tenants,
        **more,
    )
    if cache.tree.state.ghosts is not None:
        cache.tree.state.ghosts.for_replay(packed=row.packs)
    return cache


def _followed(inspector: Inspector, progress: Callable[[], None] | None) -> Callable[[], None]:
    """A cache without a host tier is not polled: its inspector is driven by the ends of requests."""

    def ended() -> None:
        inspector.step()
        if progress is not None:
            progress()

    return ended


def _fetches(clock: StepClock, cache: TimedCache, tiers: RowTiers, link: LinkedPrefixes | None) -> Fetches:
    if link is not None and tiers.link is not None:
        return LinkFetches(clock, link, tiers.link)
    return Fetches(clock) if tiers.storage is None else StoreFetches(clock, cache, tiers.storage)


def _store_traffic(tiers: RowTiers) -> StoreTraffic | None:
    if tiers.link is not None:
        return StoreTraffic(read_bytes=tiers.link.linker.retrieved_bytes, written_bytes=tiers.link.linker.stored_bytes)
    if tiers.storage is not None:
        return StoreTraffic(read_bytes=tiers.storage.meter.read_bytes, written_bytes=tiers.storage.meter.written_bytes)
    return None


REPORT_EVERY = 64
POLL_S = 0.1


def run_rows(plan: Plan, specs: Sequence[RowSpec], jobs: int, progress: Progress) -> list[RowResult]:
    """Run the rows, in this process or in at most `jobs` others; the results come in the order of `specs`.

    Args:
        progress: called with a row's number and how many of its requests ended since the last call.

    Raises what a row raises.
    """
    if jobs <= 1 or len(specs) <= 1:
        return [_run(plan, spec, partial(progress, i)) for i, spec in enumerate(specs)]
    context = get_context("spawn")  # a fork would inherit the threads of whoever draws the progress
    workers = min(jobs, len(specs))
    manager = SyncManager(ctx=context)
    manager.start(_end_with_parent)
    with manager, ProcessPoolExecutor(workers, context, initializer=_end_with_parent) as executor:
        channel: Channel = manager.Queue()
        futures = [executor.submit(_run_in_worker, plan, spec, i, channel) for i, spec in enumerate(specs)]
        pending = set(futures)
        try:
            while pending:
                finished, pending = wait(pending, POLL_S, FIRST_COMPLETED)
                _drain(channel, progress)
                for future in finished:
                    future.result()
        finally:
            executor.shutdown(cancel_futures=True)  # after a row that raised, the others are not begun
        _drain(channel, progress)
        return [future.result() for future in futures]


def _run(plan: Plan, spec: RowSpec, report: Callable[[int], None]) -> RowResult:
    """Run a row. Of 64 ended requests the count is reported: a message for each would cost more than the request."""
    ended = 0

    def progress() -> None:
        nonlocal ended
        ended += 1
        if ended % REPORT_EVERY == 0:
            report(REPORT_EVERY)

    result = run_row(plan, spec, progress)
    report(ended % REPORT_EVERY)
    return result


def _run_in_worker(plan: Plan, spec: RowSpec, number: int, channel: Channel) -> RowResult:
    return _run(plan, spec, lambda count: channel.put((number, count)))


def _end_with_parent() -> None:
    """Have this process end when its parent does, which may have been killed."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _drain(channel: Channel, progress: Progress) -> None:
    with suppress(Empty):
        while True:
            progress(*channel.get_nowait())


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTiers:
    """A host tier, what paces it, where bytes lie, a store, and a linker; each None where there is none. They share a clock."""

    clock: VirtualClock
    host: HostTier | None = None
    engine: PacedEngine | None = None
    stores: PageStores | None = None
    storage: RowStorage | None = None
    link: RowLink | None = None


def check_tiers(row: RowPlan, rows_at_once: int) -> None:
    """Find out before the replay whether the tiers of rows like this one can be made.

    Raises ConfigurationError for too little memory, or without torch where that is needed; the rest as `stand_up` and
    `RowLink.to`.
    """
    if row.verification is not Verification.OFF or row.linker is not None:
        _check_room(row, rows_at_once)
    if row.linker is not None:
        tiers = stand_up(replace(row, host=None, storage=None))
        assert tiers.link is not None
        with closing(tiers.link.linker):
            tiers.link.to(PrefixCache(row.composition.components, row.composition.page_size, row.page_counts))
    if row.storage is not None:
        open_engine(row, row.storage, VirtualClock())[0].close()


def _check_room(row: RowPlan, rows_at_once: int) -> None:
    if (row.host is not None or row.linker is not None) and find_spec("torch") is None:
        raise ConfigurationError(NEEDS_TORCH)
    size_bytes, moved_bytes = 0, row.moved_bytes
    for component in row.composition.components:
        page_bytes = moved_bytes[component.name]
        size_bytes += row.page_counts[component.shares or component.name] * page_bytes
        size_bytes += row.host.page_counts[component.name] * host_page_bytes(page_bytes) if row.host is not None else 0
    check_host_memory(size_bytes * rows_at_once, component=f"the pages of {rows_at_once} verified rows at once")


def stand_up(row: RowPlan) -> RowTiers:
    """Make what a row's cache stands on. The simulated bus counts true page sizes, whatever the bytes that really move.

    Raises ConfigurationError as `make_stores`, and both it and StorageError as the store.
    """
    stores, link, clock = None, None, VirtualClock()
    host, linker = row.host, row.linker
    if row.verification is not Verification.OFF or linker is not None:
        stores = make_stores(
            row.moved_bytes,
            {c.name: row.page_counts.get(c.shares or c.name) for c in row.composition.components},
            None if host is None else {c.name: host.page_counts.get(c.name) for c in row.composition.components},
            None if linker is None else linker.prepare,
        )
        link = None if linker is None else open_link(row, linker, stores.pools, clock)
    if row.verification is Verification.OFF:
        stores = None  # what the linker moves is nobody's to see
    if host is None:
        return RowTiers(clock=clock, stores=stores, link=link)
    inner = NullEngine() if stores is None else CpuEngine(stores.movers)
    engine = PacedEngine(inner, clock, host.load_cost, row.true_bytes, None if stores is None else stores.blank)
    storage = None
    if row.storage is not None:
        memory = {name: ChunkedPages(size) for name, size in row.moved_bytes.items()} if stores is None else stores.memory
        storage = open_storage(row, row.storage, memory, clock)
    tier = HostTier(
        page_counts={} if row.host_budget is not None else dict(host.page_counts),
        budget=row.host_budget,
        engine=engine,
        write_policy=host.write_policy,
        load_cost=host.load_cost,
    )
    return RowTiers(clock=clock, host=tier, engine=engine, stores=stores, storage=storage, link=link)


def open_link(row: RowPlan, settings: LinkerSettings, pools: Mapping[str, DevicePool], clock: VirtualClock) -> RowLink:
    """Open a row's linker over device pages by component; those of a daemon are in memory that it can map.

    Raises ConfigurationError for components that cannot be carried, and both it and LinkError as the linker.
    """
    linked = linked_pools(row.moved_composition, pools, paths_only=not settings.is_daemon)
    linker = settings.open(linked, row.composition.name)
    wait_s = settings.prefetch.patience_s(0)
    paced = PacedLinker(linker, clock, settings.cost, row.true_bytes, row.composition.page_size)

    def link_to(cache: PrefixCache) -> LinkedPrefixes:
        weights_version = f"{row.name} of {row.workload}"
        return LinkedPrefixes(
            cache, paced, linked, weights_version=weights_version, wait_s=wait_s, clock=lambda: clock.now / 1e9
        )

    return RowLink(linker=paced, to=link_to, wait_s=wait_s)


def open_storage(row: RowPlan, settings: StorageSettings, memory: Mapping[str, PageMemory], clock: VirtualClock) -> RowStorage:
    """Open a row's part of the store, over host pages by component. Raises what the engine raises."""
    engine, pools = open_engine(row, settings, clock)
    meter = MeteredStorage(engine, row.true_bytes)
    reading, writing = (PacedJobs(clock, meter, settings.cost) for _ in range(2))
    tier = StorageTier(
        engine=meter,
        pools={pool.name: pool for pool in pools if pool.name in row.true_bytes},
        memory=memory,
        weights_version=f"{row.name} of {row.workload}",
        prefetch=settings.prefetch,
        reading=reading,
        writing=writing,
        clock=lambda: clock.now / 1e9,
    )
    return RowStorage(tier=tier, meter=meter, reading=reading, writing=writing)


def open_engine(row: RowPlan, settings: StorageSettings, clock: VirtualClock) -> tuple[StorageEngine, list[StoredPool]]:
    """The engine of a row's part of the store, and the pools it was opened for. Raises as `open_storage`."""
    pools = stored_pools(row.moved_composition, layout=HostLayout.PAGE_FIRST_DIRECT)
    return StorageRegistry().open(settings.engine, pools, **settings.row_options(row.name, pools, clock)), pools
