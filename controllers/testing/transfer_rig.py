"""A transfer engine under check, the pages that it moves, and short ways to ask it for something.

The pages are one number per layer, so that tests can see where every byte came from. They need no torch. Copies wait, so that a
check finds transfers open however fast an engine and the machine are.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.testing.checks import PATIENCE_S, expect_equal
from unified_tree.controllers.transfer_engines.transfer import Transfer
from unified_tree.nodes.effect import Copy, EffectKind
from unified_tree.terms.errors import PageError

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


Ids = NDArray[np.int64]
"""Page ids, or numbers of pages."""


class Cells:
    """A PageMover over two arrays [layer, page]. `watch(layer_id, source, target)` is called before each copy and may
    raise or block; layer_id is None for a backup. `calls` has those layer by layer, `groups` the layers of each load."""

    def __init__(self, layer_ids: tuple[int, ...], pages: int, watch: Callable[[int | None, Ids, Ids], Any] | None = None):
        self.layer_ids = layer_ids
        self.device = np.arange(len(layer_ids) * pages).reshape(len(layer_ids), pages)
        self.host = -1 - self.device
        self.watch = watch
        self.groups: list[tuple[int, ...]] = []
        self.calls: list[tuple[int | None, list[int], list[int]]] = []

    def backup(self, source: Ids, target: Ids) -> None:
        """See PageMover.backup."""
        self._check(None, source, target)
        self.host[:, target] = self.device[:, source]

    def load_layers(self, layer_ids: tuple[int, ...], source: Ids, target: Ids) -> None:
        """See PageMover.load_layers."""
        self.groups.append(layer_ids)
        for layer_id in layer_ids:
            self._check(layer_id, source, target)
            index = self.layer_ids.index(layer_id)
            self.device[index, target] = self.host[index, source]

    def put(self, *, device: bool, pages: Ids, values: Ids) -> None:
        """Write pages, [layer, page], as their owner would."""
        (self.device if device else self.host)[:, pages] = values

    def _check(self, layer_id: int | None, source: Ids, target: Ids) -> None:
        pages = self.device.shape[1]
        if min(source.min(), target.min()) < 0 or max(source.max(), target.max()) >= pages:
            raise PageError(f"a page outside 0 … {pages - 1}")
        self.calls.append((layer_id, source.tolist(), target.tolist()))
        if self.watch is not None:
            self.watch(layer_id, source, target)


PAUSE_S = 0.001
STILL_PAUSES = 30
MOST_PAUSES = 200


class HeldCopies:
    """Holds up each copy that an engine's own threads make in the Cells of a rig. Those of the calling thread pass.

    Args:
        rig: whose cells are watched from now on.

    Attributes:
        holds: whether no copy passes before it may: `submit` does not wait for all, and the rig's movers can be watched.
    """

    def __init__(self, rig: TransferRig) -> None:
        self.holds = not rig.ends_in_submit and all(hasattr(cells, "watch") for cells in rig.cells.values())
        self._cells = [*rig.cells.values()] if self.holds else []
        self._caller = threading.get_ident()
        self._changed = threading.Condition()
        self._allowed = 0
        self._is_over = False
        for cells in self._cells:
            cells.watch = self._hold

    def during(self, call: Callable[[], object], most: int) -> None:
        """Call, and meanwhile let `most` copies pass, one by one, as many as a call that waits for a chunk may need.

        A call that does not return with those waits for all; after twenty seconds it gets them, so that it returns.
        """
        returned = threading.Event()
        helper = threading.Thread(target=self._let_pass, args=(returned, most), name="lets copies pass", daemon=True)
        helper.start()
        try:
            call()
        finally:
            returned.set()
            helper.join()
            for cells in self._cells:
                cells.watch = None

    def _hold(self, *_: Any) -> None:
        if threading.get_ident() == self._caller:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._allowed)
            self._allowed -= 1

    def _let_pass(self, returned: threading.Event, most: int) -> None:
        count = 0
        while count < most and self._waits(returned):
            count += 1
            with self._changed:
                self._allowed += 1
                self._changed.notify()
        returned.wait(PATIENCE_S)
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _waits(self, returned: threading.Event) -> bool:
        """Whether the calling thread has not returned once it stands still: it has cancelled all that it can without a copy.

        A machine that is busy stops this thread as often as that one, so pauses are counted and no time is measured.
        """
        still, last = 0, (0, 0)
        for _ in range(MOST_PAUSES):
            if returned.wait(PAUSE_S):
                return False
            frame = sys._current_frames().get(self._caller)
            at = (0, 0) if frame is None else (id(frame), frame.f_lasti)
            still, last = still + 1 if at == last else 0, at
            if still == STILL_PAUSES:
                break
        return True
