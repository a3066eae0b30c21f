"""A KV cache group of vLLM: layers with one block table, as a component of the tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Coverage
from unified_tree.terms.errors import ConfigurationError

NO_LAYER: Final = "a stage without layers of the group"
"""Stands for the layers of a group in a pipeline stage that has none: its pages only say that the stage has saved them."""
NO_LAYER_BYTES: Final = 8
"""Of its block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGroup:
    """One KV cache group.

    Attributes:
        index: its number in vLLM.
        coverage: which of its blocks a prefix needs.
        layer_names: vLLM's names, of the worker's pipeline stage; `NO_LAYER` if it has none.
        block_bytes: of one block over these layers.
    """

    index: int
    coverage: Coverage
    layer_names: tuple[str, ...]
    block_bytes: int

    @property
    def name(self) -> str:
        """Of its component."""
        return f"group{self.index}"

    @property
    def component(self) -> Component:
        """The group as the tree knows it."""
        return Component(name=self.name, coverage=self.coverage, page_bytes=self.block_bytes)


def over_stages(groups: Sequence[BlockGroup], stages: Sequence[Sequence[int]]) -> list[BlockGroup]:
    """The groups with the largest block that any pipeline stage has of each, by which all stages count the same pages.

    Args:
        stages: `block_bytes` of the groups, by stage.

    >>> from unified_tree import Path
    >>> full = BlockGroup(index=0, coverage=Path(), layer_names=("a",), block_bytes=100)
    >>> over_stages([full], [[100], [300]])[0].block_bytes
    300
    """
    largest = [max(sizes) for sizes in zip(*stages, strict=True)]
    return [replace(group, block_bytes=size) for group, size in zip(groups, largest, strict=True)]


def page_counts(groups: Sequence[BlockGroup], page_size: int, host_bytes: int, boundary_tokens: int) -> dict[str, int]:
    """Host pages by component that fit into `host_bytes`: for each page of a path as many pages of a window or states as
    boundaries `boundary_tokens` apart need, and at least four boundaries.

    Raises ConfigurationError if not even those fit.

    >>> from unified_tree import Path, Point
    >>> full = BlockGroup(index=0, coverage=Path(), layer_names=("a",), block_bytes=100)
    >>> state = BlockGroup(index=1, coverage=Point(), layer_names=("b",), block_bytes=100)
    >>> page_counts([full, state], 16, 100_000, 64)
    {'group0': 800, 'group1': 200}
    """
    shares = {
        group.name: 1.0
        if group.coverage.is_path
        else min(1.0, group.coverage.boundary_pages(page_size) * page_size / boundary_tokens)
        for group in groups
    }
    least = {group.name: 4 * max(1, group.coverage.boundary_pages(page_size)) for group in groups}
    paths = int(host_bytes / sum(group.block_bytes * shares[group.name] for group in groups))
    counts = {name: max(least[name], int(paths * share)) for name, share in shares.items()}
    lowest = sum(least[group.name] * group.block_bytes for group in groups)
    if host_bytes < lowest:
        raise ConfigurationError(f"host_gib gives {host_bytes} bytes; this model needs at least {lowest} for four boundaries")
    bytes_over = sum(counts[group.name] * group.block_bytes for group in groups) - host_bytes
    for group in sorted(groups, key=lambda group: -counts[group.name] * group.block_bytes):
        if bytes_over > 0:  # what the minimum took is taken from the largest
            given = min(counts[group.name] - least[group.name], -(-bytes_over // group.block_bytes))
            counts[group.name] -= given
            bytes_over -= given * group.block_bytes
    return counts
