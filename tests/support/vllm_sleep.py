"""Sleep and wake of a vLLM 0.33 on a CPU, which has no sleep mode there. Its `Worker` puts itself to sleep as on a GPU, over a
stand-in for the allocator: what sleeps has garbage in its memory, at the same addresses.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch

from unified_tree.controllers.adapters.vllm import weight_digests

if TYPE_CHECKING:
    from vllm_served_mix import Engine

GARBAGE = 9.0
GARBAGE_BYTE = 0x41
"""A cache of such bytes has numbers of some 12, in every dtype of its layers."""


def skip_without_sleep() -> None:
    """Skip the tests of a module where vLLM is older than 0.33."""
    base = pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.base", reason="the engine's python runs these")
    if not hasattr(base.KVConnectorBase_V1, "restore_kv_caches"):
        pytest.skip("this vLLM tells no connector that it sleeps", allow_module_level=True)


def memory_on_host(pointer: int, size_bytes: int, _: int) -> torch.Tensor:
    """Stands for the calls that `weight_digests` makes of a GPU."""
    return torch.frombuffer((ctypes.c_char * size_bytes).from_address(pointer), dtype=torch.int32)


class SleepyMemory:
    """Stands in for vLLM's allocator, and for the backend of its sleep mode over it."""

    def __init__(self) -> None:
        self.runner: Any = None
        self.saved: dict[str, torch.Tensor] = {}
        self.asleep: set[str] = set()

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """Of the model, by name; without those that vLLM has packed for a CPU, which stay awake."""
        named = self.runner.get_model().named_parameters()
        return {name: parameter.data for name, parameter in named if parameter.nbytes}

    @property
    def pointer_to_data(self) -> dict[int, Any]:
        """The allocator's."""
        found = self.weights.values() if self.runner is not None else ()
        return {each.data_ptr(): SimpleNamespace(tag="weights", handle=(0, each.nbytes, each.data_ptr(), 0)) for each in found}

    def suspend(self, level: int = 1) -> None:
        """The backend's."""
        self.saved = {name: each.clone() for name, each in self.weights.items()} if level == 1 else {}
        self.asleep = {"weights", "kv_cache"}
        for weight in self.weights.values():
            weight.fill_(GARBAGE)
        for cache in kv_caches(self.runner):
            cache.fill_(GARBAGE_BYTE)

    def resume(self, tags: list[str] | None = None) -> None:
        """The backend's."""
        woken = self.asleep & set(tags or self.asleep)
        if "weights" in woken:
            for name, each in self.saved.items():
                self.weights[name].copy_(each)
        self.asleep -= woken


def kv_caches(runner: Any) -> list[torch.Tensor]:
    """The bytes of vLLM's cache; layers of several dtypes may lie in the same ones."""
    layers = [each for entry in runner.kv_caches for each in (entry if isinstance(entry, list | tuple) else [entry])]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in layers}
    return [torch.empty(0, dtype=torch.uint8).set_(storage) for storage in storages.values()]


@contextmanager
def sleepy_memory() -> Iterator[SleepyMemory]:
    """vLLM with a sleep mode on a CPU."""
    from vllm.platforms import current_platform
    from vllm.v1.worker.cpu_worker import CPUWorker
    from vllm.v1.worker.gpu_worker import Worker

    from unified_tree.controllers.adapters.vllm import connector

    memory = SleepyMemory()
    with (
        mock.patch.object(type(current_platform), "is_sleep_mode_available", return_value=True),
        mock.patch.object(connector, "get_mem_allocator_instance", return_value=memory),
        mock.patch.object(weight_digests, "_words", memory_on_host),
        mock.patch.object(CPUWorker, "sleep", Worker.sleep),
        mock.patch.object(CPUWorker, "wake_up", Worker.wake_up),
        mock.patch.object(CPUWorker, "sleep_mode_backend", memory),
        mock.patch.object(Worker, "synchronize_device"),
        mock.patch.object(torch.accelerator, "synchronize"),
        mock.patch.object(torch.accelerator, "get_memory_info", return_value=(1, 1)),
    ):
        yield memory


def sleep(engine: Engine, memory: SleepyMemory, *, level: int = 1, weights: dict[str, torch.Tensor] | None = None) -> None:
    """Sleep and wake up, with other weights if any are given; requests go on afterwards."""
    engine.llm.llm_engine.engine_core.sleep(level, "keep")
    assert all(bool((each == GARBAGE_BYTE).all()) for each in kv_caches(memory.runner))
    engine.llm.wake_up(tags=["weights"])
    for name, each in (weights or {}).items():
        memory.weights[name].copy_(each)
    engine.llm.wake_up(tags=["kv_cache"])


def loads_end(engine: Engine) -> None:
    """vLLM cannot sleep before: not while a request loads, holds what it has loaded and waits for its turn, or was aborted and
    still loads."""
    scheduler = engine.core.scheduler
    while scheduler.kv_holding_waiting or any(each.is_finished() for each in scheduler.requests.values()):
        engine.step()
