"""Whose shared memory is removed: what a process of ours made and left behind when it was killed, and only when asked to."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import lmcache_server
import pytest

from unified_tree.controllers.adapters.lmcache import remove_leftovers
from unified_tree.controllers.testing.linked_tensors import FORMATS, LinkedTensors
from unified_tree.terms.errors import ConfigurationError

lmcache_server.skip_unless_it_runs()
pytestmark = lmcache_server.QUIET
SEGMENTS = Path("/dev/shm")
CLIENT = """
import os, sys, time
from unified_tree.controllers.testing.linked_tensors import LinkedTensors
tensors = LinkedTensors(4, share=True)
if "fork" in sys.argv and os.fork() == 0:
    os.close(1)
    time.sleep(60)
print("shared", flush=True)
time.sleep(60)
"""


def of(process: int) -> set[str]:
    return {name for name in os.listdir(SEGMENTS) if name.startswith(f"lmcache_kv_{process}_")}


def records(*processes: int) -> int:
    """How many there are of the segments of some processes; other tests share memory, too."""
    names = tuple(f"lmcache_kv_{process}_" for process in processes)
    count = 0
    for path in SEGMENTS.glob("unified_tree_segment_*"):
        with suppress(FileNotFoundError, ValueError):  # gone meanwhile, or not yet written
            count += json.loads(path.read_text())["segment"].startswith(names)
    return count


def test_what_a_killed_client_left_goes_when_asked_for_and_nothing_else() -> None:
    gc.collect()  # what earlier tests have left to it is not counted
    before, mine = records(os.getpid()), LinkedTensors(4, share=True)
    with subprocess.Popen([sys.executable, "-c", CLIENT], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None and client.stdout.readline() == "shared\n"
        theirs, ours = of(client.pid), of(os.getpid())
        assert len(theirs) == sum(len(page_format.parts) for page_format in FORMATS.values())
        assert records(client.pid) == len(theirs) == records(os.getpid()) - before
        assert not theirs & set(remove_leftovers()) and of(client.pid) == theirs, "it lives"
        client.send_signal(signal.SIGKILL)
    assert of(client.pid) == theirs
    assert set(remove_leftovers()) >= theirs and not of(client.pid)
    assert of(os.getpid()) == ours and records(client.pid) == 0, "what is in use stays"
    assert records(os.getpid()) - before == len(theirs)
    assert not theirs & set(remove_leftovers())
    del mine
    gc.collect()
    assert not ours & of(os.getpid()) and records(os.getpid()) == before, "memory that is given back takes its record with it"


def test_a_child_that_still_has_the_memory_keeps_it() -> None:
    with subprocess.Popen([sys.executable, "-c", CLIENT, "fork"], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None and client.stdout.readline() == "shared\n"
        [child] = map(int, Path(f"/proc/{client.pid}/task/{client.pid}/children").read_text().split())
        theirs = of(client.pid)
        client.send_signal(signal.SIGKILL)
    assert not theirs & set(remove_leftovers())
    handle = os.pidfd_open(child)
    os.kill(child, signal.SIGKILL)
    select.select([handle], [], [], 60)  # until it has ended
    os.close(handle)
    assert set(remove_leftovers()) >= theirs


def recorded(folder: Path, segment: str, inode: int | None = None, device: int | None = None, name: str = "a") -> Path:
    path, status = folder / f"unified_tree_segment_{name}", (folder / segment).lstat()
    said = {"segment": segment, "device": device or status.st_dev, "inode": inode or status.st_ino}
    path.write_text(json.dumps(said))
    return path


def test_what_a_record_must_say(tmp_path: Path) -> None:
    segment = tmp_path / "lmcache_kv_7_0"
    segment.touch()
    assert remove_leftovers(tmp_path) == [], "there is no record"
    record = recorded(tmp_path, segment.name)
    with record.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert remove_leftovers(tmp_path) == [], "somebody holds it"
        assert record.exists()
    recorded(tmp_path, segment.name, inode=1)
    assert remove_leftovers(tmp_path) == [] and not record.exists(), "another segment bears the name by now"
    for text in ("", "{", "[]", '{"segment": "lmcache_kv_7_0"}', '{"segment": "../x", "device": 1, "inode": 1}'):
        record.write_text(text)
        assert remove_leftovers(tmp_path) == [] and record.exists(), "no record of ours"
    other = tmp_path / "other"
    other.touch()
    recorded(tmp_path, other.name)
    assert remove_leftovers(tmp_path) == []
    record.unlink()
    (tmp_path / "unified_tree_segment_b").symlink_to(other)
    (tmp_path / "unified_tree_segment_c").mkdir()
    with pytest.raises(OSError, match="symbolic"):
        remove_leftovers(tmp_path)
    (tmp_path / "unified_tree_segment_b").unlink()
    recorded(tmp_path, segment.name)
    assert remove_leftovers(tmp_path) == [segment.name]
    assert other.exists() and not segment.exists() and not record.exists()


def test_a_segment_that_is_in_the_way_is_named() -> None:
    probe = LinkedTensors(4, share=True)
    number = 1 + max(int(name.rpartition("_")[2]) for name in of(os.getpid()))
    blocking = SEGMENTS / f"lmcache_kv_{os.getpid()}_{number}"
    blocking.touch()
    try:
        with pytest.raises(ConfigurationError, match=r"is there already.*`remove_leftovers`"):
            LinkedTensors(4, share=True)
        assert blocking.exists()
    finally:
        blocking.unlink()
        del probe
