"""The C module that copies rows, where it was compiled: every share, no byte outside, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("unified_tree.controllers.pools.row_copy", reason="not compiled", exc_type=ImportError)

from unified_tree.controllers.pools.core_copy import row_shares
from unified_tree.controllers.pools.page_moves import PageMoves
from unified_tree.controllers.pools.row_copy import copy_rows

PAGES = 7


def moves_of(random: np.random.Generator) -> PageMoves:
    count = int(random.integers(1, PAGES + 1))
    source, target = random.integers(0, PAGES, count), random.permutation(PAGES)[:count]
    return PageMoves("full", source, target, source_pages=PAGES, target_pages=PAGES)


def pool(random: np.random.Generator, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Random words as [layer, page, slot, word], the first three in any order in memory, at any offset of whole words."""
    order = random.permutation(3).tolist()
    offset = int(random.integers(0, 4))
    words = torch.empty(int(np.prod(shape)) + offset, dtype=dtype)
    words.view(torch.uint8).copy_(torch.from_numpy(random.integers(0, 256, words.nbytes, np.uint8)))
    inside = words[offset:].view([shape[i] for i in order] + shape[3:])
    return inside.permute(*np.argsort(order).tolist(), 3)


@pytest.mark.parametrize("seed", range(200))
def test_shares_together_copy_all_rows_and_nothing_else(seed: int) -> None:
    random = np.random.default_rng(seed)
    dtype = [torch.uint8, torch.int16, torch.int32, torch.int64][seed % 4]
    into, out_of = [], []
    for _ in range(random.integers(1, 4)):
        shape = [int(random.integers(1, 6)), PAGES, int(random.integers(1, 9)), int(random.integers(1, 41))]
        into.append(pool(random, shape, dtype))
        out_of.append(pool(random, shape, dtype))
    moves = moves_of(random)
    expected = [part.clone() for part in into]
    for written, read in zip(expected, out_of, strict=True):
        written[:, moves.target] = read[:, moves.source]
    shares = int(random.integers(1, 9))
    copy = row_shares(into, out_of, moves, shares)
    for share in random.permutation(shares).tolist():
        copy(share)
    assert all(torch.equal(written, right) for written, right in zip(into, expected, strict=True))


def test_no_row_is_in_two_shares() -> None:
    read = torch.arange(3 * PAGES * 4 * 2, dtype=torch.int64).view(3, PAGES, 4, 2)
    ids = np.arange(PAGES)
    moves = PageMoves("full", ids, ids, source_pages=PAGES, target_pages=PAGES)
    counts = torch.zeros_like(read)
    for share in range(5):
        written = torch.full_like(read, -1)
        row_shares([written], [read], moves, 5)(share)
        counts += written != -1
    assert (counts == 1).all()


def table(**changes: int) -> NDArray[np.int64]:
    columns = ("into", "out_of", "layers", "slots", "row_bytes", "il", "ip", "is", "ol", "op", "os")
    row = dict.fromkeys(columns, 1) | changes
    return np.array([row[name] for name in columns], np.int64)


@pytest.mark.parametrize(
    ("parts", "targets", "share", "shares"),
    [
        (table()[:10], [0], 0, 1),
        (table(layers=0), [0], 0, 1),
        (table(slots=-1), [0], 0, 1),
        (table(row_bytes=0), [0], 0, 1),
        (table(), [0, 1], 0, 1),
        (table(), [0], 1, 1),
        (table(), [0], -1, 1),
        (table(), [0], 0, 0),
    ],
)
def test_what_does_not_fit_is_refused(parts: NDArray[np.int64], targets: list[int], share: int, shares: int) -> None:
    with pytest.raises(ValueError, match="do not fit together"):
        copy_rows(parts, np.array(targets, np.int64), np.array([0], np.int64), share, shares)


def test_no_pages_and_no_parts_are_nothing_to_do() -> None:
    none = np.array([], np.int64)
    copy_rows(none, none, none, 0, 1)
    copy_rows(table(), none, none, 2, 3)


def test_strided_ids_are_refused() -> None:
    with pytest.raises((BufferError, ValueError)):
        copy_rows(table(), np.arange(4)[::2], np.arange(4)[::2], 0, 1)
