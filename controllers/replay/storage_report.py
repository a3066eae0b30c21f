"""The store behind the host tier, or the linker, as text for a terminal, at most 120 columns wide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.replay.report import GIB, policy_table, short_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from unified_tree.controllers.replay.linker_settings import LinkerSettings
    from unified_tree.controllers.replay.row_result import RowResult
    from unified_tree.controllers.replay.storage_settings import StorageSettings


def print_storage_header(console: Console, storage: StorageSettings) -> None:
    """What the store is, how large, and how fast it is taken to be."""
    cost, policy = storage.cost, storage.prefetch
    size = "as much as its server holds" if storage.size_bytes is None else f"{storage.size_bytes / GIB:,.4g} GiB"
    console.print(
        f"[bold]storage[/]: {size}; modelled at {cost.bytes_per_s / 1e9:g} GB/s each way and "
        f"{cost.latency_s * 1e6:g} µs a call; prefetch {policy.mode.value}",
        highlight=False,
    )
    console.print(f"  {storage.spec}", highlight=False, soft_wrap=True)
    if storage.page_counts:
        pages = ", ".join(f"{name} {count:,}" for name, count in storage.page_counts.items())
        console.print(f"  pages: {pages}", highlight=False)
    console.print()


def print_linker_header(console: Console, linker: LinkerSettings) -> None:
    """Which linker, and how fast it is taken to be."""
    cost = linker.cost
    console.print(
        f"[bold]linker[/]: as much as it holds; modelled at {cost.bytes_per_s / 1e9:g} GB/s each way and "
        f"{cost.latency_s * 1e6:g} µs a call; prefetch {linker.prefetch.mode.value}; its pages are real and small",
        highlight=False,
    )
    console.print(f"  {linker.spec}", highlight=False, soft_wrap=True)
    console.print()


def print_linked(console: Console, rows: Sequence[RowResult]) -> None:
    """Hits by tier, and what went to the linker and came from it; nothing where there was none."""
    if all(row.linked is None for row in rows):
        return
    columns = (
        "device\nhit %",
        "host\nhit %",
        "linker\nhit %",
        "lookups",
        "retrieved\ntokens",
        "retrieved\nGiB",
        "stored\nGiB",
        "waited",
        "wait ms\neach",
        "late",
        "no\nroom",
        "dropped",
        "errors",
    )
    table = policy_table(columns, "Linker: hits by tier, what was moved")
    for row in rows:
        linked = row.linked
        if linked is None:
            continue
        prompt = max(1, row.prompt_tokens)
        table.add_row(
            row.policy,
            f"{100 * row.device_hit_tokens / prompt:.2f}",
            f"{100 * row.host_hit_tokens / prompt:.2f}",
            f"{100 * linked.hit_tokens / prompt:.2f}",
            f"{linked.lookups:,}",
            short_count(linked.retrieved_tokens),
            f"{linked.retrieved_bytes / GIB:,.1f}",
            f"{linked.stored_bytes / GIB:,.1f}",
            f"{linked.waited:,}",
            f"{1000 * linked.fetch_wait_s / max(1, linked.waited):,.0f}",
            f"{linked.late:,}",
            f"{linked.no_room:,}",
            f"{linked.dropped:,}",
            f"{linked.errors:,}",
        )
    console.print()
    console.print(table)


def print_storage(console: Console, rows: Sequence[RowResult]) -> None:
    """Hits by tier, and what went to the store and came from it; nothing where there was none."""
    if all(row.stored is None for row in rows):
        return
    columns = (
        "device\nhit %",
        "host\nhit %",
        "storage\nhit %",
        "prefetched\ntokens",
        "prefetched\nGiB",
        "persisted_boundaries",
        "persisted\nGiB",
        "waited",
        "wait ms\neach",
        "bad\npages",
        "errors",
    )
    table = policy_table(columns, "Storage: hits by tier, what was moved")
    for row in rows:
        stored = row.stored
        if stored is None:
            continue
        prompt = max(1, row.prompt_tokens)
        table.add_row(
            row.policy,
            f"{100 * (row.hit_tokens - row.host_hit_tokens) / prompt:.2f}",
            f"{100 * (row.host_hit_tokens - stored.hit_tokens) / prompt:.2f}",
            f"{100 * stored.hit_tokens / prompt:.2f}",
            short_count(stored.prefetched_tokens),
            f"{stored.read_bytes / GIB:,.1f}",
            f"{stored.persisted_boundaries:,}",
            f"{stored.written_bytes / GIB:,.1f}",
            f"{stored.waited:,}",
            f"{1000 * stored.fetch_wait_s / max(1, stored.waited):,.0f}",
            f"{stored.quarantined:,}",
            f"{stored.errors:,}",
        )
    console.print()
    console.print(table)
