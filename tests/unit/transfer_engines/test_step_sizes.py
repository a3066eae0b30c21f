"""A step moves about as much of every component, however large its blocks are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from unified_tree import ConfigurationError
from unified_tree.controllers.pools import mha_format, state_format
from unified_tree.controllers.transfer_engines.schedule import CHUNK_BLOCKS, STEP_BYTES, Schedule, step_blocks
from unified_tree.controllers.transfer_engines.transfer import Transfer
from unified_tree.nodes.effect import Copy, EffectKind

MOVERS: Any = {name: SimpleNamespace(layer_ids=(0, 1)) for name in ("full", "mamba")}


def steps(kind: EffectKind) -> list[tuple[str, tuple[int, ...] | None, int]]:
    schedule = Schedule(MOVERS, {"full": 8, "mamba": 2})
    pages = np.arange(10)
    copies = tuple(
        Copy(component=name, source=pages[:count], target=pages[:count]) for name, count in (("full", 10), ("mamba", 3))
    )
    schedule.submit([Transfer(ticket=1, kind=kind, copies=copies)])
    found = []
    while (step := schedule.begin(kind)) is not None:
        found.append((step.component, step.layer_ids, sum(piece.source.size for piece in step.pieces)))
        schedule.finish(step)
    return found


def test_each_component_has_steps_of_its_own_size() -> None:
    backup = [("full", None, 4), ("full", None, 4), ("full", None, 2), *[("mamba", None, 1)] * 3]
    assert steps(EffectKind.BACKUP) == backup
    for layer in (0, 1):
        moved = [(name, count) for name, layers, count in steps(EffectKind.LOAD) if layers == (layer,)]
        assert moved == [("full", 8), ("full", 2), ("mamba", 2), ("mamba", 1)]


def test_large_states_beside_small_pages_do_not_make_steps_of_many_gib() -> None:
    tokens = mha_format("full", layer_ids=tuple(range(12)), page_size=1, kv_heads=8, head_dim=128)
    states = state_format("mamba", layer_ids=tuple(range(36)), conv_shape=(8192, 3), state_shape=(32, 128, 128))
    blocks = step_blocks({"full": tokens, "mamba": states})
    assert blocks == {"full": STEP_BYTES // 4096, "mamba": CHUNK_BLOCKS}


@pytest.mark.parametrize("wrong", [0, -1, 1.5, None])
def test_every_size_is_checked(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="chunk_blocks"):
        Schedule(MOVERS, {"full": 8, "mamba": wrong})
