"""A transfer engine under check, the pages that it moves, and short ways to ask it for something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.testing.cells import Cells, Ids
from unified_tree.controllers.testing.checks import expect_equal
from unified_tree.controllers.transfer_engines.transfer import Transfer
from unified_tree.nodes.effect import Copy, EffectKind

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_mover import PageMover
    from unified_tree.controllers.transfer_engines.transfer import TransferEngine

LAYERS = {"full": (3, 7, 11), "mamba": (0, 1, 3)}
PAGES = 24
BACKUP, LOAD = EffectKind.BACKUP, EffectKind.LOAD


def new_cells() -> dict[str, Cells]:
    """Movers for all that the checks move, over pages whose every number is another."""
    return {name: Cells(layer_ids, PAGES) for name, layer_ids in LAYERS.items()}


def _nothing() -> None:
    pass


@dataclass
class TransferRig:
    """An engine and its movers' pages.

    Attributes:
        engine: under check; closed by it.
        cells: by component of `LAYERS`, something with the attributes and the method `put` of `Cells`, of `PAGES` pages.
        moves_bytes: False of an engine that moves nothing, of which only the bookkeeping is looked at.
        ends_in_submit: whether transfers have ended when `submit` returns, so that none can be cancelled.
        catch_up: makes the host wait for the caller's current stream.
        pass_time: lets some time pass, where the engine's is virtual.
    """

    engine: TransferEngine
    cells: Mapping[str, Any] = field(default_factory=new_cells)
    moves_bytes: bool = True
    ends_in_submit: bool = False
    catch_up: Callable[[], object] = _nothing
    pass_time: Callable[[], object] = _nothing

    @classmethod
    def over_cells(cls, open_engine: Callable[[Mapping[str, PageMover]], TransferEngine], **options: Any) -> TransferRig:
        """A rig whose engine is opened over movers of numpy arrays."""
        cells = new_cells()
        return cls(open_engine(cells), cells, **options)

    def gate(self, ticket: int, layer_id: int) -> None:
        """Wait for a layer of a load, as a forward pass would."""
        self.engine.wait_layer(ticket, layer_id)
        self.catch_up()

    @property
    def cancelled(self) -> str | None:
        """The error of a transfer that is cancelled right after it was submitted."""
        return None if self.ends_in_submit else "cancelled"

    def outcomes(self) -> dict[int, str | None]:
        """The errors of all that has not been polled yet, by ticket, once everything has ended."""
        self.engine.drain()
        completions = self.engine.poll()
        expect_equal(self.engine.poll(), [], "poll after poll, with nothing open")
        tickets = [completion.ticket for completion in completions]
        expect_equal(len(set(tickets)), len(tickets), f"how many transfers have one completion each, of {tickets}")
        return {completion.ticket: completion.error for completion in completions}


def ids(*pages: int) -> Ids:
    """Page ids."""
    return np.array(pages, np.int64)


def transfer(ticket: int, kind: EffectKind, **copies: tuple[list[int], list[int]]) -> Transfer:
    """`full=([1, 2], [3, 4])` copies page 1 to 3 and 2 to 4."""
    made = tuple(Copy(component=name, source=ids(*source), target=ids(*target)) for name, (source, target) in copies.items())
    return Transfer(ticket=ticket, kind=kind, copies=made)
