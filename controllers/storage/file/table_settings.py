"""What all tables of one file engine have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unified_tree.controllers.storage.file.file_faults import FileFaults
from unified_tree.controllers.storage.file.file_limits import FileLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """Attributes:
    sync: put returns when the values would survive a power failure.
    clock_ns: nanoseconds since 1970.
    limits: of the engine.
    faults: told what fails.
    """

    sync: bool
    clock_ns: Callable[[], int]
    limits: FileLimits
    faults: FileFaults
