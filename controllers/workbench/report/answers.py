"""The first sentences of a report: what hits, what could hit, and what to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.report.columns import GIB, PERCENT, best_possible, miss_rates, share, short_count
from unified_tree.controllers.workbench.report.text_table import REFERENCES
from unified_tree.controllers.workbench.runs.plan import APART, SHARED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_tree.controllers.workbench.runs.plan import Plan
    from unified_tree.controllers.workbench.runs.row_result import RowResult

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
        return "Nothing to change: the hits are within half a point of the ceiling."
    new = sum(rate for cause, rate in miss_rates(first).items() if cause in NEW)
    which = f"None of these brings half a point: {'; '.join(tried)}." if tried else "No other size was looked at."
    return f"{which} {PERCENT(new)} % of the tokens were in no earlier prompt (never seen, or diverged)."
