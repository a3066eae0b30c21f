"""The schedule of steps, common to the CPU and the CUDA engine. It moves nothing itself and has no thread.

There is one queue of batches per direction; each batch is a generator of steps. A runner gets a step with `begin`, runs it,
reports errors with `fail` and, once the bytes have landed, calls `finish`; steps of one direction finish in the order of
`begin`. Pieces of dead transfers are left out when a step begins, and a dead transfer ends when none of its pieces is running.
This rule covers cancelling at any time, failing, and closing. Cost: O(transfers in it) for each operation on a step; O(1) to
cancel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from unified_tree.controllers.transfer_engines.batch import Batch
from unified_tree.controllers.transfer_engines.ledger import REMEMBERED, Ledger
from unified_tree.controllers.transfer_engines.transfer import Transfer
from unified_tree.inputs.arguments import integer
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import ConfigurationError, TransferError

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_mover import PageMover
    from unified_tree.controllers.transfer_engines.progress import Progress
    from unified_tree.controllers.transfer_engines.step import Step
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
