"""A disk that fills up."""

from __future__ import annotations

import errno

from unified_tree.controllers.workbench.recorder.trace_writer import Disk


class FullDisk(Disk):
    """Takes so many bytes, the last write of them in part."""

    def __init__(self, room: int = 0) -> None:
        self.room = room

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """See Disk."""
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(self.room, len(data))
        self.room -= taken
        return super().write(descriptor, data[:taken])
