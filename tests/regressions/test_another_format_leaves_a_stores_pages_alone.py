"""A file store opened for another dtype deleted the pages of the first one, with 60 MiB of 8 GiB used, and did not say so."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from stored_pages import blanks, body, keys, pages, pool
from waiting import PROGRAM_S

from unified_tree.controllers.storage import FileStorage, Outcome, StoredPool

GIB = 1 << 30
BF16, FP8 = pool(4160, "bf16"), pool(2112, "fp8")
PAGES = range(76)  # 1,216 tokens of 16 a page


def put(directory: Path, one: StoredPool, capacity_bytes: int = 8 * GIB, numbers: Sequence[int] = PAGES) -> None:
    engine = FileStorage([one], directory, capacity_bytes)
    outcomes = engine.put(one.name, keys(list(numbers)), pages(list(numbers), one.value_bytes))
    assert set(outcomes) <= {Outcome.DONE, Outcome.PRESENT}
    engine.close()


def hits(directory: Path, one: StoredPool, capacity_bytes: int = 8 * GIB) -> int:
    """How many pages come back, every byte of them compared."""
    engine = FileStorage([one], directory, capacity_bytes)
    into = blanks(len(PAGES), one.value_bytes)
    outcomes = engine.get(one.name, keys(PAGES), into)
    for number, got, outcome in zip(PAGES, into, outcomes, strict=True):
        assert outcome is not Outcome.DONE or got == body(number, one.value_bytes)
    engine.close()
    return outcomes.count(Outcome.DONE)


def test_formats_take_turns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        for one in (BF16, FP8):
            put(tmp_path, one)
    assert [hits(tmp_path, one) for one in (BF16, FP8, BF16)] == [76, 76, 76]
    assert not caplog.records


def test_two_at_once(tmp_path: Path) -> None:
    first, second = FileStorage([BF16], tmp_path, 8 * GIB), FileStorage([FP8], tmp_path, 4 * GIB)
    for engine, one in ((first, BF16), (second, FP8)):
        assert set(engine.put(one.name, keys(PAGES), pages(PAGES, one.value_bytes))) == {Outcome.DONE}
    assert first.exists("bf16", keys(PAGES)).all() and second.exists("fp8", keys(PAGES)).all()
    second.clear()
    assert first.exists("bf16", keys(PAGES)).all(), "clearing one format touches no other"
    first.close()
    second.close()


@pytest.mark.parametrize("capacities", [(8 * GIB, GIB), (GIB, 8 * GIB), (8 * GIB, 7 * GIB), (GIB, 4 << 20, GIB)])
def test_another_capacity_at_the_next_opening(tmp_path: Path, capacities: tuple[int, ...]) -> None:
    put(tmp_path, BF16, capacities[0])
    assert [hits(tmp_path, BF16, capacity) for capacity in capacities] == [76] * len(capacities)


def test_after_a_kill(tmp_path: Path) -> None:
    """Killed with a table open, and with its values half moved."""
    code = f"""
import os, signal
from pathlib import Path
from stored_pages import keys, pages, pool
from unified_tree.controllers.storage import FileStorage
one = pool(4160, "bf16")
engine = FileStorage([one], {str(tmp_path)!r}, {8 * GIB})
engine.put("bf16", keys(range(76)), pages(range(76)))
engine.close()
written = os.pwritev
def dies(descriptor, buffers, at):
    dies.left -= 1
    if not dies.left:
        os.kill(os.getpid(), signal.SIGKILL)
    return written(descriptor, buffers, at)
dies.left = 40
os.pwritev = dies
FileStorage([one], {str(tmp_path)!r}, {64 << 20})
"""
    where = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "support")])
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=PROGRAM_S, env={**os.environ, "PYTHONPATH": where})
    assert done.returncode == -signal.SIGKILL
    put(tmp_path, FP8)
    assert hits(tmp_path, BF16) == 76
    assert not list(tmp_path.glob("*.new"))


def test_what_goes_is_the_oldest_and_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "unified_tree.storage")
    small = 1 << 20
    for number, one in enumerate((BF16, FP8)):
        put(tmp_path, one, small, range(30))
        for path in tmp_path.glob(f"{one.format_digest.hex()}*"):
            os.utime(path, (number + 1, number + 1))
    newest = pool(4160, "newest")
    engine = FileStorage([newest], tmp_path, small)
    for number in range(76):
        engine.put("newest", keys([number]), pages([number]))
    assert hits(tmp_path, FP8, small) == 30, "the one used last stays"
    assert hits(tmp_path, BF16, small) == 0
    assert engine.stats().freed_bytes > 0
    assert len(caplog.records) == 1 and "unused for longest, is deleted" in caplog.text
    engine.close()
