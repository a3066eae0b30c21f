"""A step: one call of a mover, for the pages of one or more transfers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unified_tree.terms.errors import words_of

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_mover import PageMover
    from unified_tree.controllers.transfer_engines.ledger import Progress


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
