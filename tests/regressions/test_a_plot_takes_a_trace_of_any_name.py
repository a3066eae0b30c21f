"""A trace whose name has two dollar signs was read as a formula by the plot's title: the replay ended without its files."""

from __future__ import annotations

from pathlib import Path

from replay_plans import small_report

from unified_tree.controllers.workbench.report.output_files import write_plot


def test_a_name_is_no_formula(tmp_path: Path) -> None:
    path = tmp_path / "rows.svg"
    write_plot(path, small_report().rows, (), r"$\of{a$.jsonl on gpt-oss-20b")
    assert path.stat().st_size > 0
