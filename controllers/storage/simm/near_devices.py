"""The RDMA devices beside the processors that a process may run on: traffic to others crosses the link between sockets."""

from __future__ import annotations

import os
from pathlib import Path

SYSFS = Path("/sys")


def near_devices(sysfs: Path = SYSFS, processors: frozenset[int] | None = None) -> tuple[str, ...]:
    """Names of devices on the NUMA nodes of these processors, sorted; none where there are no such.

    Args:
        sysfs: where the kernel tells of them.
        processors: by default those that this process is allowed.

    A machine without NUMA says node -1 of its devices; such are near to every processor.
    """
    allowed = frozenset(os.sched_getaffinity(0)) if processors is None else processors
    nodes = {
        int(path.parent.name.removeprefix("node"))
        for path in (sysfs / "devices/system/node").glob("node[0-9]*/cpulist")
        if not allowed.isdisjoint(_listed(path.read_text()))
    }
    near = [
        path.parent.parent.name
        for path in (sysfs / "class/infiniband").glob("*/device/numa_node")
        if int(path.read_text()) in nodes | {-1}
    ]
    return tuple(sorted(near))


def _listed(text: str) -> set[int]:
    """Of "0-3,8": 0, 1, 2, 3 and 8."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found
