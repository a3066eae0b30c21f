"""Copies rows between a GPU's memory and pinned host memory: a kernel in Triton, which comes with torch for CUDA."""

# ruff: noqa: N803
# pyright: reportMissingImports=false

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "layers", "slots"])
def copy_rows(
    into,
    out_of,
    target,
    source,
    rows,
    layers,
    slots,
    words,
    into_layer,
    into_page,
    into_slot,
    out_of_layer,
    out_of_page,
    out_of_slot,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Copy `rows` rows of `words` words, by slot, then layer, then page; the programs share them in tiles, [ROWS, COLUMNS].

    Args:
        into, out_of: where the first row of the first page lies on either side.
        target, source: int64, the page ids of each.
        rows: pages times layers times slots.
        into_layer, into_page, into_slot, out_of_layer, out_of_page, out_of_slot: strides, in words.
    """
    across = tl.cdiv(words, COLUMNS)
    for tile in range(tl.program_id(0), tl.cdiv(rows, ROWS) * across, tl.num_programs(0)):
        row = tile // across * ROWS + tl.arange(0, ROWS)
        column = tile % across * COLUMNS + tl.arange(0, COLUMNS)
        is_row = row < rows
        slot, layer, page = (row % slots).to(tl.int64), (row // slots % layers).to(tl.int64), row // slots // layers
        written = tl.load(target + page, mask=is_row, other=0) * into_page + layer * into_layer + slot * into_slot
        read = tl.load(source + page, mask=is_row, other=0) * out_of_page + layer * out_of_layer + slot * out_of_slot
        is_word = is_row[:, None] & (column < words)[None, :]
        found = tl.load(out_of + read[:, None] + column[None, :], mask=is_word)
        tl.store(into + written[:, None] + column[None, :], found, mask=is_word)
