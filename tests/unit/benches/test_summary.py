"""The one table says of each scenario ours, the rival's, the floor and the growth, and goes between the marks of a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benches.summary import BEGIN, END, STEPS, lines, rewrite, table


def row(operation: str, length: int, ours: float, **more: Any) -> dict[str, Any]:
    common: dict[str, Any] = {
        "operation": operation,
        "components": "full",
        "page_size": 64,
        "length_tokens": length,
        "tree_nodes": 0,
        "ours_us": ours,
        "rust_us": 2 * ours,
        "floor_us": None,
        "ratio_of_means": 0.4,
        "sglang_pools_us": None,
        "ours_hit_tokens": 7,
        "rust_hit_tokens": 8,
        **{f"{name}_parts_us": dict.fromkeys(STEPS, ours) for name in ("ours", "rust", "floor")},
    }
    return common | more


def test_the_largest_usual_size_is_shown_and_growth_is_over_all() -> None:
    found = lines([row("insert", length, length / 1000) for length in (1024, 131_072, 1_048_576)])
    (line,) = found
    assert line.scenario == "tree: insert 1,024 tokens, 131,072 tokens"
    assert line.growth == pytest.approx(1.0)
    assert line.ratio == pytest.approx(0.5)


def test_steps_come_one_by_one_beside_their_floors() -> None:
    found = lines([row("serve_next_page", length, 64.0) for length in (1024, 8192)])
    assert len(found) == len(STEPS)
    decode = next(line for line in found if line.scenario.startswith(STEPS["decode"]))
    assert (decode.ours, decode.rival, decode.floor, decode.growth) == (1.0, 1.0, 1.0, 0.0)


def test_a_match_has_the_floor_of_its_size() -> None:
    found = lines([row("match_pages", 8192, 6.0), row("match_floor", 1024, 1.0), row("match_floor", 8192, 3.0)])
    assert [line.floor for line in found] == [3.0]


def test_requests_come_last_with_the_hits_of_both() -> None:
    found = lines([row("serve_chats", 0, 100.0), row("evict", 0, 5.0, tree_nodes=1000)])
    assert [line.hits for line in found] == [None, (7, 8)]
    assert table(found).splitlines()[-1].endswith("| 7 / 8 |")


def test_a_page_without_the_marks_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.md"
    path.write_text(f"{BEGIN} and no end")
    with pytest.raises(ValueError, match=END):
        rewrite(path, [row("serve_chats", 0, 100.0)])
    assert path.read_text() == f"{BEGIN} and no end"
