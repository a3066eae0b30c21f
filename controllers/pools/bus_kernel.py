"""Copies rows between a GPU's memory and pinned host memory: a kernel in Triton, which comes with torch for CUDA."""

# ruff: noqa: N803
# pyright: reportMissingImports=false

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["target", "source", "into_pieces", "out_of_pieces", "rows", "pieces", "inverse", "shift"])
def copy_rows(
    into,
    out_of,
    target,
    source,
    into_pieces,
    out_of_pieces,
    rows,
    pieces,
    inverse,
    shift,
    words,
    into_page,
    into_slot,
    out_of_page,
    out_of_slot,
    SLOTS: tl.constexpr,
    UNIT: tl.constexpr,
    BY_SLOT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Copy `rows` rows of `words` words, page by page; the programs share them in tiles, [ROWS, COLUMNS].

    Args:
        into, out_of: where the first piece of the first page lies on either side.
        target, source: int64, the page ids of each.
        into_pieces, out_of_pieces: int64, where each piece of a page lies from there on, in UNIT words.
        rows: pages times pieces times SLOTS, at most 2^30.
        inverse, shift: `number * inverse >> shift` is `number // pieces`, which costs ten times as much.
        into_page, into_slot, out_of_page, out_of_slot: strides, in words.
        BY_SLOT: of a page, a slot of every piece comes before the next slot; otherwise a piece before the next piece.
    """
    across = tl.cdiv(words, COLUMNS)
    for tile in range(tl.program_id(0), tl.cdiv(rows, ROWS) * across, tl.num_programs(0)):
        row = tile // across * ROWS + tl.arange(0, ROWS)
        column = tile % across * COLUMNS + tl.arange(0, COLUMNS)
        is_row = row < rows
        counted = row if BY_SLOT else row // SLOTS
        whole = (counted.to(tl.int64) * inverse >> shift).to(tl.int32)
        piece = counted - whole * pieces
        if BY_SLOT:
            page, slot = whole // SLOTS, (whole % SLOTS).to(tl.int64)
        else:
            page, slot = whole, (row % SLOTS).to(tl.int64)
        written = tl.load(target + page, mask=is_row, other=0) * into_page + slot * into_slot
        read = tl.load(source + page, mask=is_row, other=0) * out_of_page + slot * out_of_slot
        written += tl.load(into_pieces + piece, mask=is_row, other=0) * UNIT
        read += tl.load(out_of_pieces + piece, mask=is_row, other=0) * UNIT
        is_word = is_row[:, None] & (column < words)[None, :]
        found = tl.load(out_of + read[:, None] + column[None, :], mask=is_word)
        tl.store(into + written[:, None] + column[None, :], found, mask=is_word)
