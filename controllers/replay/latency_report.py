"""Modelled times to the first token as text for a terminal, at most 120 columns wide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.replay.report import policy_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from unified_tree.controllers.replay.row import Plan
    from unified_tree.controllers.replay.row_result import RowResult


def print_latency(console: Console, plan: Plan, rows: Sequence[RowResult]) -> None:
    """What the times are modelled from, and the times; nothing where no hardware was stated."""
    rate = plan.settings.prefill_flops_per_s
    if rate is None:
        return
    console.print()
    stated = [f"prefill {rate / 1e12:g} TFLOP/s"]
    if plan.host is not None:
        stated.append(f"host copies {plan.host.load_cost.bytes_per_s / 1e9:g} GB/s each way")
    if plan.storage is not None:
        cost = plan.storage.cost
        stated.append(f"storage {cost.bytes_per_s / 1e9:g} GB/s each way and {cost.latency_s * 1e6:g} µs a call")
    console.print(f"[bold]Modelled[/], not measured, from {', '.join(stated)}.", highlight=False)
    scores = "attention scores included" if plan.composition.attention_costs else "attention scores left out: not known here"
    console.print(
        f"Prompts are computed first come, first served, at most {plan.settings.chunk_tokens:,} tokens a step of "
        f"{plan.settings.step_ms:g} ms, {scores}; every running answer gains a token a step, whatever else is done.",
        highlight=False,
    )
    console.print(_table(rows))


def _table(rows: Sequence[RowResult]) -> Table:
    title = "Modelled time to the first token, seconds from arrival; the parts are means"
    columns = (
        "mean",
        "p50",
        "p99",
        "first\nturns",
        "later\nturns",
        "storage\nwait",
        "queue",
        "load",
        "prefill",
        "requests\n/s",
    )
    table = policy_table(columns, title)
    for row in rows:
        latency = row.latency
        if latency is None:
            continue
        turns = (latency.first_turns_s, latency.later_turns_s)
        table.add_row(
            row.policy,
            *(f"{value:.3f}" for value in (latency.mean_s, latency.p50_s, latency.p99_s)),
            *("" if value is None else f"{value:.3f}" for value in turns),
            *(f"{value:.3f}" for value in latency.parts_s.values()),
            f"{latency.requests_per_s:.2f}",
        )
    return table
