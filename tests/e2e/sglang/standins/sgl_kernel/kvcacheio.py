"""HiCache's copies between a GPU and host memory in plain torch, for `--hicache-io-backend direct` in the layout `layer_first`.

Each call returns when its bytes have arrived, where sgl-kernel's copies run beside the model. So what is loaded is right, and
how fast HiCache copies is not shown.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sgl_kernel import Absent, absent


def transfer_kv_direct(
    src_layers: list[Tensor], dst_layers: list[Tensor], src_indices: Tensor, dst_indices: Tensor, page_size: int
) -> None:
    """Copy the rows of some slots from one list of layers to another, of which one is on the GPU."""
    del page_size
    for source, target in zip(src_layers, dst_layers, strict=True):
        rows = source[src_indices.to(source.device)]
        target[dst_indices.to(target.device)] = rows.to(target.device)


def __getattr__(name: str) -> Absent | Any:
    return absent("sgl_kernel.kvcacheio", name)
