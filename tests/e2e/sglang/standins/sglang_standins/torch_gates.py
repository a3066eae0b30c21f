"""Two Triton kernels of Qwen3-Next in plain torch: the gated RMS norm, and the gate of its shared expert.

SGLang has no other form of them for this CPU. Triton's interpreter runs them (TRITON_INTERPRET=1), at a second for each chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def register() -> None:
    """Replace what launches the kernels; SGLang calls this in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    kernels = "sglang.kernels.ops"
    HookRegistry.register(f"{kernels}.attention.fla.fused_norm_gate.rms_norm_gated", normed, HookType.REPLACE)
    HookRegistry.register(f"{kernels}.elementwise.elementwise._launch_fused_gate_sigmoid_mul", gated, HookType.REPLACE)


def normed(x: Tensor, g: Tensor, weight: Tensor, bias: Tensor | None, activation: str, eps: float, **unused: object) -> Tensor:
    """RMS norm of the last dimension, then the gate of the same shape."""
    assert activation in ("swish", "silu") and bias is None and not any(unused.values())
    rows = x.float()
    rows = rows * torch.rsqrt((rows * rows).mean(-1, keepdim=True) + eps) * weight.float()
    return (rows * functional.silu(g.reshape(x.shape).float())).to(x.dtype)


def gated(hidden: Tensor, gate_weight: Tensor, shared: Tensor, output: Tensor, *, do_add: bool) -> None:
    """Write into `output` the shared expert's rows, each by its gate; or add them."""
    rows = (torch.sigmoid((hidden.float() * gate_weight.float()).sum(-1, keepdim=True)) * shared.float()).to(output.dtype)
    output.copy_(output + rows if do_add else rows)
