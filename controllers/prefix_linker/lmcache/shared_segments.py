"""Device pools of a machine without GPU, in memory that the daemon can map; and what a killed client left of that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.pools.device_pool import DevicePool

SEGMENTS = Path("/dev/shm")
_NAME = re.compile(r"lmcache_kv_(\d+)_\d+")


def share_pools(pools: Mapping[str, DevicePool]) -> None:
    """Move CPU pools into shared memory, before anything has taken a view of them; pools on a GPU need nothing.

    Their bytes stay, their addresses do not: what was made of a pool before (a mover, a kernel's view) sees the old memory.
    Raises ConfigurationError without the package. Cost: a copy of the pools.
    """
    for pool in pools.values():
        for part in pool.format.parts:
            if pool.device.type == "cpu":
                _module("lmcache.v1.platform.devices.cpu.shm").migrate_to_shm_and_wrap(pool.memory(part.name))


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            f"lmcache: the package cannot be imported ({error}): pip install 'unified-tree[lmcache]', and as its page says"
        ) from error


def remove_leftovers(segments: Path = SEGMENTS, processes: Path = Path("/proc")) -> list[str]:
    """Remove the segments of clients that have ended without doing so, and return their names.

    A segment is a leftover if no process has the number in its name, or one that began after the segment was made. Segments
    of others' that may not be removed stay. With process numbers of another container it can err: then that client's memory
    stays with it and its daemon, and only a daemon that is restarted cannot map it any more.
    """
    removed = []
    for segment in sorted(segments.glob("lmcache_kv_*")):
        named = _NAME.fullmatch(segment.name)
        if named is None:
            continue
        try:
            if _is_leftover(segment, processes / named[1]):
                segment.unlink()
                removed.append(segment.name)
        except (FileNotFoundError, PermissionError):
            continue
    return removed


def _is_leftover(segment: Path, process: Path) -> bool:
    made = segment.stat().st_ctime
    try:
        return process.stat().st_ctime > made
    except FileNotFoundError:
        return True
