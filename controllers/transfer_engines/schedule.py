"""The schedule of steps, common to the CPU and the CUDA engine. It moves nothing itself and has no thread.

There is one queue of batches per direction; each batch is a generator of steps. A runner gets a step with `begin`, runs it,
reports errors with `fail` and, once the bytes have landed, calls `finish`; steps of one direction finish in the order of
`begin`. Pieces of dead transfers are left out when a step begins, and a dead transfer ends when none of its pieces is running.
This rule covers cancelling at any time, failing, and closing. Cost: O(transfers in it) for each operation on a step; O(1) to
cancel.

A `Batch` is the transfers of one submission and direction, merged, as the steps that move them. Copies of one component are in
one list, whichever transfers they belong to, and are divided into chunks. The chunk size bounds how long a cancel or an
overtaking load waits. Steps are generated on demand, so that the cost of submitting does not grow with the pages.

A load's layers come in groups of 1, 1, 2, 4, 8, … as far as a chunk holds that many of all its pages. So the first layer lands
as early as possible, and a short load does not cost a call per layer, which would take longer than the copies: a layer waits
for at most as many later layers as have landed before it. Large loads go layer by layer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.transfer_engines.ledger import REMEMBERED, Ledger
from unified_tree.controllers.transfer_engines.transfer import Transfer
from unified_tree.inputs.arguments import integer
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import ConfigurationError, TransferError, words_of

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_mover import PageMover
    from unified_tree.controllers.transfer_engines.ledger import Progress
    from unified_tree.declare.page_format import PageFormat


CHUNK_BLOCKS = 1024
"""Blocks a step: 256 MiB, some 15 ms of two cores, where 64 tokens of 8 KV heads of 128 in bfloat16 are a page."""

STEP_BYTES = 256 << 20
"""What a step on a GPU moves of small blocks; a cancelled transfer ends with the steps that have begun."""


def step_blocks(formats: Mapping[str, PageFormat]) -> dict[str, int]:
    """Blocks of a GPU's step by component: CHUNK_BLOCKS, or more where they are so small that launching would take longer than
    moving.
    """
    sizes = {name: max(1, found.page_bytes // len(found.layer_ids)) for name, found in formats.items()}
    return {name: max(CHUNK_BLOCKS, STEP_BYTES // size) for name, size in sizes.items()}


class Schedule:
    """Steps of all open transfers.

    Args:
        movers: by component.
        chunk_blocks: blocks a step, a block being one layer of one page; one number for all, or one by component.
        remembered: see Ledger.

    Raises ConfigurationError for numbers that are not positive integers.
    """

    __slots__ = ("_chunk_blocks", "_layer_ids", "_movers", "_queues", "ledger")

    def __init__(
        self, movers: Mapping[str, PageMover], chunk_blocks: int | Mapping[str, int], remembered: int = REMEMBERED
    ) -> None:
        self.ledger = Ledger(remembered)
        self._movers = dict(movers)
        if not isinstance(chunk_blocks, Mapping):
            chunk_blocks = dict.fromkeys(movers, integer(chunk_blocks, "chunk_blocks", ConfigurationError, minimum=1))
        self._chunk_blocks = {
            name: integer(chunk_blocks.get(name), "chunk_blocks", ConfigurationError, minimum=1) for name in movers
        }
        self._queues: dict[EffectKind, deque[Iterator[Step]]] = {kind: deque() for kind in EffectKind}
        self._layer_ids: dict[tuple[str, ...], tuple[int, ...]] = {}

    def submit(self, transfers: Sequence[Transfer], after: object = None) -> None:
        """Queue transfers. `after` is passed on in each of their steps. Raises as TransferEngine.submit does."""
        batches: dict[EffectKind, Batch] = {}
        for transfer, progress in zip(transfers, self.ledger.enter(transfers, self._layers_of), strict=True):
            kind = transfer.kind
            if kind not in batches:
                batches[kind] = Batch(kind, self._movers, self._chunk_blocks, after)
            batches[kind].add(progress, transfer)
        for kind, batch in batches.items():
            self._queues[kind].append(batch.steps())

    def has_waiting(self, kind: EffectKind) -> bool:
        """Whether steps may be left; it may be True until the next `begin` returns None."""
        return bool(self._queues[kind])

    def begin(self, kind: EffectKind) -> Step | None:
        """The next step, now running; None if there is none."""
        queue = self._queues[kind]
        while queue:
            for step in queue[0]:
                step.pieces = [piece for piece in step.pieces if piece.progress.error is None]
                if step.pieces:
                    step.lands = [progress for progress in step.lands if progress.error is None]
                    for piece in step.pieces:
                        piece.progress.running += 1
                    return step
            queue.popleft()
        return None

    def fail(self, step: Step, errors: Mapping[Progress, str]) -> None:
        """Some transfers of a running step were not moved: they are dead from now on."""
        for progress, error in errors.items():
            progress.fail(error)
        step.lands = [progress for progress in step.lands if progress not in errors]

    def finish(self, step: Step) -> None:
        """Finish a step, whose bytes have landed or failed."""
        for progress in step.lands:
            progress.land(step.through)
        for piece in step.pieces:
            progress = piece.progress
            progress.running -= 1
            if not progress.running and (progress.error is not None or progress.landed == progress.stage_count):
                self.ledger.end(progress)

    def cancel(self, ticket: int, reason: str) -> None:
        """Cancel a transfer, if it is open. Cost: O(1)."""
        progress = self.ledger.moving(ticket)
        if progress is None:
            return
        progress.fail(reason)
        progress.is_cancelled = True
        if not progress.running:
            self.ledger.end(progress)

    def abandon(self, reason: str) -> None:
        """End all open transfers at once, because their runner has ended."""
        for queue in self._queues.values():
            queue.clear()
        for progress in self.ledger.open():
            if not progress.has_ended:
                progress.fail(reason)
                progress.running = 0
                self.ledger.end(progress)

    def _layers_of(self, transfer: Transfer) -> tuple[int, ...]:
        names = tuple(copy.component for copy in transfer.copies if copy.source.size)
        known = self._layer_ids.get(names)
        if known is None:
            for name in names:
                if name not in self._movers:
                    raise TransferError(
                        f"transfer {transfer.ticket}: no mover for {name!r}; there are movers for {', '.join(self._movers)}"
                    )
            known = tuple(sorted({layer_id for name in names for layer_id in self._movers[name].layer_ids}))
            self._layer_ids[names] = known
        return known


class Batch:
    """Merged copies.

    Args:
        kind: of all transfers in it.
        movers: by component.
        chunk_blocks: blocks a step by component, a block being one layer of one page; a step is one page at least.
        after: passed on in every step.
    """

    __slots__ = ("_after", "_chunk_blocks", "_copies", "_kind", "_movers")

    def __init__(
        self, kind: EffectKind, movers: Mapping[str, PageMover], chunk_blocks: Mapping[str, int], after: object
    ) -> None:
        self._kind = kind
        self._movers = movers
        self._chunk_blocks = chunk_blocks
        self._after = after
        self._copies: dict[str, list[Piece]] = {}

    def add(self, progress: Progress, transfer: Transfer) -> None:
        """Merge a transfer in."""
        for copy in transfer.copies:
            if copy.source.size:
                self._copies.setdefault(copy.component, []).append(Piece(progress, copy.source, copy.target, True))

    def steps(self) -> Iterator[Step]:
        """All steps, in order. Cost: O(transfers) a layer, O(transfers in it) a step."""
        if self._kind is EffectKind.BACKUP:
            yield from self._stage(dict.fromkeys(self._copies), None)
            return
        layer_ids = sorted({layer_id for component in self._copies for layer_id in self._movers[component].layer_ids})
        pages = {name: sum(piece.source.size for piece in pieces) for name, pieces in self._copies.items()}
        max_layers = min((self._chunk_blocks[name] // count for name, count in pages.items()), default=1)
        for group in _groups(layer_ids, max(1, max_layers)):
            kept = {name: tuple(i for i in self._movers[name].layer_ids if group[0] <= i <= group[-1]) for name in self._copies}
            yield from self._stage({name: layers for name, layers in kept.items() if layers}, group[-1])

    def _stage(self, components: Mapping[str, tuple[int, ...] | None], through: int | None) -> Iterator[Step]:
        """Some layers of a load, or all of a backup. A transfer's stages land with the last piece of its last component."""
        living = {name: [piece for piece in self._copies[name] if piece.progress.error is None] for name in components}
        last = {piece.progress: name for name, pieces in living.items() for piece in pieces}
        for component, layer_ids in components.items():
            mover = self._movers[component]
            layer_count = len(mover.layer_ids if layer_ids is None else layer_ids)
            for pieces in _cut(living[component], max(1, self._chunk_blocks[component] // layer_count)):
                lands = [piece.progress for piece in pieces if piece.is_last and last[piece.progress] == component]
                yield Step(component, mover, layer_ids, through, pieces, lands, self._after)


def _groups(layer_ids: list[int], max_layers: int) -> Iterator[list[int]]:
    """All layers, in groups of at most `most`, none larger than all before it together."""
    begin = 0
    while begin < len(layer_ids):
        end = begin + min(max(1, begin), max_layers)
        yield layer_ids[begin:end]
        begin = end


def _cut(pieces: Iterable[Piece], page_count: int) -> Iterator[list[Piece]]:
    """Lists of pieces of at most `page_count` pages together."""
    chunk: list[Piece] = []
    room = page_count
    for piece in pieces:
        size, begin = piece.source.size, 0
        while begin < size:
            end = min(begin + room, size)
            chunk.append(Piece(piece.progress, piece.source[begin:end], piece.target[begin:end], end == size))
            room -= end - begin
            begin = end
            if room == 0:
                yield chunk
                chunk, room = [], page_count
    if chunk:
        yield chunk


@dataclass(frozen=True, slots=True)
class Piece:
    """Pages of one transfer and component; `is_last` if none of these come after."""

    progress: Progress
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    is_last: bool


@dataclass(slots=True, eq=False)
class Step:
    """One call of a mover.

    Attributes:
        component, mover: whose pages.
        layer_ids: the component's layers to load; None for a backup of all.
        through: the model layer through which `lands` have landed then; None for a backup.
        pieces: what to move, of living transfers.
        lands: transfers of which a stage or more have landed once this step and all before it have passed.
        after: the caller's object for the batch; see Schedule.submit.
    """

    component: str
    mover: PageMover
    layer_ids: tuple[int, ...] | None
    through: int | None
    pieces: list[Piece]
    lands: list[Progress]
    after: object

    def run(self) -> dict[Progress, str]:
        """Call the mover; returns errors by transfer.

        If the common call fails, each transfer is moved on its own: copies are idempotent, and bad pages of one transfer do not
        fail another. Catches every Exception of the mover, because this is the edge of a thread or a stream.
        """
        try:
            self._move(self.pieces)
        except Exception as error:
            if len(self.pieces) == 1:
                return {self.pieces[0].progress: self._describe(error)}
        else:
            return {}
        errors: dict[Progress, str] = {}
        for piece in self.pieces:
            try:
                self._move([piece])
            except Exception as error:
                errors[piece.progress] = self._describe(error)
        return errors

    def _move(self, pieces: list[Piece]) -> None:
        if len(pieces) == 1:
            source, target = pieces[0].source, pieces[0].target
        else:
            source = np.concatenate([piece.source for piece in pieces])
            target = np.concatenate([piece.target for piece in pieces])
        if self.layer_ids is None:
            self.mover.backup(source, target)
        else:
            self.mover.load_layers(self.layer_ids, source, target)

    def _describe(self, error: Exception) -> str:
        if self.layer_ids is None:
            what = "backup"
        elif len(self.layer_ids) == 1:
            what = f"load of layer {self.layer_ids[0]}"
        else:
            what = f"load of layers {self.layer_ids[0]} … {self.layer_ids[-1]}"
        return f"{self.component}: {what} failed: {words_of(error)}"
