"""CPU memory for whole pools: in huge pages where the kernel grants them, and pinned where a GPU uses it over the bus.

Pages of a pool are read in any order, in pieces of some ten kilobytes, and every piece starts with TLB misses: with pages of 4
KiB that halves the speed of such copies. So pools use numpy's allocator, which asks Linux for huge pages (from 4 MiB on), and
not torch's, which does not. A kernel whose setting is `never`, or another system, gives ordinary pages.

Memory is allocated first and pinned then. Torch's own pinned allocator rounds every request up to a power of two, which would
take 128 GiB for a pool of 70.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from unified_tree.controllers.tensors import torch
from unified_tree.terms.errors import ConfigurationError

ALIGNMENT_BYTES = 2 << 20
"""A huge page, which must start at a multiple of its size. Pools below that are aligned to a line of the cache."""
LINE_BYTES = 64


def cpu_memory(size_bytes: int) -> torch.Tensor:
    """uint8 [size_bytes], aligned to 64 bytes or more; not touched before it is written, and never cleared. Cost: O(1)."""
    alignment = ALIGNMENT_BYTES if size_bytes >= ALIGNMENT_BYTES else LINE_BYTES
    memory = np.empty(size_bytes + alignment, dtype=np.uint8)
    begin = -memory.ctypes.data % alignment
    return torch.from_numpy(memory[begin : begin + size_bytes])


PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device of this process."""


def check_can_pin(component: str) -> None:
    """Raise ConfigurationError where there is no CUDA to pin memory with."""
    if not torch.cuda.is_available():
        raise ConfigurationError(f"{component}: pinned host memory needs CUDA, and torch finds none here")


def pin_memory(memory: torch.Tensor) -> None:
    """Pin a host tensor's memory; raises ConfigurationError if the system refuses. Touches every page of it."""
    code = int(_cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, PORTABLE))
    if code:
        raise ConfigurationError(f"{memory.nbytes} bytes of host memory could not be pinned: CUDA error {code}")


def unpin_memory(memory: torch.Tensor) -> None:
    """Undo `pin_memory`, after waiting for what the GPU still copies."""
    torch.cuda.synchronize()
    _cudart().cudaHostUnregister(memory.data_ptr())


def pin_while_used(owner: object, memory: torch.Tensor) -> None:
    """`pin_memory`, until the owner is collected."""
    pin_memory(memory)
    weakref.finalize(owner, unpin_memory, memory).atexit = False


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class _DeviceVisible:
    """Host memory exposed by CUDA's array interface; keeps the memory alive."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": (memory.nbytes,),
            "typestr": "|u1",
            "data": (memory.data_ptr(), False),
            "strides": None,
            "version": 2,
        }


def device_view(memory: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The same bytes as a tensor of `device`, [n] uint8; the memory itself for the CPU, and for memory that is there already.

    On a GPU a kernel that indexes it moves data over the bus, by unified addressing. Raises ConfigurationError for memory
    that is not pinned, or that torch would copy instead of showing.
    """
    if device.type in ("cpu", memory.device.type):
        return memory
    if not memory.is_pinned():
        raise ConfigurationError(f"host memory must be pinned to be read by {device}: create it with pin=True")
    view = torch.as_tensor(_DeviceVisible(memory), device=device)
    if view.data_ptr() != memory.data_ptr():
        raise ConfigurationError(f"host memory cannot be shown to {device}: it was pinned for another device")
    return view
