"""One rank in the metadata service: which life of its file it knows, and a table of pages for each namespace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from unified_tree.controllers.storage.hf3fs.metadata.page_table import PageTable
from unified_tree.controllers.storage.hf3fs.metadata.rank_image import NamespaceImage, RankImage


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


class Rank:
    """A rank of this epoch with these namespaces, in the order of the file.

    Args:
        quiet_until: before that no page is handed out.
        tables: of namespaces that keep what they have.
    """

    def __init__(
        self, epoch: int, shapes: Mapping[str, Shape], quiet_until: float, tables: Mapping[str, PageTable] | None = None
    ) -> None:
        self.epoch = epoch
        self.shapes = dict(shapes)
        self.quiet_until = quiet_until
        kept = tables or {}
        self.tables = {name: kept.get(name) or PageTable(shape.page_count) for name, shape in shapes.items()}

    @classmethod
    def of(cls, image: RankImage, quiet_until: float) -> Rank:
        """The rank as it was written down."""
        shapes = {name: Shape(i.format, i.stride_bytes, i.page_count) for name, i in image.namespaces.items()}
        tables = {name: PageTable(i.page_count, i.held.items()) for name, i in image.namespaces.items()}
        return cls(image.epoch, shapes, quiet_until, tables)

    def image(self, name: str) -> RankImage:
        """What is written down, but for the keys. Cost: O(namespaces)."""
        namespaces = {
            of: NamespaceImage(format=shape.format, stride_bytes=shape.stride_bytes, page_count=shape.page_count)
            for of, shape in self.shapes.items()
        }
        return RankImage(rank=name, epoch=self.epoch, namespaces=namespaces)

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
