"""Faults of the gates between copies, passes and transfers, which a comparison of outputs has to show.

SGLANG_PLANTED_FAULT names one. With *slow loads* the copies from host come late, with *late passes* what a pass computes
does; with *no gate* the layers of a model do not wait for their pages, with *no fence* copies to host do not wait for passes.
With *early unlock* a prefill server unlocks a prompt when its last piece is sent, not when that has arrived.
With *all agree* the groups of data-parallel attention agree with one another, each on requests of its own; with *one name* the
ranks that divide the heads store their pages under the names of whole ones.
With *slow stage* the copies of every second pipeline stage come late, which must change nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

VARIABLE = "SGLANG_PLANTED_FAULT"
DELAY_S = 0.05
CYCLES = 100_000_000
"""Of a GPU's clock, some 0.05 s."""


def register() -> None:
    """Plant it; SGLang calls this in each of its processes."""
    planted = os.environ.get(VARIABLE, "")
    if not planted:
        return
    from unified_tree.controllers.adapters.sglang import engine_tensors, tiers

    mover: Any = engine_tensors.EngineMover
    gate: Any = tiers.LayerGate
    if "slow loads" in planted:
        mover.load_layers = _after(pause, mover.load_layers)
    if "no gate" in planted:
        gate.wait_until = lambda *_: None
    if "late passes" in planted:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.forward", _late, HookType.AROUND)
    if "no fence" in planted:
        from unified_tree.controllers.transfer_engines import cuda_lane

        lane: Any = cuda_lane.CudaLane
        lane.follow = lambda *_: None
    if "slow stage" in planted:
        for name in ("load_layers", "backup"):
            setattr(mover, name, _after(_pause_of_stage, getattr(mover, name)))
    if "all agree" in planted or "one name" in planted:
        from unified_tree.controllers.adapters.sglang import plugin

        placed: Any = plugin
        placed.among_peers = _all_agree(placed.among_peers) if "all agree" in planted else _one_name
    if "early unlock" in planted:
        from sglang.srt.disaggregation import prefill

        scheduler: Any = prefill.SchedulerDisaggregationPrefillMixin
        scheduler.send_kv_chunk = _unlocking(scheduler.send_kv_chunk)


def _pause_of_stage() -> None:
    from sglang.srt.runtime_context import get_parallel

    if get_parallel().pp_rank % 2:
        pause()


def _all_agree(among_peers: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def among_all(context: Any, parallel: Any) -> Any:
        group = context.tp_group.cpu_group
        params = replace(context.params, tp_cache_group=group, attn_tp_cache_group=group)
        return replace(among_peers(context, parallel), params=params)

    return among_all


def _one_name(context: Any, parallel: Any) -> Any:
    del parallel
    return replace(context, tp_rank=0, tp_size=1)


def pause() -> None:
    """Let some time pass, on the current stream of a GPU or in this thread."""
    import torch

    if torch.cuda.is_available():
        sleep: Any = torch.cuda._sleep
        sleep(CYCLES)
    else:
        time.sleep(DELAY_S)


def _after(before: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        before()
        return call(*args, **kwargs)

    return called


def _unlocking(send: Callable[..., None]) -> Callable[..., None]:
    def sent(scheduler: Any, req: Any, last_chunk: bool = False, **more: Any) -> None:
        send(scheduler, req, last_chunk=last_chunk, **more)
        if last_chunk:
            scheduler.tree_cache.unlock(req.lock)

    return sent


def _late(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    pause()
    return run(*args, **kwargs)
