"""The report on a terminal: the answers, what is replayed on what, the rows side by side, and what their figures mean."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from unified_tree.controllers.cache.held_hints import Outcome
from unified_tree.controllers.workbench.report.columns import (
    GIB,
    PERCENT,
    SECTIONS,
    ColumnFamily,
    best_possible,
    miss_rates,
    pool_verdicts,
    share,
    short_count,
)
from unified_tree.controllers.workbench.report.text_table import (
    REFERENCES,
    Cell,
    Mark,
    print_device_split,
    print_host_split,
    print_table,
    shown_rows,
    table_of,
)
from unified_tree.controllers.workbench.runs.plan import APART, SHARED
from unified_tree.inputs.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from unified_tree.controllers.workbench.runs.plan import Plan
    from unified_tree.controllers.workbench.runs.row_result import RowResult
    from unified_tree.controllers.workbench.server.server_settings import LinkerSettings, StorageSettings


LEAST_GAIN = 0.005
"""A change that brings less of the prompts is not worth a word."""
OVERLOADED = 1.5
"""So many times as long as the requests came a replay takes that is worth a word."""
NEW = ("never seen", "diverged")
"""Causes that nothing changes: such tokens were in no earlier prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something to change.

    Attributes:
        what: the end of a sentence that begins with the gain.
        gain: hit tokens more as a share of the prompts.
        is_modelled: whether a model says so, and no replay.
        tier: of which there is more; empty for another change.
        is_free: whether it costs nothing.
    """

    what: str
    gain: float
    is_modelled: bool = False
    tier: str = ""
    is_free: bool = False

    def __str__(self) -> str:
        return f"{'about ' if self.is_modelled else ''}{100 * self.gain:.1f} points by {self.what}"


def answers(rows: Sequence[RowResult], sweep: Sequence[RowResult] = (), modelled: Sequence[Change] = ()) -> list[str]:
    """Three sentences: what hits, what is possible, and what to change.

    Args:
        rows: of a report, the first one being that of the policy in question.
        sweep: further rows at other capacities.
        modelled: what a model of the cache says of changes. A replay of the same change stands for it.
    """
    compared = [row for row in rows if not row.is_path_only and row.policy.removeprefix(SHARED) not in REFERENCES]
    return [_hits(compared), _possible(compared[0]), _advice(compared, [*_by_rows(compared, sweep), *modelled])]


def leaves_room(row: RowResult) -> bool:
    """Whether any change could bring enough to be worth a word."""
    return share(row, row.ceiling_tokens) - row.hit_rate >= LEAST_GAIN


def overload(plan: Plan, row: RowResult) -> str:
    """A sentence, where requests came so fast that most of the replay was a queue; empty where they did not."""
    span_s = plan.workload.requests[-1].arrival_s * plan.settings.time_scale
    if plan.workload.parallel is not None or not 0 < OVERLOADED * span_s < row.virtual_s:
        return ""
    return (
        f"The simulated server is overloaded: the requests came within {span_s:,.0f} s and were served within "
        f"{row.virtual_s:,.0f} s, so the gaps between uses are longer here (--step-ms, --chunk-tokens, --concurrency)."
    )


def _hits(rows: Sequence[RowResult]) -> str:
    first, best = rows[0], max(rows, key=lambda row: row.hit_rate)
    words = f"{PERCENT(first.hit_rate)} % of the {short_count(first.prompt_tokens)} prompt tokens hit with {first.policy}"
    if best is not first:
        words += f", {PERCENT(best.hit_rate)} % with {best.policy}"
    elif len(rows) > 1:
        words += ", and no more with any other policy of these" if len(rows) > 2 else f", and no more with {rows[1].policy}"
    if first.rejected:
        words += (
            f"; {first.rejected:,} requests, {PERCENT(share(first, first.rejected_tokens))} % of the tokens, were rejected and "
            f"count as misses: of the served ones {PERCENT(first.served_hit_rate)} % hit"
        )
    return words + "."


def _possible(row: RowResult) -> str:
    ceiling = PERCENT(share(row, row.ceiling_tokens))
    if not (interval := best_possible(row)):
        return (
            f"The ceiling, what any cache could hit, is {ceiling} %; nothing bounds the best possible of a store or a linker."
        )
    low, high = interval.split(" to ")
    where = f"is {low}" if low == high else f"lies between {low} and {high}"
    return (
        f"The best possible with this memory {where} %; the ceiling, with unlimited memory"
        f"{' for the requests that were served' if row.rejected else ''}, is {ceiling} %."
    )


def _by_rows(rows: Sequence[RowResult], sweep: Sequence[RowResult]) -> list[Change]:
    """The changes that other rows show: another policy, shared memory, another size."""
    first, best = rows[0], max(rows, key=lambda row: row.hit_rate)
    changes = []
    if best is not first:
        how = "letting the pools share the memory (budget=)" if best.policy.startswith(SHARED) else "another policy"
        how = "no --share-after" if best.policy.startswith(APART) else how
        changes.append(Change(what=f"{how}, {best.policy}", gain=best.hit_rate - first.hit_rate, is_free=True))
    changes += [
        Change(what=more_device(row.device_bytes, row.capacity), gain=row.hit_rate - first.hit_rate)
        for row in sweep
        if row.policy == first.policy and row.capacity == MORE
    ]
    return changes


MORE = 2
"""How many times the device's memory is weighed as more of it."""


def more_device(device_bytes: int, times: float = MORE) -> str:
    """A larger device in words."""
    return f"{device_bytes * times / GIB:.4g} GiB on the device in place of {device_bytes / GIB:.4g}"


def _advice(rows: Sequence[RowResult], changes: Sequence[Change]) -> str:
    first = rows[0]
    tried: dict[str, Change] = {}
    for change in changes:
        tried.setdefault(change.what, change)
    worth = [change for change in tried.values() if change.gain >= LEAST_GAIN]
    if worth:
        listed = map(str, sorted(worth, key=lambda change: (not change.is_free, -change.gain)))
        return f"More hits than with {first.policy}{', each alone' if len(worth) > 1 else ''}: {'; '.join(listed)}."
    if not leaves_room(first):
        if share(first, first.rejected_tokens) >= LEAST_GAIN:
            others = "" if not len(first.served) else " The others hit within half a point of the ceiling."
            return f"The rejected requests need more memory or another split.{others}"
        return "Nothing to change: the hits are within half a point of the ceiling."
    new = sum(rate for cause, rate in miss_rates(first).items() if cause in NEW)
    which = f"None of these brings half a point: {'; '.join(tried)}." if tried else "No other size was looked at."
    return f"{which} {PERCENT(new)} % of the tokens were in no earlier prompt (never seen, or diverged)."


def print_header(console: Console, plan: Plan, page_counts: Mapping[str, int], split_name: str = "") -> None:
    """Print the workload, the model, the splits of memory, and the rates that the replay assumes.

    Args:
        split_name: of the device's split.
    """
    for name, text in facts(plan):
        if name:
            _print_about(console, name, text)
        else:
            console.print(Padding(Text(text), (0, 0, 0, 2)))
    for peer in (plan.storage, plan.linker):
        if peer is not None:
            console.print(f"  {peer.spec}", soft_wrap=True)
    console.print()
    print_device_split(console, plan.composition, plan.device_bytes, page_counts, split_name)
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
                groups = [row.cache.tenants[name] for row in divided]
                hits = [f"{100 * group.hit_tokens / max(1, group.prompt_tokens):.2f}" for group in groups]
                lines.append([Text(each) for each in (_tenant(name), f"{first.prompt_tokens:,}", *hits)])
        heads = ["tenant", "prompt tokens", *(row.policy for row in divided)]
        print_table(console, heads, lines, title="Hits by tenant, in percent of its prompt tokens")
        console.print()


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
