"""One row to measure: an operation with its sizes."""

from __future__ import annotations

from dataclasses import dataclass

COMPONENT_SETS = ("full", "full_swa", "full_mamba")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An operation, and how large everything is.

    Attributes:
        operation: a name in `benches.catalogue`.
        length: tokens of the prompt or prefix; 0 where there is none.
        depth: nodes on the path.
        paths: different prompts that take turns, or conversations.
        tree_nodes: leaves in the tree besides.
        samples: samples a round.
        rounds: how often the contestants take turns.
        only: contestants that take part; empty for all of the usual ones.
        series: cases in a row of one series share one tree, which grows.
    """

    operation: str
    components: str = "full"
    page_size: int = 64
    length: int = 0
    depth: int = 1
    paths: int = 1
    tree_nodes: int = 0
    samples: int = 100
    rounds: int = 5
    seed: int = 20240
    only: tuple[str, ...] = ()
    series: str = ""
