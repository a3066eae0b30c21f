"""How SGLang's pages are copied on a GPU: by streams that wait for the model's, in steps of a sensible size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_lanes import FakeDevice

from unified_tree import ConfigurationError
from unified_tree.controllers.adapters.sglang.assembly import copy_lanes
from unified_tree.controllers.adapters.sglang.settings import Settings
from unified_tree.controllers.adapters.sglang.tiers import stream_engine
from unified_tree.controllers.transfer_engines.schedule import CHUNK_BLOCKS
from unified_tree.declare.page_format import PageFormat, Part


def tensors(device: str) -> Any:
    return {"full": SimpleNamespace(device=torch.device(device))}


def test_a_gpu_is_refused_unless_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(tp_worker=SimpleNamespace(model_runner=SimpleNamespace(forward_stream="the model's")))
    assert copy_lanes(context, tensors("cpu"), Settings()) is None
    with pytest.raises(ConfigurationError, match=r'"allow_unproven_gpu": true.* or leave --enable-hierarchical-cache out'):
        copy_lanes(context, tensors("cuda"), Settings())
    made: list[Any] = []
    monkeypatch.setattr(
        "unified_tree.controllers.transfer_engines.cuda_lane.cuda_lanes", lambda device, fences: made.append((device, fences))
    )
    copy_lanes(context, tensors("cuda:1"), Settings(allow_unproven_gpu=True))
    assert made == [(torch.device("cuda:1"), ["the model's"])]


@pytest.mark.parametrize(
    ("page_size", "layers", "window_steps", "chunk_blocks"),
    [(1, 80, 2, 1 << 16), (64, 80, 2, CHUNK_BLOCKS), (64, 2, 100, CHUNK_BLOCKS), (16, 36, 5, 1 << 12)],
)
def test_steps_move_as_much_for_any_page_size(page_size: int, layers: int, window_steps: int, chunk_blocks: int) -> None:
    heads = (Part("k", "bfloat16", (8, 128)), Part("v", "bfloat16", (8, 128)))
    kept = PageFormat(component="full", layer_ids=tuple(range(layers)), parts=heads, slots_per_page=page_size)
    mover: Any = SimpleNamespace(layer_ids=kept.layer_ids)
    engine = stream_engine({"full": mover}, {"full": kept}, FakeDevice().lanes)
    assert engine._window_steps == window_steps
    assert engine._schedule._chunk_blocks == {"full": chunk_blocks}
