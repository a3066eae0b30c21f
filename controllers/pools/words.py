"""The torch dtypes of a part: its own, and that of the words it is copied in.

Bytes are copied as the widest integers that divide a row, not as bytes: torch then moves eight at a time when rows are not
adjacent, and a GPU's threads write whole words over the bus. Integers also keep every NaN's bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.tensors import torch

if TYPE_CHECKING:
    from unified_tree.declare.page_format import Part

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def torch_dtype(part: Part) -> torch.dtype:
    """The dtype of a part's elements."""
    dtype = getattr(torch, part.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def word_dtype(part: Part) -> torch.dtype:
    """The integer dtype of `part.word_bytes`."""
    return _WORDS[part.word_bytes]
