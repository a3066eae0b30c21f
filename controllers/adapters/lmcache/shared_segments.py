"""Device pools of a machine without GPU, in memory that the daemon can map; and what a killed client left of that.

LMCache names a segment of shared memory by the process's number, which says nothing: with a shared /dev/shm another container's
process has the same number, or one that cannot be seen from here, and its segments are live memory. So each segment that
`share_pools` makes has a record beside it, a small file with the segment's name and inode, and this process keeps the record
locked (`flock`) for as long as the segment is in use. The kernel releases the lock when the process has ended, however it
ended, and no sooner, whichever namespace asks. A segment is a leftover of ours if its record, by this user, can be locked and
names that very inode; everything else is somebody's, and stays. Rejected: the process's number with its start, the boot and the
namespace, which prove nothing about a process in a namespace that cannot be looked into.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import stat
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.adapters.lmcache.lmcache_package import lmcache_module
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.pools.device_pool import DevicePool

SEGMENTS = Path("/dev/shm")
RECORD_PREFIX = "unified_tree_segment_"
"""Of a record's name; some random digits follow."""
_SEGMENT_NAME = re.compile(r"lmcache_kv_[0-9]+_[0-9]+")
_LARGEST_RECORD_BYTES = 4096


def share_pools(pools: Mapping[str, DevicePool]) -> None:
    """Move CPU pools into shared memory, before anything has taken a view of them; pools on a GPU need nothing.

    Their bytes stay, their addresses do not: what was made of a pool before (a mover, a kernel's view) sees the old memory. The
    memory is freed when the pools are gone. Raises ConfigurationError without the package, or where a segment of the same
    name is in the way; what was moved before stays moved. Cost: a copy of the pools.
    """
    for pool in pools.values():
        for part in pool.format.parts:
            if pool.device.type == "cpu":
                _share(pool.memory(part.name))


def remove_leftovers(segments: Path = SEGMENTS) -> list[str]:
    """Remove the segments that `share_pools` made in processes of this user which have ended without doing so; their names.

    Nothing calls this but the program. A segment goes only if its record proves that it is ours and that the process has ended;
    so one of another program, of another user, or of a client that was killed before it had written the record, stays.

    Args:
        segments: where shared memory is.

    Raises OSError where `segments` cannot be listed. Cost: O(what lies there).
    """
    removed = []
    for path in sorted(segments.glob(f"{RECORD_PREFIX}*")):
        with suppress(FileNotFoundError, PermissionError), _locked(path) as said:
            if said is None:
                continue
            segment = segments / said["segment"]
            if _identity(segment) == [said["device"], said["inode"]]:
                segment.unlink()
                removed.append(segment.name)
            path.unlink()
    return removed


def _share(tensor: Any) -> None:
    """Move one tensor's memory, and record that."""
    try:
        segment = lmcache_module("lmcache.v1.platform.devices.cpu.shm").migrate_to_shm_and_wrap(tensor).shm_name.lstrip("/")
    except FileExistsError as error:
        raise ConfigurationError(
            f"lmcache: the segment of shared memory {error.filename or error} is there already, of another process with this "
            "one's number: if a client was killed, `remove_leftovers` removes what is provably its own; containers that share "
            "/dev/shm want different process numbers"
        ) from error
    if segment:  # an empty tensor has none
        path = SEGMENTS / f"{RECORD_PREFIX}{secrets.token_hex(8)}"
        record = _recorded(path, SEGMENTS / segment)
        weakref.finalize(tensor.untyped_storage(), _forget, record, path, os.getpid())


def _recorded(path: Path, segment: Path) -> int:
    """The descriptor of a new record, locked before there is anything in it that others could act on."""
    device, inode = _identity(segment)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, json.dumps({"segment": segment.name, "device": device, "inode": inode}).encode())
    return descriptor


def _forget(record: int, path: Path, process: int) -> None:
    """The memory is not used any more. In a fork the record stays the parent's."""
    if os.getpid() == process:
        path.unlink(missing_ok=True)
    os.close(record)


@contextmanager
def _locked(path: Path) -> Iterator[dict[str, Any] | None]:
    """What a record says while it is locked; None for one that is in use, not this user's, or no record."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and _has_lock(descriptor)
        is_there = is_ours and _identity(path) == [status.st_dev, status.st_ino]
        yield _said(os.read(descriptor, _LARGEST_RECORD_BYTES)) if is_there else None
    finally:
        os.close(descriptor)


def _has_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _said(text: bytes) -> dict[str, Any] | None:
    try:
        said = json.loads(text)
    except ValueError:
        return None
    if not isinstance(said, dict) or {name: type(value) for name, value in said.items()} != _RECORD:
        return None
    return said if _SEGMENT_NAME.fullmatch(said["segment"]) else None


_RECORD = {"segment": str, "device": int, "inode": int}


def _identity(path: Path) -> list[int]:
    """Device and inode of a regular file; none of what is not there or something else."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return []
    return [status.st_dev, status.st_ino] if stat.S_ISREG(status.st_mode) else []
