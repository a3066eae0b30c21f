"""One budget of memory for all pools of a tier, in place of a page count for each.

The tier's memory is so many equal blocks, and a page of each pool is a number of them, anywhere. So there is nothing to
compact and no slab to empty: memory moves from one kind of state to another with every page that is freed and allocated, and
whether a request fits is one sum. Rejected: slabs of pages of one kind, which can only move once they are empty, and page
counts that are revised now and then, which lag behind what is asked.

Cost: O(1) to allocate or free a page, whatever it takes; O(components + log n) to choose a victim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from unified_tree.inputs.arguments import integer
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockBudget:
    """So many blocks of memory, and how many of them a page of each pool takes.

    Attributes:
        block_count: blocks in all.
        page_blocks: blocks of a page, by component with pages of its own on the tier.
        block_bytes: bytes of a block, for reports.

    Raises ConfigurationError for other than positive integers, and where no page of some pool would fit.

    >>> budget = BlockBudget.of({"full": 512, "swa": 768}, 10_000)
    >>> budget.block_bytes, budget.block_count, dict(budget.page_blocks), budget.page_count("swa")
    (256, 39, {'full': 2, 'swa': 3}, 13)
    """

    block_count: int
    page_blocks: Mapping[str, int]
    block_bytes: int = 1

    def __post_init__(self) -> None:
        integer(self.block_count, "block_count", ConfigurationError, minimum=1)
        integer(self.block_bytes, "block_bytes", ConfigurationError, minimum=1)
        if not isinstance(self.page_blocks, Mapping) or not self.page_blocks:
            raise ConfigurationError(
                f"page_blocks must be a mapping from components to blocks, not {repr_of(self.page_blocks)}"
            )
        blocks = {
            name: integer(count, f"page_blocks[{repr_of(name)}]", ConfigurationError, minimum=1)
            for name, count in self.page_blocks.items()
        }
        object.__setattr__(self, "page_blocks", blocks)  # the caller's own mapping may change
        for name, count in blocks.items():
            if count > self.block_count:
                raise ConfigurationError(f"{name}: a page takes {count} blocks, and there are {self.block_count}")

    @classmethod
    def of(cls, page_bytes: Mapping[str, int], size_bytes: int, *, block_bytes: int | None = None) -> BlockBudget:
        """The budget of `size_bytes` for pages of these sizes.

        Args:
            page_bytes: by component with pages of its own on the tier, what shares its pages included:
                `Composition.pool_page_bytes` of a device.
            block_bytes: of a block; by default the greatest common divisor of the pages, so that none has padding.

        Raises ConfigurationError for sizes that are not positive, and where no page of some pool would fit.
        """
        sizes = {
            name: integer(size, f"page_bytes[{repr_of(name)}]", ConfigurationError, minimum=1)
            for name, size in page_bytes.items()
        }
        size_bytes = integer(size_bytes, "size_bytes", ConfigurationError, minimum=1)
        if block_bytes is None:
            block_bytes = gcd(*sizes.values())
        block = integer(block_bytes, "block_bytes", ConfigurationError, minimum=1)
        if size_bytes < block:
            raise ConfigurationError(f"a budget of {size_bytes} bytes has no block of {block}")
        blocks = {name: -(-size // block) for name, size in sizes.items()}
        return cls(block_count=size_bytes // block, page_blocks=blocks, block_bytes=block)

    @property
    def size_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.block_count * self.block_bytes

    def page_count(self, component: str) -> int:
        """How many pages a pool could have, had it all blocks; its page ids are below that."""
        return self.block_count // self.page_blocks[component]

    @property
    def page_counts(self) -> dict[str, int]:
        """The same of every pool."""
        return {name: self.page_count(name) for name in self.page_blocks}

    def blocks(self, pages: Mapping[str, int]) -> int:
        """Blocks of so many pages by component. Cost: O(components given)."""
        return sum(self.page_blocks[name] * count for name, count in pages.items())
