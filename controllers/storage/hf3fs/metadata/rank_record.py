"""One rank in the metadata service: which life of its file it knows, and a table of pages for each namespace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from unified_tree.controllers.storage.hf3fs.metadata.page_table import PageTable


class RefusedError(Exception):
    """The service does not do what it was asked. `status` is HTTP's."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a namespace's region in the file."""

    format: str
    stride_bytes: int
    page_count: int


@dataclass(frozen=True, slots=True)
class StoredNamespace:
    """A namespace as it is on disk: its number there, and its keys with their pages, the least recently used first."""

    number: int
    shape: Shape
    held: dict[bytes, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredRank:
    """A rank as it is on disk, its namespaces in the order of the file."""

    epoch: int
    namespaces: dict[str, StoredNamespace] = field(default_factory=dict)


class Rank:
    """A rank while the service runs.

    Args:
        stored: as it is on disk.
        quiet_until: before that no page is handed out.
    """

    def __init__(self, stored: StoredRank, quiet_until: float) -> None:
        self.epoch = stored.epoch
        self.quiet_until = quiet_until
        self.numbers = {name: of.number for name, of in stored.namespaces.items()}
        self.shapes = {name: of.shape for name, of in stored.namespaces.items()}
        self.tables: Mapping[str, PageTable] = {
            name: PageTable(of.shape.page_count, of.held) for name, of in stored.namespaces.items()
        }

    @property
    def is_untouched(self) -> bool:
        """Whether no page of it was ever handed out."""
        return all(table.gauges()["free"] == table.page_count for table in self.tables.values())

    @property
    def is_in_use(self) -> bool:
        """Whether somebody reads, writes, or may be writing."""
        return any(table.is_in_use for table in self.tables.values())

    def described(self) -> str:
        """Its namespaces in words."""
        return ", ".join(f"{name}: {s.page_count} pages of {s.stride_bytes} bytes" for name, s in self.shapes.items())

    def stats(self) -> dict[str, Any]:
        """Counts and gauges by namespace."""
        return {
            name: asdict(table.counters) | table.gauges() | {"stride_bytes": self.shapes[name].stride_bytes}
            for name, table in self.tables.items()
        }
