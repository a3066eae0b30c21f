"""The host tier and the verified bytes as text for a terminal, at most 120 columns wide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from unified_tree.controllers.pools.host_layout import host_page_bytes
from unified_tree.controllers.replay.report import GIB, policy_table, short_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from unified_tree.components import Composition
    from unified_tree.controllers.replay.host_settings import HostSettings
    from unified_tree.controllers.replay.row_result import RowResult


def print_host_header(console: Console, composition: Composition, host: HostSettings) -> None:
    """How the host's memory is split, and how fast the bus is."""
    cost = host.load_cost
    console.print(
        f"[bold]host[/]: {host.size_bytes / GIB:.4g} GiB, {host.write_policy.value}; a simulated bus of "
        f"{cost.bytes_per_s / 1e9:g} GB/s each way and {cost.latency_s * 1e6:g} µs a transfer; what takes less than computing "
        f"at {cost.flops_per_s / 1e12:g} TFLOP/s is loaded",
        highlight=False,
    )
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("host pool", "pages", "GiB", "holds"):
        table.add_column(name, justify="left" if name in ("host pool", "holds") else "right")
    for component in composition.components:
        pages = host.page_counts[component.name]
        holds = component.coverage.describe_pages(pages, composition.page_size)
        size_gib = pages * host_page_bytes(component.page_bytes) / GIB
        table.add_row(component.name, f"{pages:,}", f"{size_gib:.2f}", holds)
    console.print(table)
    console.print()


def print_tiers(console: Console, rows: Sequence[RowResult]) -> None:
    """Hits by tier, what was moved and what was not, and bytes compared; nothing where there was no such thing."""
    if any(row.host is not None for row in rows):
        console.print()
        console.print(_host_table(rows))
        console.print(_drops_table(rows))
    if any(row.verified is not None for row in rows):
        console.print()
        console.print(_verified_table(rows))


def _host_table(rows: Sequence[RowResult]) -> Table:
    title = "By tier: where hits came from, what could have been, what was moved"
    columns = (
        "device\nhit %",
        "host\nhit %",
        "reach-\nable %",
        "paths\nreach %",
        "backed up\nGiB",
        "loaded\nGiB",
        "loads",
        "wait ms\na load",
        "drops",
        "poll\nµs/req",
    )
    table = policy_table(columns, title)
    for row in rows:
        host = row.host
        if host is None:
            continue
        prompt = max(1, row.prompt_tokens)
        table.add_row(
            row.policy,
            f"{100 * row.device_hit_tokens / prompt:.2f}",
            f"{100 * (host.hit_tokens - row.storage_hit_tokens) / prompt:.2f}",
            f"{100 * host.reachable_tokens / prompt:.2f}",
            f"{100 * host.path_tokens / prompt:.2f}",
            f"{host.backed_up_bytes / GIB:,.1f}",
            f"{host.loaded_bytes / GIB:,.1f}",
            f"{host.loads:,}",
            f"{1000 * host.load_wait_s / max(1, host.loads):,.0f}",
            f"{sum(host.drops.values()):,}",
            f"{host.us_polling_per_request:,.0f}",
        )
    return table


def _drops_table(rows: Sequence[RowResult]) -> Table:
    """Host pages by component, and drops by reason."""
    names = dict.fromkeys(name for row in rows if row.host is not None for name in row.host.pools)
    table = policy_table(f"{name} on host" for name in names)
    table.add_column("dropped, by reason")
    for row in rows:
        if row.host is None:
            continue
        pools = (
            f"{short_count(pool.used_pages)}/{short_count(pool.peak_pages)}/"
            + ("∞" if pool.total_pages is None else short_count(pool.total_pages))
            for pool in row.host.pools.values()
        )
        table.add_row(row.policy, *pools, ", ".join(f"{reason} {count:,}" for reason, count in row.host.drops.items()))
    return table


def _verified_table(rows: Sequence[RowResult]) -> Table:
    table = Table(title="Bytes compared", title_justify="left", box=None, padding=(0, 1, 0, 1))
    for name in ("policy", "compared", "wrong"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for row in rows:
        if row.verified is not None:
            wrong = row.verified.wrong_bytes
            table.add_row(row.policy, f"{row.verified.checked_bytes:,}", Text(f"{wrong:,}", "bold red" if wrong else ""))
    return table
