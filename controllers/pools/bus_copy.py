"""Copies pages between a GPU and pinned host memory, by a kernel of a few programs.

The GPU addresses host memory directly, so thousands of scattered pages of all layers and parts cost one launch, whatever the
layout: what has rows of one length and one stride is found by a table of offsets, wherever a layer's tensor lies. Two programs
have enough under way for most of a PCIe 5 bus, and a model beside them pays little more than beside the GPU's copy engine.
Beside torch's gathers, which fill all multiprocessors with threads that wait, a prefill takes 1.8 times as long and a decode
waits for their end (docs/lab/transfers.md). A bus that is full of writes blocks the GPU's own memory. So backups, which
nobody waits for, have less under way than loads.

Rejected: the copy engine. It needs pieces of a quarter of a MiB, so staging, and a call for each; a page's layer has some KiB.
A launch for each layer and part held the calling thread for milliseconds where an engine has a tensor a layer.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

from unified_tree.controllers.pools.parts import ALL, by_layer, device_of
from unified_tree.controllers.tensors import torch
from unified_tree.terms.errors import words_of

copy_rows: Any
try:
    from unified_tree.controllers.pools.bus_kernel import copy_rows
except ImportError:  # torch without Triton
    copy_rows = None

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_tree.controllers.pools.parts import Parts

logger = logging.getLogger(__name__)

PROGRAMS = 2
"""On a multiprocessor each, over the bus."""
DEVICE_PROGRAMS = 16
"""Where both sides lie on the device."""
BACKUP_WARPS = 8
"""Of a program that writes to host."""
LOAD_WARPS = 16
"""And of one that reads there."""
BACKUP_TILE_BYTES = 32 << 10
"""That a program has under way to host."""
LOAD_TILE_BYTES = 64 << 10
"""And from there."""
WASTE = 1 / 8
"""The share of a tile's columns that may hold nothing, if narrower tiles do with that."""
MIN_EXPONENT = 4
"""Of the narrowest tile: 16 columns."""
MAX_UNIT = 16
"""Words by which pieces are placed, if they lie so: a kernel that knows it copies several words at a time."""
MAX_ROWS = 1 << 30
"""Of one launch: rows are counted in 32 bits."""


class Piece(NamedTuple):
    """What one layer and part of pages is on both sides, [page, slot, word]; one long row where slots lie side by side."""

    layer: int
    device: torch.Tensor
    host: torch.Tensor

    @property
    def shape(self) -> tuple[object, ...]:
        """Pieces for which this is the same are copied by one launch."""
        return self.device.dtype, self.device.shape[1:], self.device.stride()[:2], self.host.stride()[:2]


@dataclass(frozen=True, slots=True)
class Side:
    """Pieces of one shape in one memory.

    Attributes:
        first: the one that lies first.
        offsets: of each from there, in words.
    """

    first: torch.Tensor
    offsets: list[int]

    @classmethod
    def of(cls, pieces: Sequence[torch.Tensor]) -> Side:
        """All of them. Cost: O(pieces)."""
        first = min(pieces, key=torch.Tensor.data_ptr)
        return cls(first, [(piece.data_ptr() - first.data_ptr()) // piece.element_size() for piece in pieces])

    @property
    def lies_by_slot(self) -> bool:
        """Whether a slot of every piece lies before the next slot."""
        ascending = sorted(self.offsets)
        nearest = min((later - earlier for earlier, later in pairwise(ascending)), default=0)
        return self.first.shape[1] > 1 and 0 < nearest < self.first.stride(1)


class Kind:
    """All pieces of one shape, as they follow each other in host memory.

    The same kernel copies any layers of them: one that was built for all of them is built for each.

    Attributes:
        unit: words that places count.
        by_slot: a slot of every piece comes before the next slot.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        pieces = sorted(pieces, key=lambda piece: piece.host.data_ptr())
        self._layers = [piece.layer for piece in pieces]
        self.device, self.host = Side.of([piece.device for piece in pieces]), Side.of([piece.host for piece in pieces])
        self.unit = gcd(MAX_UNIT, *self.device.offsets, *self.host.offsets)
        self.by_slot = self.device.lies_by_slot or self.host.lies_by_slot

    def places(self, layers: range) -> Places:
        """Of the pieces of some layers. Cost: O(pieces)."""
        some = [index for index, layer in enumerate(self._layers) if layer in layers]
        in_units = ([side.offsets[index] // self.unit for index in some] for side in (self.device, self.host))
        sent = (_sent(offsets, self.device.first.device) for offsets in in_units)
        return Places(self, len(some), inverse_of(max(1, len(some))), *sent)


class Places(NamedTuple):
    """Pieces of some layers.

    Attributes:
        inverse: see `inverse_of`, of `piece_count`.
        device, host: int64 [piece_count], where they lie on either side, on the device.
    """

    kind: Kind
    piece_count: int
    inverse: tuple[int, int]
    device: torch.Tensor
    host: torch.Tensor


class BusCopy:
    """An IndexCopier on the current stream, which waits for nothing.

    Cost: O(bytes) over the bus, a launch for each shape of rows; O(parts) besides where layers are loaded for the first time.

    Args:
        device: in the memory of a GPU.
        host: as that GPU sees it.
        programs: that copy.
    """

    def __init__(self, device: Parts, host: Parts, programs: int = PROGRAMS) -> None:
        pieces = [
            _piece(layer, one, other)
            for some in zip(device, host, strict=True)
            for layer, (one, other) in enumerate(zip(*map(by_layer, some), strict=True))
        ]
        self._kinds = kinds_of(pieces)
        self._layer_count = 1 + max(piece.layer for piece in pieces)
        self._programs = programs
        self._places: dict[range, list[Places]] = {}

    def back_up(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """See IndexCopier."""
        with torch.cuda.device(target.device):
            self.launch_backup(source, target)

    def load(self, source: torch.Tensor, target: torch.Tensor, layers: slice = ALL) -> None:
        """See IndexCopier."""
        with torch.cuda.device(target.device):
            self.launch_load(source, target, layers)

    def launch_backup(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """`back_up` on the current device."""
        for places in self._of(ALL):
            kind = places.kind
            into, out_of = (kind.host.first, places.host), (kind.device.first, places.device)
            self._launch(places, into, out_of, target, source, BACKUP_TILE_BYTES, BACKUP_WARPS)

    def launch_load(self, source: torch.Tensor, target: torch.Tensor, layers: slice = ALL) -> None:
        """`load` on the current device."""
        for places in self._of(layers):
            kind = places.kind
            into, out_of = (kind.device.first, places.device), (kind.host.first, places.host)
            self._launch(places, into, out_of, target, source, LOAD_TILE_BYTES, LOAD_WARPS)

    def _of(self, layers: slice) -> list[Places]:
        some = range(*layers.indices(self._layer_count))
        known = self._places.get(some)
        if known is None:
            known = self._places[some] = [found for kind in self._kinds if (found := kind.places(some)).piece_count]
        return known

    def _launch(
        self,
        places: Places,
        into: tuple[torch.Tensor, torch.Tensor],
        out_of: tuple[torch.Tensor, torch.Tensor],
        target: torch.Tensor,
        source: torch.Tensor,
        tile_bytes: int,
        warps: int,
    ) -> None:
        (written, into_pieces), (read, out_of_pieces) = into, out_of
        _, slots, words = written.shape
        tile_words = tile_bytes // written.element_size()
        columns = tile_columns(words, tile_words)
        step = max(1, MAX_ROWS // (places.piece_count * slots))
        for begin in range(0, max(1, target.numel()), step):
            some = slice(begin, begin + step)
            copy_rows[(self._programs,)](
                written,
                read,
                target[some],
                source[some],
                into_pieces,
                out_of_pieces,
                target[some].numel() * places.piece_count * slots,
                places.piece_count,
                *places.inverse,
                words,
                *written.stride()[:2],
                *read.stride()[:2],
                SLOTS=slots,
                UNIT=places.kind.unit,
                BY_SLOT=places.kind.by_slot,
                ROWS=tile_words // columns,
                COLUMNS=columns,
                num_warps=warps,
            )


def bus_copy(device: Parts, host: Parts, *, crosses_bus: bool) -> BusCopy | None:
    """A BusCopy whose kernel is built, which takes about a second once, not under the first request; None without Triton.

    Triton builds with a C compiler and Python's headers. Where it cannot, a warning says so.

    Args:
        crosses_bus: `host` is memory of the host.
    """
    if copy_rows is None:
        return None
    copier = BusCopy(device, host, PROGRAMS if crosses_bus else DEVICE_PROGRAMS)
    nothing = torch.empty(0, dtype=torch.int64, device=device_of(device))
    try:
        copier.back_up(nothing, nothing)
        copier.load(nothing, nothing)
    except Exception as error:  # what it raises depends on what is missing
        logger.warning("Triton cannot build here, so copies will slow down the model beside them: %s", words_of(error))
        return None
    return copier


def kinds_of(pieces: Sequence[Piece]) -> list[Kind]:
    """What is copied together. Cost: O(pieces log pieces)."""
    together: dict[tuple[object, ...], list[Piece]] = {}
    for piece in pieces:
        together.setdefault(piece.shape, []).append(piece)
    return [Kind(some) for some in together.values()]


def _piece(layer: int, device: torch.Tensor, host: torch.Tensor) -> Piece:
    device, host = device[0], host[0]
    if device.stride(1) == host.stride(1) == device.shape[2]:
        return Piece(layer, _joined(device), _joined(host))
    return Piece(layer, device, host)


def _joined(rows: torch.Tensor) -> torch.Tensor:
    pages, slots, words = rows.shape
    return rows.as_strided((pages, 1, slots * words), (rows.stride(0), slots * words, 1))


def _sent(numbers: list[int], device: torch.device) -> torch.Tensor:
    """Numbers on a device, there when this returns; it waits for no other work."""
    if device.type == "cpu":
        return torch.tensor(numbers)
    with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        return torch.tensor(numbers, device=device)


def inverse_of(divisor: int) -> tuple[int, int]:
    """`inverse` and `shift`, with which `number * inverse >> shift` is `number // divisor` for numbers below MAX_ROWS.

    >>> inverse, shift = inverse_of(61)
    >>> 1_000_000 * inverse >> shift
    16393
    """
    shift = (MAX_ROWS - 1).bit_length() + (divisor - 1).bit_length()
    return -(-(1 << shift) // divisor), shift


def tile_columns(words: int, tile_words: int) -> int:
    """Columns of a tile for rows of so many words, a power of two: as many as waste little, or those that waste least.

    >>> [tile_columns(words, 8192) for words in (16384, 9216, 256, 144, 3)]
    [8192, 2048, 256, 32, 16]
    """
    widths = [1 << exponent for exponent in range(MIN_EXPONENT, tile_words.bit_length())]
    return min(widths, key=lambda columns: (max(WASTE, 1 - words / (-(-words // columns) * columns)), -columns))
