"""The report's columns: every figure of a row with its key, heading, form, derivation and meaning, table by table.

This is the only place that reads the figures of the cache, its tiers and its linker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.workbench.runs.row_result import LATENCY_PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from unified_tree.controllers.prefix_linker.prefix_linker import LinkCounters
    from unified_tree.controllers.storage_tier.storage_tier_stats import StorageTierStats
    from unified_tree.controllers.workbench.runs.row_result import RowResult, StoreTraffic, VerifiedStats

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Column:
    """One figure.

    Attributes:
        key: its name in JSON and CSV; empty for one that only the table has.
        heading: in the table, on one line; empty for one that only the files have.
        text: the figure as the table shows it.
        value: the figure of a row, a JSON value.
        meaning: for the reader, with the unit.
        applies: whether a row has such a figure.
    """

    key: str
    heading: str
    text: Callable[[Any], str]
    value: Callable[[RowResult], Any]
    meaning: str
    applies: Callable[[RowResult], bool] = lambda _: True

    def columns(self, rows: Sequence[RowResult]) -> list[Column]:
        """This column, if any of the rows has such a figure."""
        return [self] if any(map(self.applies, rows)) else []


@dataclass(frozen=True, slots=True)
class ColumnFamily:
    """Figures by component, or by reason: a column each.

    Attributes:
        key: before a point and the name; empty as in Column.
        heading: behind the name; None as an empty one in Column.
    """

    key: str
    heading: str | None
    text: Callable[[Any], str]
    values: Callable[[RowResult], Mapping[str, Any]]
    meaning: str

    def columns(self, rows: Sequence[RowResult]) -> list[Column]:
        """A column for each name that any of the rows has."""
        return [self._column(name) for name in dict.fromkeys(name for row in rows for name in self.values(row))]

    def _column(self, name: str) -> Column:
        key = f"{self.key}.{name}" if self.key else ""
        return Column(
            key,
            "" if self.heading is None else f"{name} {self.heading}".strip(),
            self.text,
            lambda row: self.values(row)[name],
            self.meaning,
            lambda row: name in self.values(row),
        )


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the report: a question and its figures.

    Attributes:
        by_figure: whether a line is a figure, with a row of the replay in each column; else the other way round.
    """

    title: str
    columns: tuple[Column | ColumnFamily, ...]
    by_figure: bool = False

    def shown(self, rows: Sequence[RowResult]) -> list[Column]:
        """The columns of the table for these rows."""
        return [column for source in self.columns for column in source.columns(rows) if column.heading]


def only(applies: Callable[[RowResult], bool], columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """These columns, for rows to which they apply."""
    return tuple(replace(column, applies=applies) for column in columns)


def integer(value: float) -> str:
    """1,234."""
    return f"{value:,.0f}"


def decimals(digits: int, factor: float = 1.0) -> Callable[[float | None], str]:
    """So many digits behind the point, of the value times the factor; nothing for None."""
    return lambda value: "" if value is None else f"{value * factor:,.{digits}f}"


def stated(text: Callable[[Any], str]) -> Callable[[Any], str]:
    """The figure, or that it is not stated for None."""
    return lambda value: "not stated" if value is None else text(value)


def short_count(count: int | None) -> str:
    """A number in at most five characters: 950, 12.3k, 4.56M, 789M; ∞ for None."""
    if count is None:
        return "∞"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            value = count / limit
            return f"{value:.3g}{unit}" if value < 999.5 else f"{value:.0f}{unit}"
    return str(count)


GIB = 1 << 30
IDLE_SHARE = 0.5
"""A pool is idle if never more than this share of its pages was in use."""
PERCENT = decimals(2, 100)
SECONDS = decimals(3)
MILLISECONDS = decimals(0, 1000)
ONE_DIGIT = decimals(1)
TWO_DIGITS = decimals(2)


def device_hit_tokens(row: RowResult) -> int:
    """Hit tokens that were on the device already."""
    return row.hit_tokens - int(row.total("host_hit_tokens")) - int(row.total("linked_hit_tokens"))


def host_hit_tokens(row: RowResult) -> int:
    """Hit tokens that were on host already."""
    return int(row.total("host_hit_tokens")) - int(row.total("storage_hit_tokens"))


def storage_hit_tokens(row: RowResult) -> int:
    """Hit tokens that a store or a linker had."""
    return int(row.total("storage_hit_tokens")) + int(row.total("linked_hit_tokens"))


def share(row: RowResult, tokens: int) -> float:
    """Tokens as a share of the prompts; 0 where there were none."""
    return tokens * (1 / row.prompt_tokens) if row.prompt_tokens else 0.0


def miss_rates(row: RowResult) -> dict[str, float]:
    """Missed tokens as shares of the prompts, by cause, the largest first."""
    causes = sorted(row.miss_tokens.items(), key=lambda cause: -cause[1])
    return {label.replace("_", " "): share(row, tokens) for label, tokens in causes if tokens}


def best_possible(row: RowResult) -> str:
    """Between what the best possible lies, in percent; empty where nothing bounds it."""
    low, high = row.optimum_low_tokens, row.optimum_high_tokens
    return "" if low is None or high is None else f"{PERCENT(share(row, low))} to {PERCENT(share(row, high))}"


def _spent_us(row: RowResult) -> Floats:
    spent_us: Floats = row.served["spent_ns"] / 1e3
    return spent_us


def _latency_s(row: RowResult) -> Floats:
    seconds: Floats = row.served["latency_parts_s"].sum(axis=1)
    return seconds


def _part(name: str) -> Callable[[RowResult], Floats]:
    return lambda row: row.served["latency_parts_s"][:, LATENCY_PARTS.index(name)]


def _turns_s(row: RowResult, *, later: bool) -> float | None:
    turns = row.served["turn"]
    chosen = _latency_s(row)[turns > 1 if later else turns == 1]
    return float(chosen.mean()) if chosen.size else None


def _mean(values: Callable[[RowResult], Floats]) -> Callable[[RowResult], float]:
    return lambda row: float(found.mean()) if (found := values(row)).size else 0.0


def _percentile(values: Callable[[RowResult], Floats], percent: int) -> Callable[[RowResult], float]:
    return lambda row: float(np.percentile(found, percent)) if (found := values(row)).size else 0.0


def _waited(row: RowResult) -> int:
    return int((row.served["fetch_wait_s"] > 0).sum())


def _store(row: RowResult) -> StorageTierStats:
    assert row.cache.storage is not None
    return row.cache.storage


def _link(row: RowResult) -> LinkCounters:
    assert row.link is not None
    return row.link


def _traffic(row: RowResult) -> StoreTraffic:
    assert row.traffic is not None
    return row.traffic


def _verified(row: RowResult) -> VerifiedStats:
    assert row.verified is not None
    return row.verified


def _each(pools: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {component: getattr(pool, name) for component, pool in pools.items()}


def _fills(pools: Mapping[str, Any], peaks: Mapping[str, int]) -> dict[str, float | None]:
    return {name: peaks[name] / pool.total if pool.total else None for name, pool in pools.items()}


# fmt: off
SECTIONS = (
    Section("How much of the prompts hits, in percent of all tokens?", (
        Column("requests", "", str, lambda r: r.requests, "Requests of the workload."),
        Column("prompt_tokens", "", str, lambda r: r.prompt_tokens, "Prompt tokens of all requests, rejected ones included."),
        Column("rejected_tokens", "", str, lambda r: r.rejected_tokens, "Of these, those of rejected requests."),
        Column("hit_tokens", "", str, lambda r: r.hit_tokens, "Prompt tokens of served requests that were not computed again."),
        Column("hit_rate", "hit %", PERCENT, lambda r: r.hit_rate,
               "The same, as a share of all prompts: a rejected request is a miss."),
        Column("served_hit_rate", "", str, lambda r: r.served_hit_rate, "The same, as a share of the served prompts alone."),
        *only(lambda r: r.rejected > 0, (
            Column("", "served %", PERCENT, lambda r: r.served_hit_rate,
                   "Where requests were rejected: hit tokens as a share of the served prompts alone."),
        )),
        Column("", "best possible %", str, best_possible,
               "The bounds between which the best possible lies: what a row of the same pools reached, and what no eviction "
               "could exceed in the order of any of these rows.", lambda r: bool(best_possible(r))),
        Column("optimum_low_tokens", "", str, lambda r: r.optimum_low_tokens,
               "Hit tokens that a row of the same pools reached."),
        Column("optimum_high_tokens", "", str, lambda r: r.optimum_high_tokens,
               "Hit tokens that no eviction could exceed, whatever it knows, in the order of admissions of any of these rows; "
               "null with a store or a linker, which nothing bounds."),
        Column("ceiling_tokens", "", str, lambda r: r.ceiling_tokens,
               "Hit tokens of a cache without end and of paths alone: what earlier requests had of the prompts. With a store "
               "all of the prompts but their last tokens, for it may have them from an earlier replay."),
        Column("ceiling_rate", "ceiling %", PERCENT, lambda r: share(r, r.ceiling_tokens),
               "The same, as a share of the prompts."),
        Column("path_only_hit_rate", "", str, lambda r: r.path_only_hit_rate,
               "With --certify: hits of the same policy, had the paths all of the memory, and were windows and states never to "
               "limit a hit."),
        Column("", "path-only %", PERCENT, lambda r: r.path_only_hit_rate, "The same, in percent.",
               lambda r: r.path_only_hit_rate is not None),
        Column("hit_rate_of_path_only", "", str,
               lambda r: r.hit_rate / r.path_only_hit_rate if r.path_only_hit_rate else None,
               "Hit rate as a multiple of that."),
    )),
    Section("Why are tokens missed, in percent of all tokens? Each has one cause", (
        ColumnFamily("miss_tokens", None, str, lambda r: r.miss_tokens,
                     "Prompt tokens missed at the first admission, by cause; with the hit tokens they are the prompts. "
                     "Rejected: of requests that were not served."),
        ColumnFamily("", "", PERCENT, miss_rates,
                     "The same, as a share of the prompts. No cache hits what was in no earlier prompt (never seen, diverged), "
                     "and the end of a prompt (page remainder, last token). Evicted: a pool was short. Never saved: no window "
                     "or state was saved there. In flight: another request computed them then. docs/operating.md: what helps."),
    ), by_figure=True),
    Section("Which pool is short? Of each the pages, how full it was, and what it evicted", (
        ColumnFamily("total_pages", "pages", short_count, lambda r: _each(r.cache.pools, "total"),
                     "Device pages; null: no limit."),
        ColumnFamily("", "in use at most, %", decimals(1, 100), lambda r: _fills(r.cache.pools, r.peak_pages),
                     "The same, as a share of the pool."),
        ColumnFamily("used_pages", None, str, lambda r: _each(r.cache.pools, "used"), "Device pages in use at the end."),
        ColumnFamily("peak_pages", None, str, lambda r: r.peak_pages, "Device pages in use at most."),
        ColumnFamily("victims", "evicted values", short_count, lambda r: _each(r.cache.pools, "victims"),
                     "Values evicted, of any component, because this pool was short."),
    ), by_figure=True),
    Section("How much is computed, and what does that save?", (
        Column("recomputed_tokens", "computed tokens", short_count, lambda r: r.served_prompt_tokens - r.hit_tokens,
               "Prompt tokens that were computed: those of served requests less hit."),
        Column("rebuilt_tokens", "of these rebuilt", short_count, lambda r: r.total("rebuilt_tokens"),
               "Of these, cached ones computed again to rebuild a sliding window."),
        Column("prefill_flops", "", str, lambda r: r.prefill_flops,
               "FLOPs of all served prompts without a cache; null where the model does not state them."),
        Column("prefill_flops_saved", "", str, lambda r: r.prefill_flops_saved, "Of these, FLOPs not spent."),
        Column("prefill_flops_saved_share", "FLOPs saved, %", stated(decimals(1, 100)), lambda r: r.flops_saved_share,
               "The same, as a share."),
    ), by_figure=True),
    Section("What was evicted, and who had no place?", (
        Column("evictions", "evicted values", short_count, lambda r: r.cache.evictions,
               "Values evicted from the device: one component's pages at one node of the tree."),
        Column("tombstones", "tombstones", short_count, lambda r: r.cache.tombstones,
               "Evictions whose node stayed in the tree, for other components or for host."),
        Column("rejected", "rejected requests", integer, lambda r: r.rejected,
               "Requests that could never fit, and were not served: all of their prompts is missed."),
        Column("preempted", "preemptions", integer, lambda r: r.preempted,
               "How often a running request was put back for want of pages."),
    ), by_figure=True),
    Section("Where did hits come from, in percent of all tokens?", (
        Column("hit_tokens_device", "", str, device_hit_tokens, "Hit tokens that were on the device."),
        Column("hit_tokens_host", "", str, host_hit_tokens, "Hit tokens loaded back from host."),
        Column("hit_tokens_storage", "", str, storage_hit_tokens, "Hit tokens brought from the store for the request."),
        *only(lambda r: r.has_host or r.link is not None, (
            Column("hit_rate_device", "device hit %", PERCENT, lambda r: share(r, device_hit_tokens(r)),
                   "Prompt tokens that were on the device."),
        )),
        *only(lambda r: r.has_host, (
            Column("hit_rate_host", "host hit %", PERCENT, lambda r: share(r, host_hit_tokens(r)),
                   "Prompt tokens loaded back from host."),
        )),
        *only(lambda r: r.traffic is not None, (
            Column("hit_rate_storage", "storage hit %", PERCENT, lambda r: share(r, storage_hit_tokens(r)),
                   "Prompt tokens brought from the store, or by LMCache, for the very request."),
        )),
    ), by_figure=True),
    Section("What was copied between device and host?", only(lambda r: r.has_host, (
        Column("backups", "backups", integer, lambda r: r.cache.backed_up.count, "Copies to host."),
        Column("backed_up_gib", "backed up, GiB", ONE_DIGIT, lambda r: r.cache.backed_up.size_bytes / GIB, "Their size."),
        Column("unread_gib", "of it left unread, GiB", ONE_DIGIT,
               lambda r: sum(pool.unread_pages * pool.page_bytes for pool in r.cache.host_pools.values()) / GIB,
               "What left host memory before anything of its value was loaded back, GiB."),
        Column("loads", "loads", integer, lambda r: r.cache.loaded.count, "Copies back to the device."),
        Column("loaded_gib", "loaded, GiB", ONE_DIGIT, lambda r: r.cache.loaded.size_bytes / GIB, "Their size."),
        Column("load_wait_s", "", str, lambda r: r.total("load_wait_s"),
               "Virtual seconds that admitted requests waited for their loads, summed."),
        Column("load_wait_s_mean", "wait a load, ms", MILLISECONDS,
               lambda r: r.total("load_wait_s") / max(1, r.cache.loaded.count), "The same, a load."),
        Column("us_polling_per_request", "poll a request, µs", integer, lambda r: r.polled_ns / 1e3 / max(1, len(r.served)),
               "Real microseconds in the cache's `poll`, which is no request's call."),
        Column("drops", "dropped", integer, lambda r: sum(r.cache.drops.values()),
               "What was not done or came to nothing, by reason below."),
    )), by_figure=True),
    Section("What was not done or came to nothing? How often, by reason", (
        ColumnFamily("drops", "", integer, lambda r: dict(sorted(r.cache.drops.items())) if r.has_host else {},
                     "How often, for this reason."),
    ), by_figure=True),
    Section("Which pool of the host is short?", (
        ColumnFamily("total_host_pages", "on host, pages", short_count, lambda r: _each(r.cache.host_pools, "total"),
                     "In all; null: no limit."),
        ColumnFamily("", "in use at most, %", decimals(1, 100), lambda r: _fills(r.cache.host_pools, r.peak_host_pages),
                     "The same, as a share of the pool."),
        ColumnFamily("used_host_pages", None, str, lambda r: _each(r.cache.host_pools, "used"), "In use at the end."),
        ColumnFamily("peak_host_pages", None, str, lambda r: r.peak_host_pages, "In use at most."),
        ColumnFamily("host_victims", "evicted values", short_count, lambda r: _each(r.cache.host_pools, "victims"),
                     "Values evicted, of any component, because this pool was short."),
        ColumnFamily("backed_up_pages", None, str, lambda r: dict(r.cache.backed_up.component_pages), "Pages copied to host."),
        ColumnFamily("unread_host_pages", "left unread", short_count, lambda r: _each(r.cache.host_pools, "unread_pages"),
                     "Pages that left before anything of their value was loaded back."),
    ), by_figure=True),
    Section("What did the storage find, read and write?", (
        *only(lambda r: r.cache.storage is not None, (
            Column("prefetches", "prefetches", integer, lambda r: _store(r).prefetches, "Reads begun for waiting requests."),
            Column("persisted_boundaries", "persisted boundaries", integer, lambda r: _store(r).persisted_boundaries,
                   "Lengths one can resume from, written whole."),
            Column("persisted_pages", "", str, lambda r: _store(r).persisted_pages, "Pages written for them."),
            Column("unread_stored_pages", "unread pages", integer, lambda r: _store(r).unread_pages,
                   "Pages of tokens that were written and not read while it was known that they are there."),
            Column("quarantined_pages", "bad pages", integer, lambda r: sum(_store(r).quarantined.values()),
                   "Pages that did not hold what had been put."),
        )),
        *only(lambda r: r.link is not None, (
            Column("lookups", "lookups", integer, lambda r: _link(r).lookups, "Prefixes looked up."),
            Column("found_tokens", "found tokens", short_count, lambda r: _link(r).found_tokens,
                   "Tokens that lookups found, those on the device included."),
            Column("persisted_tokens", "persisted tokens", short_count, lambda r: _link(r).stored_tokens, "Written."),
            Column("late_retrieves", "late", integer, lambda r: _link(r).retrieves_late, "Reads not waited for to the end."),
            Column("retrieves_without_room", "no room", integer, lambda r: _link(r).no_room,
                   "Reads not begun for want of device pages."),
            Column("dropped_stores", "dropped", integer, lambda r: _link(r).stores_dropped, "Writes not begun."),
        )),
        *only(lambda r: r.traffic is not None, (
            Column("prefetched_tokens", "prefetched tokens", short_count,
                   lambda r: _store(r).prefetched_tokens if r.link is None else r.link.retrieved_tokens,
                   "Tokens by which reads made cached prefixes longer."),
            Column("prefetched_gib", "prefetched, GiB", ONE_DIGIT, lambda r: _traffic(r).read_bytes / GIB, "Read."),
            Column("persisted_gib", "persisted, GiB", ONE_DIGIT, lambda r: _traffic(r).written_bytes / GIB, "Written."),
            Column("waited_for_storage", "requests that waited", integer, _waited, "Requests that waited for a read."),
            Column("fetch_wait_s", "", str, lambda r: r.total("fetch_wait_s"), "Virtual seconds they waited, summed."),
            Column("fetch_wait_s_mean", "wait of each, ms", MILLISECONDS,
                   lambda r: r.total("fetch_wait_s") / max(1, _waited(r)), "The same, of each that waited."),
            Column("storage_errors", "errors", integer,
                   lambda r: _store(r).errors if r.link is None else r.link.retrieves_failed + r.link.stores_failed,
                   "Calls that failed."),
        )),
    ), by_figure=True),
    Section("How long until the first token? Modelled, seconds from arrival; parts are means", only(lambda r: r.has_latency, (
        Column("modelled_ttft_s_mean", "mean", SECONDS, _mean(_latency_s), "Mean."),
        Column("modelled_ttft_s_p50", "p50", SECONDS, _percentile(_latency_s, 50), "Median."),
        Column("modelled_ttft_s_p99", "p99", SECONDS, _percentile(_latency_s, 99), "99th percentile."),
        Column("modelled_ttft_s_first_turns", "first turns", SECONDS, lambda r: _turns_s(r, later=False),
               "Mean of agents' first requests; none where the trace does not say whose they are."),
        Column("modelled_ttft_s_later_turns", "later turns", SECONDS, lambda r: _turns_s(r, later=True),
               "Mean of those after."),
        Column("modelled_fetch_s_mean", "storage wait", SECONDS, _mean(_part("fetch")), "Until the store has answered."),
        Column("modelled_queue_s_mean", "queue", SECONDS, _mean(_part("queue")), "Then until there is a place."),
        Column("modelled_load_s_mean", "load", SECONDS, _mean(_part("load")), "Then until host's pages are on device."),
        Column("modelled_prefill_s_mean", "prefill", SECONDS, _mean(_part("prefill")),
               "Then until the rest is computed, behind what others have to compute."),
        Column("modelled_requests_per_s", "requests a second", TWO_DIGITS,
               lambda r: len(r.served) / r.virtual_s if r.virtual_s else 0.0, "Requests served over the whole replay."),
    )), by_figure=True),
    Section("How long does the library take? Real time, of a request and of the replay", (
        Column("us_per_request_mean", "mean, µs", integer, _mean(_spent_us),
               "Real microseconds of a request inside the library, all of its calls; mean."),
        Column("us_per_request_p50", "p50, µs", integer, _percentile(_spent_us, 50), "Median."),
        Column("us_per_request_p99", "p99, µs", integer, _percentile(_spent_us, 99), "99th percentile."),
        Column("virtual_s", "", str, lambda r: r.virtual_s, "Length of the replay on the virtual clock, seconds."),
        Column("wall_s", "replay, s", ONE_DIGIT, lambda r: r.wall_s, "Real length of the replay, seconds."),
    ), by_figure=True),
    Section("Is every byte right?", only(lambda r: r.verified is not None, (
        Column("checked_bytes", "compared bytes", integer, lambda r: _verified(r).checked_bytes,
               "Compared with what was computed."),
        Column("wrong_bytes", "wrong bytes", integer, lambda r: _verified(r).wrong_bytes,
               "Of these, different ones: a defect."),
    )), by_figure=True),
)
# fmt: on


def record(row: RowResult) -> dict[str, Any]:
    """The row as flat JSON values; a figure by component is named `figure.component`."""
    columns = [column for section in SECTIONS for source in section.columns for column in source.columns([row]) if column.key]
    return {"policy": row.policy} | {column.key: column.value(row) for column in columns}


def device_pages(row: RowResult) -> dict[str, int | None]:
    """Pages in all by device pool; None for one without limit."""
    return _each(row.cache.pools, "total")


SHARED_MEMORY = "shared memory"
"""What is short where pools have no page counts of their own."""


def pool_verdicts(rows: Sequence[RowResult]) -> list[str]:
    """Which pools were short and which idle, a line each; rows without limits say nothing."""
    short: dict[str, list[str]] = {}
    idle: dict[str, list[str]] = {}
    for row in rows:
        for tier, pools, peaks in (
            ("", row.cache.pools, row.peak_pages),
            (" on host", row.cache.host_pools, row.peak_host_pages),
        ):
            for name, pool in pools.items():
                if row.cache.budget is not None:
                    if pool.victims and row.policy not in short.get(SHARED_MEMORY + tier, ()):
                        short.setdefault(SHARED_MEMORY + tier, []).append(row.policy)
                elif pool.total is not None and pool.victims:
                    short.setdefault(name + tier, []).append(row.policy)
                elif pool.total is not None and peaks[name] <= IDLE_SHARE * pool.total:
                    idle.setdefault(name + tier, []).append(row.policy)
    return [
        f"{verdict}: " + "; ".join(f"{name} ({', '.join(policies)})" for name, policies in found.items())
        for verdict, found in (("Short of pages, values were evicted", short), ("Idle, never more than half in use", idle))
        if found
    ]
