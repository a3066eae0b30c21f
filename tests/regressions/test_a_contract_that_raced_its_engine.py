"""An engine that had copied everything before `close` was called broke a clause of its contract, as on a slow machine."""

from __future__ import annotations

import time
from collections.abc import Sequence

from unified_tree.controllers.testing import TransferRig, transfer_engine_checks
from unified_tree.controllers.transfer_engines import CpuEngine, Transfer


class CopiesMeanwhile(CpuEngine):
    """Its thread has the processor for itself after `submit`, until nothing is left to copy or it does not get on."""

    def submit(self, transfers: Sequence[Transfer]) -> None:
        super().submit(transfers)
        time.sleep(0.5)  # a slow machine; the outcome is the same without


def test_closing_ends_what_is_open_however_late_it_is_called() -> None:
    [check] = [check for check in transfer_engine_checks() if check.name == "closing_ends_what_is_open"]
    check(TransferRig.over_cells(CopiesMeanwhile))
