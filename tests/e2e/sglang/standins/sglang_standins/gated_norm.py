"""The gated RMS norm of Qwen3-Next in plain torch.

SGLang has it as a Triton kernel alone. Triton's interpreter runs that on a CPU (TRITON_INTERPRET=1), a hundred times slower.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def register() -> None:
    """Replace the kernel's caller; SGLang calls this in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.kernels.ops.attention.fla.fused_norm_gate.rms_norm_gated", normed, HookType.REPLACE)


def normed(x: Tensor, g: Tensor, weight: Tensor, bias: Tensor | None, activation: str, eps: float, **unused: object) -> Tensor:
    """RMS norm of the last dimension, then the gate of the same shape."""
    assert activation in ("swish", "silu") and bias is None and not any(unused.values())
    rows = x.float()
    rows = rows * torch.rsqrt((rows * rows).mean(-1, keepdim=True) + eps) * weight.float()
    return (rows * functional.silu(g.reshape(x.shape).float())).to(x.dtype)
