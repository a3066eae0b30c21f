"""Which server is killed, and what the other one is told, without an engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from server_kills import Kills

FIRST = [0, 3, 6, 9]
SERVER = """
import sys, time
from pathlib import Path
rooms, role, begin, starts = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), map(int, sys.argv[4:])
for first in starts:
    if first < begin:
        continue
    for room in (rooms / f"{number + 1}.0" for number in range(first, first + 3)):
        room.mkdir(exist_ok=True)
        (room / "ask").touch()
        if role == "decode":
            while not (room / "last").exists() and not (room / "aborted").exists():
                time.sleep(0.01)
        else:
            time.sleep(0.1)
            (room / "last").touch()
    (rooms / f"{role}.{first}").touch()
    other = "prefill" if role == "decode" else "decode"
    while not (rooms / f"{other}.{first}").exists():
        time.sleep(0.01)
"""
"""A server that is given groups of three requests; the prefill server ends each transfer after a moment."""


@pytest.fixture
def kills(tmp_path: Path) -> Kills:
    def start(role: str, begin: int) -> int:
        command = [sys.executable, "-c", SERVER, str(tmp_path), role, str(begin), *map(str, FIRST)]
        process = subprocess.Popen(command, start_new_session=True)
        process.returncode = 0  # the test waits for it
        return process.pid

    return Kills(tmp_path, start, FIRST, 2, ranks=1, lasts_s=0.05, seed=1)


def test_a_killed_server_starts_again_and_the_other_is_told(kills: Kills, tmp_path: Path) -> None:
    kills.run()
    assert 0 < len(kills.done) <= 2
    assert not kills.ended
    for _, first, _ in kills.done:
        rooms = [tmp_path / f"{number + 1}.0" for number in range(first, first + 3)]
        assert all((room / "last").exists() or (room / "aborted").exists() for room in rooms)
    assert all((tmp_path / f"{role}.{first}").exists() for role in ("prefill", "decode") for first in FIRST)


def test_a_server_that_ends_by_itself_is_named(tmp_path: Path) -> None:
    def start(role: str, begin: int) -> int:
        del begin
        program = "" if role == "decode" else "import time; time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
        process.returncode = 0
        return process.pid

    kills = Kills(tmp_path, start, FIRST, 3, ranks=1, lasts_s=0.0, seed=1)
    kills.run()
    assert kills.ended == ["decode"]
    assert not kills.done
