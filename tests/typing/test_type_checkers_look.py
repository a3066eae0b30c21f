"""A planted type error is found, so that "no errors" cannot mean "not looked"."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from waiting import PROGRAM_S

ROOT = Path(__file__).parents[2]
GOOD = """
from unified_tree import Component, Key, Path, UnifiedTree
from unified_tree.components import full
from unified_tree.controllers import PrefixCache

tree = UnifiedTree([Component(name="full", coverage=Path())], 2)
length: int = tree.match_prefix(Key([1, 2])).device.length
cache = PrefixCache([full(page_size=2, bytes_per_token=1)], 2)
"""
ERRORS = {
    "a wrong argument": "Component(name=3, coverage=Path())",
    "a wrong result": "text: str = tree.match_prefix(Key([1])).path_length",
    "a missing attribute": "tree.match_prefix(Key([1])).nothing",
    "a linked package": 'cache.acquire("abc")',
    "another linked package": 'full(page_size=2, bytes_per_token="one")',
}


def plant(folder: Path, error: str) -> Path:
    """A file with one error in its last line, outside the repository so that no run of the tools meets it."""
    file = folder / "planted.py"
    file.write_text(GOOD + error + "\n")
    return file


def needs(tool: str) -> None:
    if find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed; `make lint` installs it")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", *command]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_S, check=False)


def test_mypy_finds_every_planted_error_and_nothing_else(tmp_path: Path) -> None:
    needs("mypy")
    file = plant(tmp_path, "\n".join(ERRORS.values()))
    first = GOOD.count("\n") + 1
    found = run(
        "mypy", "--strict", "--no-error-summary", "--cache-dir", str(ROOT / ".mypy_cache" / "planted"), str(file)
    ).stdout
    wrong = [line.split(":")[:2] for line in found.splitlines() if ": error:" in line]
    assert {(Path(name).name, int(line)) for name, line in wrong} == {
        (file.name, line) for line in range(first, first + len(ERRORS))
    }, found


def test_pyright_finds_every_planted_error(tmp_path: Path) -> None:
    needs("pyright")
    file = plant(tmp_path, "\n".join(ERRORS.values()))
    first = GOOD.count("\n")  # pyright counts lines from zero
    result = run("pyright", "--outputjson", "--pythonpath", sys.executable, str(file))
    if not result.stdout.startswith("{"):
        pytest.skip(f"pyright does not run here: {result.stderr.strip()[-200:]}")
    found = json.loads(result.stdout)["generalDiagnostics"]
    lines = {entry["range"]["start"]["line"] for entry in found if entry["severity"] == "error"}
    assert lines == set(range(first, first + len(ERRORS))), found
