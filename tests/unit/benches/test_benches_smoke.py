"""The benchmarks run, all of them, and write what programs expect. Their timings are nobody's business here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import PROGRAM_S

ROOT = Path(__file__).resolve().parents[3]
COMPONENTS = ("full", "full_swa", "full_mamba")
LABELS = {*COMPONENTS, "full_mamba_256"}
BEGIN, END = "<!-- make bench -->", "<!-- end -->"
OPERATIONS = set(
    re.findall(
        r"\w+",
        """import match_pages match match_floor match_miss insert lock_unlock lock_unlock_held evict evict_swa evict_mamba
        chat_request commit_page decode_step mixed_multi_turn memory key_from_list serve_next_page serve_chats
        serve_chats_decoding serve_agents serve_conversation_trace serve_agent_trace""",
    )
)
TAILS = {"Key", "acquire", "allocate", "advance", "commit", "release", "poll"}
FIELDS = set(re.findall(r"\w+", "operation components page_size ours_us rust_us python_us ratio hash machine commit ours_core"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benches", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_S, check=False)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]], Path]:
    """One quick run of everything but the worst cases: what it printed, the rows, the picture."""
    folder = tmp_path_factory.mktemp("bench")
    sets = [word for name in sorted(LABELS) for word in ("--components", name)]
    done = run("--quick", "--suite", "all", *sets, "--json", str(folder / "bench.json"), "--plot", str(folder / "growth.png"))
    assert done.returncode == 0, done.stderr
    rows = json.loads((folder / "bench.json").read_text())
    return done.stdout, rows, folder / "growth.png"


def test_every_benchmark_runs_in_quick_mode(quick: tuple[str, list[dict[str, Any]], Path]) -> None:
    rows = [row for row in quick[1] if row["operation"] != "tails"]
    assert {row["operation"] for row in rows} == OPERATIONS
    assert {row["components"] for row in rows} == LABELS
    assert {row["page_size"] for row in rows} == {1, 16, 64, 256}
    for row in rows:
        assert row["ours_missing"] is None, row
        if row["operation"] == "memory":
            assert row["ours_bytes"] is not None
        else:
            assert row["ours_us"] > 0


def test_rows_have_the_fields_that_programs_read(quick: tuple[str, list[dict[str, Any]], Path]) -> None:
    _, rows, _ = quick
    for row in (row for row in rows if row["operation"] != "tails"):
        assert set(row) >= FIELDS
        assert row["rust_us"] is None and row["python_us"] is None and row["ratio"] is None
        if row["operation"] != "import":
            assert len(row["hash"]) == 12


def test_absent_rivals_say_so_over_the_table(quick: tuple[str, list[dict[str, Any]], Path]) -> None:
    printed, _, _ = quick
    assert "absent   rust: no interpreter of rivals given" in printed
    assert printed.startswith("machine  ")


def test_the_picture_of_growth_is_small(quick: tuple[str, list[dict[str, Any]], Path]) -> None:
    picture = quick[2].read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) <= 120 * 1024


def test_answers_are_the_same_in_another_run_whose_peers_are_missing(
    quick: tuple[str, list[dict[str, Any]], Path], tmp_path: Path
) -> None:
    nowhere, file = str(tmp_path / "nowhere"), tmp_path / "again.json"
    chosen = "--suite", "operations", "--operation", "chat_request", "--page", "64"
    done = run("--quick", *chosen, "--engine", nowhere, "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert f"there is no {nowhere}" in done.stdout
    before = [row for row in quick[1] if row["operation"] == "chat_request" and row["page_size"] == 64]
    again = {row["components"]: row["hash"] for row in json.loads(file.read_text())}
    assert again.items() <= {row["components"]: row["hash"] for row in before}.items() and again


def test_the_floor_and_ours_find_the_same(quick: tuple[str, list[dict[str, Any]], Path]) -> None:
    rows = [row for row in quick[1] if row["operation"].startswith("serve_")]
    assert len(rows) >= len(COMPONENTS) * 2 * 6
    for row in rows:
        assert row["floor_hash"] == row["hash"]
        assert row["floor_hit_tokens"] == row["ours_hit_tokens"]


def test_tails_are_those_of_every_call(quick: tuple[str, list[dict[str, Any]], Path]) -> None:
    rows = [row for row in quick[1] if row["operation"] == "tails"]
    assert {(row["components"], row["call"]) for row in rows} == {(name, call) for name in LABELS for call in TAILS}
    assert all(row["p999_us"] >= row["ours_us"] for row in rows)


def test_one_table_is_written_beside_the_rows_and_into_a_page(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    done = run(
        "--quick", "--components", "full", "--page", "64", "--json", str(tmp_path / "new" / "b.json"), "--lab", str(page)
    )
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "new" / "b.md").read_text()
    assert "| commit a page, 1,024 tokens | full, page 64 |" in written
    assert "| a chat's turn | full, page 64 |" in written
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| an agent's turn" in text


def test_choosing_nothing_is_one_clear_line(tmp_path: Path) -> None:
    done = run("--quick", "--operation", "no-such", "--json", str(tmp_path / "n.json"))
    assert done.returncode != 0
    assert done.stderr.strip() == "no case is left of what was chosen"
