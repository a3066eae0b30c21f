"""`flush` copied spare windows as if they were kept for a boundary, in place of the window that the prompt's end needs where
the host has no room for more.
"""

from __future__ import annotations

import pytest
from held_engine import Tiered
from kinds import FULL, swa

from unified_tree.controllers import WritePolicy

TEXT = "abcdefghijklmnopqrstuvwxyz!"


@pytest.mark.parametrize("policy", [WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_BACK])
@pytest.mark.parametrize("host_windows", [2, 8, 100])
def test_what_is_kept_for_the_end_is_on_host(policy: WritePolicy, host_windows: int) -> None:
    tiered = Tiered([FULL, swa(3)], host_counts={"swa": host_windows}, write_policy=policy)
    tiered.serve(TEXT)
    tiered.cache.flush()
    assert (tiered.on_host(), tiered.on_host("swa")) == (13, 2)
    tiered.forget()
    assert tiered.serve(TEXT + "?") == 26
    tiered.end()
