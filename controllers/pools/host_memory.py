"""How much host memory may still be allocated: the minimum over the machine and every control group.

A container's limit is often far below the machine's memory, and running into it kills the process without a message. So the
kernel's own files are read, for version 1 and 2 of control groups and for all ancestors, each of which may set a limit.
File pages that the kernel can drop count as free, as they do in `MemAvailable`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

RESERVE_BYTES = 256 << 20
"""Host memory that stays free by default when a pool is full."""
ROOT = Path("/")


def host_memory_available(root: Path = ROOT) -> int:
    """Bytes this process may still allocate, zero or more. Cost: a few small files per level of control groups.

    Args:
        root: where `proc` and `sys` are.
    """
    return max(0, min([_machine_available(root), *_cgroups_available(root)]))


def check_host_memory(
    size_bytes: int,
    reserve_bytes: int = RESERVE_BYTES,
    *,
    component: str,
    remedy: str = "take fewer pages",
    root: Path = ROOT,
) -> None:
    """Raise ConfigurationError if `size_bytes` cannot be allocated with `reserve_bytes` left over, or the reserve is negative.

    Args:
        size_bytes: to be allocated.
        reserve_bytes: to be left over.
        component: whose pool it is, for the message.
        remedy: what to do, for the message.
        root: see `host_memory_available`.
    """
    if type(reserve_bytes) is not int or reserve_bytes < 0:
        raise ConfigurationError(f"{component}: reserve_bytes must be an integer of zero or more, not {repr_of(reserve_bytes)}")
    available = host_memory_available(root)
    if size_bytes + reserve_bytes > available:
        raise ConfigurationError(
            f"{component}: {size_bytes} bytes of host memory needed and {reserve_bytes} to be left over, "
            f"{available} are available; {remedy}"
        )


def _machine_available(root: Path) -> int:
    """`MemAvailable`; all of the memory on a system that does not say."""
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroups_available(root: Path) -> Iterator[int]:
    """What each control group above this process leaves, those without a limit left out."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                for folder in _ancestors(root / mount, path):
                    yield from _left(folder, ("memory.max", "memory.high"), "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            for folder in _ancestors(root / "sys/fs/cgroup/memory", path):
                yield from _left(folder, ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def _ancestors(mount: Path, path: str) -> Iterator[Path]:
    """The folders from a group up to the mount. In a container the mount may be the group itself, its path unknown here;
    a path that leads out of the mount (`/../x`, a group beside the namespace's root) says nothing but for the mount."""
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _left(folder: Path, limits: tuple[str, ...], usage: str, droppable: str) -> Iterator[int]:
    """The limits of one group less what it uses; nothing where files are missing or say `max`."""
    used = _number(folder / usage)
    if used is None:
        return
    for name in limits:
        limit = _number(folder / name)
        if limit is not None:
            yield limit - max(0, used - _statistic(folder / "memory.stat", droppable))


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _statistic(file: Path, name: str) -> int:
    try:
        return next((int(line.split()[1]) for line in file.read_text().splitlines() if line.split()[:1] == [name]), 0)
    except OSError:
        return 0
