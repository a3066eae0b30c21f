"""What a simulated transfer moves at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unified_tree.controllers.transfer_engines.transfer import Transfer
from unified_tree.nodes.effect import Copy, EffectKind
from unified_tree.terms.errors import TransferError

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_mover import PageMover

    Movers = Mapping[str, PageMover] | None


@dataclass(frozen=True, slots=True)
class SimulatedStage:
    """One layer of a load, or one component of a backup.

    Attributes:
        copies: what to move.
        layer_id: of a load; None for a backup.
    """

    copies: tuple[Copy, ...]
    layer_id: int | None

    @property
    def page_count(self) -> int:
        """Pages of all its copies."""
        return sum(copy.source.size for copy in self.copies)

    def move(self, movers: Movers, page_count: int) -> None:
        """Move its first `page_count` pages. Raises whatever a mover raises."""
        for copy in self.copies:
            count = min(page_count, copy.source.size)
            page_count -= count
            if movers is None or not count:
                continue
            mover, source, target = movers[copy.component], copy.source[:count], copy.target[:count]
            if self.layer_id is None:
                mover.backup(source, target)
            else:
                mover.load_layers((self.layer_id,), source, target)


def layers_of(transfer: Transfer, movers: Movers) -> tuple[int, ...]:
    """The layers that any of its components keeps, ascending. Raises TransferError for a component without a mover."""
    names = [copy.component for copy in transfer.copies if copy.source.size]
    for name in names:
        if movers is not None and name not in movers:
            raise TransferError(f"transfer {transfer.ticket}: no mover for {name!r}; there are movers for {', '.join(movers)}")
    return tuple(sorted({layer_id for name in names for layer_id in _kept(name, movers)}))


def stages_of(transfer: Transfer, movers: Movers) -> list[SimulatedStage]:
    """Everything it moves, in order; of a backup only the last stage lands it."""
    copies = [copy for copy in transfer.copies if copy.source.size]
    if transfer.kind is EffectKind.BACKUP:
        return [SimulatedStage((copy,), None) for copy in copies]
    return [
        SimulatedStage(tuple(copy for copy in copies if layer_id in _kept(copy.component, movers)), layer_id)
        for layer_id in layers_of(transfer, movers)
    ]


def _kept(component: str, movers: Movers) -> tuple[int, ...]:
    return (0,) if movers is None else movers[component].layer_ids
