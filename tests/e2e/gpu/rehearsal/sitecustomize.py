"""Lets this machine pass for one with a GPU, so that SGLang takes the branches that it takes on CUDA; each process imports it.

Memory and arithmetic are the CPU's: a tensor for the device `cuda` is made on the CPU, streams and events do nothing, and
Triton interprets its kernels. So a rehearsal shows which operators are called, and not one thing about time, streams or a
GPU's memory.
"""

from __future__ import annotations

import importlib
import itertools
import os
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CAPABILITY = (9, 0)
MEMORY_BYTES = 8 << 30
NUMBERS = itertools.count()
"""Of streams."""


def host(value: Any) -> Any:
    """The value, but the CPU where it names the device `cuda`."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.split(":")[0] == "cuda" else value


class OnHost(TorchFunctionMode):
    """Makes on the CPU what is asked for on `cuda`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        kwargs = {key: host(value) for key, value in (kwargs or {}).items() if key != "pin_memory"}
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        return func(*(host(each) for each in args), **kwargs)


class Stream:
    """A stream on which all is done at once."""

    device = torch.device("cpu")

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = self.stream_id = next(NUMBERS)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None: ...
    def wait_stream(self, _: Any) -> None: ...
    def wait_event(self, _: Any) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or Event()


class Event:
    """An event that has happened."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record(self, *_: Any) -> None: ...
    def wait(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, _: Any) -> float:
        return 0.0

    def query(self) -> bool:
        return True


def _over_gloo(named: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a group of ranks, which gloo joins."""
    return {key: ("gloo" if key == "backend" else host(value)) for key, value in named.items() if key != "device_id"}


def pretend() -> None:
    """Change torch."""
    cuda: Any = torch.cuda
    stream = Stream()
    properties = SimpleNamespace(
        name="rehearsal", major=9, minor=0, total_memory=MEMORY_BYTES, multi_processor_count=132, warp_size=32,
        max_threads_per_multi_processor=2048, shared_memory_per_block_optin=232_448, L2_cache_size=50 << 20, gcnArchName="",
        uuid="rehearsal", regs_per_multiprocessor=65_536, is_integrated=False, pci_bus_id=0,
    )  # fmt: skip
    answers: dict[str, Any] = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_capability": CAPABILITY,
        "get_device_name": "rehearsal", "get_device_properties": properties, "mem_get_info": (MEMORY_BYTES, MEMORY_BYTES),
        "synchronize": None, "set_device": None, "empty_cache": None, "memory_allocated": 0, "memory_reserved": 0,
        "max_memory_allocated": 0, "reset_peak_memory_stats": None, "init": None, "is_initialized": True,
        "current_stream": stream, "default_stream": stream, "is_bf16_supported": True, "set_stream": None,
        "manual_seed": None, "manual_seed_all": None, "_lazy_init": None, "is_current_stream_capturing": False,
        "memory_stats": {}, "ipc_collect": None, "set_per_process_memory_fraction": None,
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(cuda, name, lambda *_, _answer=answer, **__: _answer)
    cuda._sleep = lambda _: time.sleep(0.05)
    cuda.Stream, cuda.Event = Stream, Event
    cuda.stream = lambda _: nullcontext()
    cuda.device = lambda _: nullcontext()
    cuda.StreamContext = lambda _: nullcontext()
    torch.version.cuda = "13.0"
    tensor: Any = torch.Tensor
    tensor.record_stream = lambda *_: None
    distributed: Any = torch.distributed
    start, group = distributed.init_process_group, distributed.new_group
    distributed.init_process_group = lambda *args, **kwargs: start(*args, **_over_gloo(kwargs))
    distributed.new_group = lambda *args, **kwargs: group(*args, **_over_gloo(kwargs))
    mode: Any = OnHost()
    mode.__enter__()
    threads: Any = threading.Thread
    run = threads.run

    def on_host(thread: threading.Thread) -> None:
        with OnHost():
            run(thread)

    threads.run = on_host


def mend_interpreter() -> None:
    """Let Triton's interpreter read a number from an array of one, which newer versions of numpy refuse; and pass over kernels
    that wait for others, which it does not know."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    language: Any = importlib.import_module("triton.language")
    for name in ("exp", "exp2", "log", "log2"):  # modules give them other names when they are imported, which it does not see
        setattr(language, name, lambda *args, _name=name, **kwargs: getattr(language.math, _name)(*args, **kwargs))
    for name in ("gdc_wait", "gdc_launch_dependents"):
        setattr(language.extra.cuda, name, lambda *_, **__: None)
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda number: int(number.handle.data.item()))

    interpreter._patch_lang_tensor = patched


if os.environ.get("UNIFIED_TREE_REHEARSAL"):
    pretend()
    mend_interpreter()
