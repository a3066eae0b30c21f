"""Copies that wait, so that a check finds transfers open however fast an engine and the machine are."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.testing.checks import PATIENCE_S

if TYPE_CHECKING:
    from unified_tree.controllers.testing.transfer_rig import TransferRig

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
