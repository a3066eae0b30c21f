"""What the texts of a random test look like: bushy, one wide node, one long chain, one long edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

BUSH = tuple(range(9))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Token sequences that share prefixes in one way.

    Attributes:
        first: what is inserted before anything else happens, so that the shape is there.
        draw: a token sequence of it; may end anywhere.
        extra_pages: how many pages of each pool it takes to have all of `first`.
    """

    first: tuple[tuple[int, ...], ...]
    draw: Callable[[Random], tuple[int, ...]]
    extra_pages: int


def bushy(_page_size: int, _size: int) -> Shape:
    """Eight texts that branch off each other."""
    return Shape(first=(), draw=_branch, extra_pages=0)


def _branch(rng: Random) -> tuple[int, ...]:
    branch = rng.randrange(8)
    tokens = (0, 0, 0, branch & 1, 1, 1, branch & 3, 2, 2, branch, branch, *BUSH)
    return tokens[: rng.randrange(len(tokens) + 1)]


def fan(page_size: int, size: int) -> Shape:
    """One node with `size` children of a page, some of which go on."""
    stem = (0,) * page_size
    leaves = tuple(stem + (100 + i,) * page_size for i in range(size))

    def draw(rng: Random) -> tuple[int, ...]:
        tokens = rng.choice(leaves) + BUSH[: rng.choice([0, 0, 1, 4])]
        return tokens if rng.random() < 0.8 else _branch(rng)

    return Shape(first=leaves, draw=draw, extra_pages=size + 1)


def chain(page_size: int, size: int) -> Shape:
    """One path of `size` nodes of a page."""
    whole = tuple(range(100, 100 + page_size * size))
    prefixes = tuple(whole[:end] for end in range(page_size, len(whole) + 1, page_size))

    def draw(rng: Random) -> tuple[int, ...]:
        end = rng.choice([len(whole), rng.randrange(len(whole) + 1)])
        return whole[:end] + BUSH[: rng.choice([0, 0, 3])]

    return Shape(first=prefixes, draw=draw, extra_pages=size)


def edge(page_size: int, size: int) -> Shape:
    """One node of `size` pages, which others cut somewhere."""
    whole = tuple(100 + i % 7 for i in range(page_size * size))

    def draw(rng: Random) -> tuple[int, ...]:
        end = rng.choice([len(whole), rng.randrange(len(whole) + 1)])
        return whole[:end] + BUSH[: rng.choice([0, 0, 0, 3])]

    return Shape(first=(whole,), draw=draw, extra_pages=size)


SHAPES: dict[str, Callable[[int, int], Shape]] = {"bushy": bushy, "fan": fan, "chain": chain, "edge": edge}
SIZES = {"bushy": 0, "fan": 150, "chain": 30, "edge": 80}
"""Children, nodes or pages: as many as a check after every few operations can bear."""
