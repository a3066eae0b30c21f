"""The rows as text for a terminal, at most 120 columns wide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from unified_tree.controllers.replay.row import path_pools

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import Console

    from unified_tree.components import Composition
    from unified_tree.controllers.replay.row import Plan
    from unified_tree.controllers.replay.row_result import RowResult

GIB = 1 << 30
REFERENCES = ("unbounded", "clairvoyant", "path-only")


def print_header(console: Console, plan: Plan, page_counts: Mapping[str, int]) -> None:
    """What is replayed on what, and how the device budget is split."""
    workload, composition, settings = plan.workload, plan.composition, plan.settings
    device_bytes = plan.device_bytes
    console.print(
        f"[bold]{workload.name}[/]: {len(workload.requests):,} requests, {workload.prompt_tokens:,} prompt tokens",
        highlight=False,
    )
    for note in workload.notes:
        console.print(f"  {note}", highlight=False)
    console.print(
        f"[bold]{composition.name}[/]: pages of {composition.page_size} tokens, {device_bytes / GIB:.4g} GiB for the cache; "
        f"{settings.concurrency} requests at once, {settings.chunk_tokens:,} prompt tokens a step of {settings.step_ms:g} ms, "
        f"arrival times scaled by {settings.time_scale:g}",
        highlight=False,
    )
    console.print(_split_table(composition, device_bytes, page_counts))
    console.print(_split_cost(composition, device_bytes, page_counts), highlight=False)


def _split_table(composition: Composition, device_bytes: int, page_counts: Mapping[str, int]) -> Table:
    table = Table(title="Split of the budget", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("pool", "needed for a prefix", "pages", "GiB", "share", "holds"):
        table.add_column(name, justify="left" if name in ("pool", "needed for a prefix", "holds") else "right")
    page_bytes = composition.pool_page_bytes()
    for component in composition.components:
        if component.shares is not None:
            table.add_row(component.name, component.coverage.describe(), "", "", "", f"in the pages of {component.shares}")
            continue
        pages = page_counts[component.name]
        size_bytes = pages * page_bytes[component.name]
        holds = component.coverage.describe_pages(pages, composition.page_size)
        table.add_row(
            component.name,
            component.coverage.describe(),
            f"{pages:,}",
            f"{size_bytes / GIB:.2f}",
            f"{100 * size_bytes / device_bytes:.1f} %",
            holds,
        )
    return table


def _split_cost(composition: Composition, device_bytes: int, page_counts: Mapping[str, int]) -> str:
    """What the other pools take from the paths, in tokens."""
    names, page_bytes = path_pools(composition), composition.pool_page_bytes()
    tokens = min(page_counts[name] for name in names) * composition.page_size
    alone = device_bytes // max(1, sum(page_bytes[name] for name in names)) * composition.page_size
    if tokens >= alone or len(names) == len(page_counts):
        return ""
    lost = 100 * (1 - tokens / alone)
    return f"The split costs {lost:.1f} % of the path: {tokens:,} tokens; the whole budget would hold {alone:,}.\n"


def print_rows(console: Console, rows: Sequence[RowResult]) -> None:
    """The rows side by side: what was hit, what it cost, and below it by component."""
    console.print(_main_table(rows))
    console.print(
        "\n[italic]By component: pages used at the end / at most / in all; prompt tokens lost for want of it (overlapping)[/]",
        highlight=False,
    )
    console.print(_component_table(rows))


def _main_table(rows: Sequence[RowResult]) -> Table:
    path_only = next((row.hit_rate for row in rows if row.policy == "path-only"), 0.0)
    columns = (
        "hit %",
        "of\nungated",
        "recomputed\ntokens",
        "replayed\ntokens",
        "FLOPs\nsaved %",
        "evicted\nvalues",
        "tomb-\nstones",
        "re-\njected",
        "pre-\nempted",
        "µs/req\nmean",
        "p50",
        "p99",
        "wall\ns",
    )
    table = policy_table(columns, "Token hits, at a request's first admission")
    for row in rows:
        table.add_row(
            Text(row.policy, "dim" if row.policy in REFERENCES else ""),
            Text(f"{100 * row.hit_rate:.2f}", "bold"),
            f"{row.hit_rate / path_only:.3f}" if path_only else "",
            short_count(row.recomputed_tokens),
            short_count(row.rebuilt_tokens),
            f"{100 * row.flops_saved_share:.1f}",
            short_count(row.evictions),
            short_count(row.tombstones),
            f"{row.rejected:,}",
            f"{row.preempted:,}",
            f"{row.us_per_request_mean:,.0f}",
            f"{row.us_per_request_p50:,.0f}",
            f"{row.us_per_request_p99:,.0f}",
            f"{row.wall_s:.1f}",
        )
    return table


def _component_table(rows: Sequence[RowResult]) -> Table:
    """Pages by component, and the prompt tokens that a component's absence alone kept from being resumed."""
    names = list(dict.fromkeys(name for row in rows for name in (*row.pools, *row.lost_tokens)))
    table = policy_table(names)
    for row in rows:
        table.add_row(row.policy, *(_cell(row, name) for name in names))
    return table


def _cell(row: RowResult, name: str) -> str:
    return "\n".join(_cell_lines(row, name))


def _cell_lines(row: RowResult, name: str) -> Iterator[str]:
    pool = row.pools.get(name)
    if pool is not None:
        total = "∞" if pool.total_pages is None else short_count(pool.total_pages)
        yield f"{short_count(pool.used_pages)}/{short_count(pool.peak_pages)}/{total}"
    lost = row.lost_tokens.get(name)
    if lost is not None:
        yield f"lost {short_count(lost)}"


def policy_table(columns: Iterable[str], title: str | None = None) -> Table:
    """An empty table of figures, a row a policy, as all of a report are."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 1))
    table.add_column("policy")
    for name in columns:
        table.add_column(name, justify="right")
    return table


def short_count(count: int) -> str:
    """A number in at most five characters: 950, 12.3k, 4.56M, 789M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            value = count / limit
            return f"{value:.3g}{unit}" if value < 999.5 else f"{value:.0f}{unit}"
    return str(count)
