"""What a tree weighs: on the garbage collector, and in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from benches.scenarios import FIRST_LEAVES, resident_bytes
from benches.shapes import Grown, sets
from benches.worst_case import Call, WorstCase

SETS = ("full", "full_swa", "full_mamba")


class FullCollection(WorstCase):
    """Full garbage collections with a tree of so many nodes, less what they take with an empty one."""

    question = "How long does a full garbage collection stop the process for the sake of a tree of so many nodes?"
    silent_on = "what else the process keeps; collections of the young generations"
    components = ""
    variants = SETS
    varied = "nodes"
    unit = "ms"
    ns_a_unit = 1e6

    def build(self) -> None:
        """Time the collector with an empty tree, then fill the tree."""
        gc.freeze()
        self.grown = Grown(sets(self.variant), self.page_size)
        self.grown.plant()
        gc.collect()
        self.empty_ns = min(super(FullCollection, self).measure(gc.collect)[0] for _ in range(5))
        self.grown.grow(range(self.size))

    def calls(self) -> Iterator[Call]:
        """The first has most to look at; the others are what every later one takes."""
        for _ in range(6):
            yield gc.collect

    def measure(self, call: Call) -> tuple[float, object]:
        """Less the empty tree's. How much was collected is no answer, only that nothing of the tree was."""
        spent, _ = super().measure(call)
        return max(0.0, spent - self.empty_ns), self.grown.tree.node_count


class MemoryOfNodes(WorstCase):
    """The process's resident memory before and after a tree has grown."""

    question = "Does a node take more memory in a larger tree?"
    silent_on = "long edges, and memory that was free in the process before"
    components = ""
    is_divided = True
    variants = SETS
    varied = "nodes"
    unit = "bytes/node"
    lives_once = True
    ns_a_unit = 1.0

    def build(self) -> None:
        """A few leaves, so that what is made once is there before."""
        self.grown = Grown(sets(self.variant), self.page_size)
        self.grown.plant()
        self.grown.grow(range(FIRST_LEAVES))

    def calls(self) -> Iterator[Call]:
        """Once: memory that was given back is not taken again."""
        yield self.grow

    def grow(self) -> int:
        """How many nodes there are then."""
        self.grown.grow(range(FIRST_LEAVES, FIRST_LEAVES + self.size))
        return self.grown.tree.node_count

    def measure(self, call: Call) -> tuple[float, object]:
        """Bytes instead of time; none where the tree grew into memory that the process had before."""
        before = resident_bytes()
        result = call()
        return max(0, resident_bytes() - before), result
