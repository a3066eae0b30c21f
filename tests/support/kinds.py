"""Components to test with, and the sets of them that every random test goes through."""

from __future__ import annotations

from unified_tree import Chunked, Component, Path, Point, Trailing

FULL = Component(name="full", coverage=Path())
MAMBA = Component(name="mamba", coverage=Point())
DRAFT = Component(name="draft", coverage=Path(), required=False, shares="full")
OWN_DRAFT = Component(name="draft", coverage=Path(), required=False)
INDEXER = Component(name="indexer", coverage=Path(), shares="full")
CARRY_OVER = Component(name="carry", coverage=Trailing(3), shares="swa")


def swa(window_tokens: int, *, rebuild_tokens: int | None = None, required: bool = True, name: str = "swa") -> Component:
    """A sliding window."""
    return Component(name=name, coverage=Trailing(window_tokens), rebuild_tokens=rebuild_tokens, required=required)


def chunks(chunk_tokens: int, *, name: str = "chunk") -> Component:
    """Layers whose attention sees its own chunk only."""
    return Component(name=name, coverage=Chunked(chunk_tokens))


SETS: dict[str, list[Component]] = {
    "full": [FULL],
    "narrow window": [FULL, swa(3)],
    "rebuilt window": [FULL, swa(5, rebuild_tokens=5)],
    "deep rebuild": [FULL, swa(5, rebuild_tokens=9)],
    "two windows": [FULL, swa(3), swa(6, name="wide")],
    "chunks": [FULL, chunks(6)],
    "chunks beside a window": [FULL, chunks(4), swa(3)],
    "chunks in chunks": [FULL, chunks(8), Component(name="half", coverage=Chunked(4), shares="chunk"), chunks(5, name="odd")],
    "mamba": [FULL, MAMBA],
    "gridded mamba": [FULL, Component(name="mamba", coverage=Point(), save_grid_tokens=4)],
    "window and mamba": [FULL, swa(5), MAMBA],
    "optional window": [FULL, swa(1, required=False), MAMBA],
    "optional mamba": [FULL, Component(name="mamba", coverage=Point(), required=False)],
    "optional beside a rebuild": [
        FULL,
        swa(3, rebuild_tokens=6),
        swa(4, required=False, name="draft"),
        Component(name="carry", coverage=Trailing(2), required=False, shares="swa"),
        Component(name="mamba", coverage=Point(), required=False, save_grid_tokens=4),
    ],
    "drafts of their own": [
        FULL,
        swa(3),
        OWN_DRAFT,
        swa(2, required=False, name="draft_swa"),
        Component(name="mamba", coverage=Point(), required=False, save_grid_tokens=4),
    ],
    "draft": [FULL, DRAFT],
    "draft of its own": [FULL, OWN_DRAFT, MAMBA],
    "two paths": [FULL, Component(name="packed", coverage=Path()), swa(4, rebuild_tokens=4)],
    "indexer and carry-over": [FULL, INDEXER, swa(3), CARRY_OVER],
    "short carry-over": [FULL, swa(6), CARRY_OVER],
    "everything": [FULL, swa(5), CARRY_OVER, MAMBA, DRAFT, INDEXER],
}
