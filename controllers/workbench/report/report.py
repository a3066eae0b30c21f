"""The report on a terminal: the answers, what is replayed on what, the rows side by side, and what their figures mean."""

from __future__ import annotations

import shutil
import sys
from pathlib import PurePath
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from unified_tree.controllers.cache.held_hints import Outcome
from unified_tree.controllers.workbench.report.columns import GIB, SECTIONS, ColumnFamily, pool_verdicts
from unified_tree.controllers.workbench.report.composition_tables import print_device_split, print_host_split
from unified_tree.controllers.workbench.report.text_table import REFERENCES, Cell, Mark, print_table, shown_rows, table_of
from unified_tree.inputs.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from unified_tree.controllers.cache.tenant_stats import TenantStats
    from unified_tree.controllers.workbench.runs.plan import Plan
    from unified_tree.controllers.workbench.runs.row_result import RowResult
    from unified_tree.controllers.workbench.server.server_settings import LinkerSettings, StorageSettings


def print_header(console: Console, plan: Plan, page_counts: Mapping[str, int]) -> None:
    """What is replayed on what, how memory is split, and how fast everything is taken to be."""
    for name, text in facts(plan):
        if name:
            _print_about(console, name, text)
        else:
            console.print(Padding(Text(text), (0, 0, 0, 2)))
    for peer in (plan.storage, plan.linker):
        if peer is not None:
            console.print(f"  {peer.spec}", soft_wrap=True)
    console.print()
    print_device_split(console, plan.composition, plan.device_bytes, page_counts)
    if plan.host is not None:
        print_host_split(console, plan.composition, plan.host.page_counts)


def facts(plan: Plan) -> list[tuple[str, str]]:
    """The facts of a plan, as names and texts; notes have an empty name."""
    workload, composition, settings = plan.workload, plan.composition, plan.settings
    found = [
        (workload.name, f"{len(workload.requests):,} requests, {workload.prompt_tokens:,} prompt tokens"),
        *(("", note) for note in workload.notes),
        (
            composition.name,
            f"pages of {composition.page_size} tokens, {plan.device_bytes / GIB:.4g} GiB for the "
            f"cache; {settings.concurrency} requests at once, {settings.chunk_tokens:,} prompt tokens a step of "
            f"{settings.step_ms:g} ms, arrival times scaled by {settings.time_scale:g}",
        ),
    ]
    if plan.host is not None:
        cost = plan.host.load_cost
        text = (
            f"{plan.host.size_bytes / GIB:.4g} GiB, {plan.host.write_policy.value}; a simulated bus of "
            f"{cost.bytes_per_s / 1e9:g} GB/s each way and {cost.latency_s * 1e6:g} µs a transfer; what takes less than "
            f"computing at {cost.flops_per_s / 1e12:g} TFLOP/s is loaded"
        )
        found.append(("host", text))
    if plan.storage is not None:
        size = "as much as its server holds" if plan.storage.size_bytes is None else f"{plan.storage.size_bytes / GIB:,.4g} GiB"
        if plan.storage.page_counts:
            size += " (pages: " + ", ".join(f"{name} {count:,}" for name, count in plan.storage.page_counts.items()) + ")"
        found.append(("storage", f"{size}; {_pace(plan.storage)}"))
    if plan.linker is not None:
        found.append(("linker", f"as much as it holds, of real and small pages; {_pace(plan.linker)}"))
    return found


def _pace(peer: StorageSettings | LinkerSettings) -> str:
    return (
        f"modelled at {peer.cost.bytes_per_s / 1e9:g} GB/s each way and {peer.cost.latency_s * 1e6:g} µs a call; "
        f"prefetch {peer.prefetch.mode.value}"
    )


def _print_about(console: Console, name: str, what: str, style: str = "bold") -> None:
    console.print(Text.assemble((name, style), ": ", what))


def print_answers(console: Console, answers: Sequence[str]) -> None:
    """Print the answers before all tables, a paragraph a sentence."""
    for answer in answers:
        console.print(Text(answer, "bold"))
    console.print()


def print_rows(console: Console, plan: Plan, rows: Sequence[RowResult]) -> None:
    """The rows side by side, a table a question; of path-only twins the files have more."""
    rows = shown_rows(rows)
    for section in SECTIONS:
        headings, lines = table_of(section, rows)
        if lines:
            print_table(console, headings, [list(map(_cell, line)) for line in lines], title=section.title)
            console.print()
    _print_hints(console, rows)
    _print_tenants(console, rows)
    for verdict in pool_verdicts(rows):
        console.print(verdict)
    if plan.settings.prefill_flops_per_s is not None:
        _print_model(console, plan, plan.settings.prefill_flops_per_s)
    for row in rows:
        if row.policy in REFERENCES:
            _print_about(console, row.policy, REFERENCES[row.policy], "dim")
    console.print(f"What each figure means: {_program()} columns")


def _program() -> str:
    """This command, as the reader can call it again."""
    name = "unified-tree"
    return sys.argv[0] if PurePath(sys.argv[0]).name == name and shutil.which(name) is None else name


def _print_hints(console: Console, rows: Sequence[RowResult]) -> None:
    """How the hints of each row ended, by verb, and with tenants by tenant, too; nothing without any."""
    lines, of_tenants = [], []
    for row in rows:
        lines += [[Text(row.policy), *line] for line in _by_verb(row.cache.hints)]
        for name, group in row.cache.tenants.items():
            of_tenants += [[Text(row.policy), Text(_tenant(name)), *line] for line in _by_verb(group.hints)]
    heads = ["hint", *(outcome.value for outcome in Outcome)]
    if lines:
        print_table(console, ["policy", *heads], lines, title="How hints ended")
        console.print()
    if of_tenants:
        print_table(console, ["policy", "tenant", *heads], of_tenants, title="How hints ended, by tenant", left=(0, 1))
        console.print()


def _by_verb(hints: Mapping[tuple[str, str], int]) -> list[list[Text]]:
    """A line for each verb: how many hints had each outcome."""
    verbs = sorted({verb for verb, _ in hints})
    return [[Text(verb), *(Text(f"{hints.get((verb, outcome.value), 0):,}") for outcome in Outcome)] for verb in verbs]


def _tenant(name: str) -> str:
    return printable(name) or "(no group)"


def _print_tenants(console: Console, rows: Sequence[RowResult]) -> None:
    """The hits of each tenant by row; nothing without tenants."""
    divided = [row for row in rows if row.cache.tenants]
    if divided:
        lines = []
        for name, first in divided[0].cache.tenants.items():
            if first.requests:
                hits = [_hit_share(row.cache.tenants[name]) for row in divided]
                lines.append([Text(each) for each in (_tenant(name), f"{first.prompt_tokens:,}", *hits)])
        heads = ["tenant", "prompt tokens", *(row.policy for row in divided)]
        print_table(console, heads, lines, title="Hits by tenant, in percent of its prompt tokens")
        console.print()


def _hit_share(group: TenantStats) -> str:
    return f"{100 * group.hit_tokens / max(1, group.prompt_tokens):.2f}"


def _cell(cell: Cell) -> Text:
    return Text(cell.text, {Mark.BEST: "bold", Mark.WRONG: "bold red", Mark.REFERENCE: "dim", Mark.NONE: ""}[cell.mark])


def _print_model(console: Console, plan: Plan, flops_per_s: float) -> None:
    """What times to the first token are modelled from."""
    stated = [f"prefill {flops_per_s / 1e12:g} TFLOP/s"]
    if plan.host is not None:
        stated.append(f"host copies {plan.host.load_cost.bytes_per_s / 1e9:g} GB/s each way")
    for peer in (plan.storage, plan.linker):
        if peer is not None:
            cost = peer.cost
            stated.append(f"storage {cost.bytes_per_s / 1e9:g} GB/s each way and {cost.latency_s * 1e6:g} µs a call")
    scores = "attention scores included" if plan.composition.attention_costs else "attention scores left out: not known here"
    console.print(
        Text.assemble(
            ("Modelled", "bold"),
            f", not measured, from {', '.join(stated)}. Prompts are computed first come, first served, at most "
            f"{plan.settings.chunk_tokens:,} tokens a step of {plan.settings.step_ms:g} ms, {scores}; every running answer "
            "gains a token a step, whatever else is done.",
        )
    )


def print_columns(console: Console) -> None:
    """What every column of the report and of its files means."""
    for section in SECTIONS:
        console.print(section.title, style="italic")
        for column in section.columns:
            name = column.heading or ""
            if isinstance(column, ColumnFamily):
                name = f"<name> {name}".strip() if column.heading is not None else ""
            key = f"{column.key}.<name>" if isinstance(column, ColumnFamily) and column.key else column.key
            console.print(Text(" · ".join(filter(None, (name, key))), "bold"))
            console.print(Padding(Text(column.meaning), (0, 0, 0, 4)))
        console.print()
