"""The three sentences that a report begins with: their figures are those of the rows."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from replay_plans import small_plan, small_report
from replay_rows import page_counts, row_of

from unified_tree.components import composition_for
from unified_tree.controllers.workbench.report.report import LEAST_GAIN, Change, _program, answers, leaves_room, overload
from unified_tree.controllers.workbench.runs.plan import Plan, split_for_server
from unified_tree.controllers.workbench.runs.row_result import RowResult
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.sizing.changes import Changes
from unified_tree.controllers.workbench.traces.workload import Request, Workload, in_arrival_order


def percents(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"(\d+\.\d+) (?:%|and)", text)]


def share(row: RowResult, tokens: int | None) -> float:
    assert tokens is not None
    return 100 * tokens / row.prompt_tokens


def test_they_say_the_hits_of_the_rows_and_what_is_possible() -> None:
    content = small_report()
    first, best = content.rows[0], max(content.rows, key=lambda row: row.hit_rate)
    hits, possible, _ = answers(content.rows)
    assert not first.rejected
    assert percents(hits)[0] == pytest.approx(100 * first.hit_rate, abs=0.005)
    assert first.policy in hits
    if best is not first:
        assert percents(hits)[1] == pytest.approx(100 * best.hit_rate, abs=0.005)
    wanted = [share(first, tokens) for tokens in (first.optimum_low_tokens, first.optimum_high_tokens, first.ceiling_tokens)]
    assert percents(possible) == pytest.approx(wanted, abs=0.005)


def test_rejected_requests_are_misses_and_the_served_ones_are_told_apart() -> None:
    first = row_of(small_plan(0.9))
    assert first.rejected
    hits = answers([first])[0]
    assert f"{first.rejected:,} requests" in hits
    wanted = [100 * first.hit_rate, share(first, first.rejected_tokens), 100 * first.served_hit_rate]
    assert percents(hits) == pytest.approx(wanted, abs=0.005)


def test_a_row_that_nothing_bounds_has_a_ceiling_alone() -> None:
    first = replace(small_report().rows[0], optimum_low_tokens=None, optimum_high_tokens=None)
    possible = answers([first])[1]
    assert "nothing bounds" in possible
    assert percents(possible) == pytest.approx([share(first, first.ceiling_tokens)], abs=0.005)


def test_references_are_no_policies_to_change_to() -> None:
    first = small_report().rows[0]
    better = replace(first, policy="unbounded", served=first.served.copy())
    better.served["hit_tokens"] = better.served["prompt_tokens"]
    assert "unbounded" not in " ".join(answers([first, better]))


def test_a_replayed_size_stands_for_the_modelled_one() -> None:
    content = small_report()
    first = content.rows[0]
    twice = next(row for row in content.sweep if row.policy == first.policy and row.capacity == 2)
    gain = twice.hit_rate - first.hit_rate
    assert gain >= LEAST_GAIN
    what = "4 GiB on the device in place of 2"
    advice = answers(content.rows, content.sweep, [Change(what=what, gain=0.99, is_modelled=True)])[2]
    assert f"{100 * gain:.1f} points by {what}" in advice
    assert "99.0" not in advice


def test_what_brings_most_is_said_first_and_what_brings_nothing_not_at_all() -> None:
    first = small_report().rows[0]
    changes = [Change(what=what, gain=gain) for what, gain in (("a", 0.001), ("b", 0.02), ("c", 0.3))]
    said = f"More hits than with {first.policy}, each alone: "
    assert answers([first], (), changes)[2] == f"{said}30.0 points by c; 2.0 points by b."
    changes.append(Change(what="d", gain=0.01, is_free=True))
    assert answers([first], (), changes)[2] == f"{said}1.0 points by d; 30.0 points by c; 2.0 points by b.", "it costs nothing"


def test_where_nothing_helps_it_says_what_was_new() -> None:
    first = small_report().rows[0]
    advice = answers([first])[2]
    new = first.miss_tokens["never_seen"] + first.miss_tokens["diverged"]
    assert f"{share(first, new):.2f} % of the tokens were in no earlier prompt" in advice
    assert "No other size was looked at" in advice
    tried = answers([first], (), [Change(what="a", gain=0.001), Change(what="b", gain=-0.1)])[2]
    assert tried.startswith("None of these brings half a point: a; b. ")


def test_where_the_ceiling_is_near_there_is_nothing_to_change() -> None:
    first = small_report().rows[0]
    first = replace(first, ceiling_tokens=first.hit_tokens)
    assert not leaves_room(first)
    assert answers([first])[2].startswith("Nothing to change")


def test_where_requests_are_rejected_there_is_something_to_change() -> None:
    first = small_report().rows[0]
    some = replace(first, ceiling_tokens=first.hit_tokens, turned_away=first.served.copy())
    says = "The rejected requests need more memory or another split."
    assert answers([some])[2] == f"{says} The others hit within half a point of the ceiling."
    assert answers([replace(some, ceiling_tokens=0, served=first.served[:0])])[2] == says


def test_an_interval_of_one_figure_is_one_figure() -> None:
    first = small_report().rows[0]
    exact = replace(first, optimum_low_tokens=first.hit_tokens, optimum_high_tokens=first.hit_tokens)
    assert f"memory is {100 * first.hit_rate:.2f} %" in answers([exact])[1]


def test_a_replay_that_is_a_queue_says_so() -> None:
    plan, first = small_plan(), small_report().rows[0]
    span_s = plan.workload.requests[-1].arrival_s
    assert overload(plan, replace(first, virtual_s=1.1 * span_s)) == ""
    assert "overloaded" in overload(plan, replace(first, virtual_s=3.0 * span_s))


def test_larger_memory_is_looked_at_where_the_first_sizes_bring_nothing() -> None:
    """Prompts that each come again after many others: only what holds nearly all of them hits."""
    prompts = [Request(index=0, arrival_s=0.1 * i, runs=np.array([100 * (i % 60), 100]), block_tokens=16, prompt_tokens=1600,
        output_tokens=1) for i in range(240)]  # fmt: skip
    workload = Workload(name="a round", requests=in_arrival_order(prompts), block_count=6000)
    composition = composition_for("llama-3.1-8b", page_size=16)
    path_bytes = 100 * composition.components[0].page_bytes
    plan = Plan(workload=workload, composition=composition, device_bytes=4 * path_bytes, settings=ServerSettings(concurrency=1))
    counts = split_for_server(composition, plan.device_bytes, plan.settings)
    found = {change.what: change for change in Changes(plan, counts).look(1, lambda: None)}
    gains = [change.gain for change in found.values()]
    assert gains[0] < LEAST_GAIN, "twice the device"
    assert max(gains) > 0.5, "a host tier that holds all"
    assert [change.tier for change in found.values() if change.gain > 0.5] == ["host"]


def test_the_model_of_more_memory_is_close_to_its_replay() -> None:
    content = small_report()
    first = content.rows[0]
    twice = next(row for row in content.sweep if row.policy == first.policy == "lru" and row.capacity == 2)
    steps: list[int] = []
    changes = Changes(small_plan(), page_counts(small_plan()))
    found = {change.what: change.gain for change in changes.look(1, lambda: steps.append(1))}
    assert len(steps) == changes.pass_count
    assert found["4 GiB on the device in place of 2"] == pytest.approx(twice.hit_rate - first.hit_rate, abs=0.05)
    assert any("host memory" in what for what in found)


@pytest.mark.parametrize(("called", "is_installed", "shown"), [
    ("./.venv/bin/unified-tree", False, "./.venv/bin/unified-tree"),
    ("/usr/bin/unified-tree", True, "unified-tree"),
    ("/usr/bin/pytest", False, "unified-tree"),
])  # fmt: skip
def test_the_report_names_the_command_so_that_it_can_be_called_again(
    called: str, is_installed: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [called])
    monkeypatch.setattr("shutil.which", lambda _: called if is_installed else None)
    assert _program() == shown
