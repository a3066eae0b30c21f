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

    target = "sglang.kernels.ops.attention.fla.layernorm_gated._layer_norm_fwd"
    HookRegistry.register(target, normed, HookType.REPLACE)


def normed(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, z: Tensor | None = None, **settings: object
) -> tuple[Tensor, None, None]:
    """RMS norm of each row, then the gate: x is `[rows, width]`, z is the same or `[tokens, heads, width]`."""
    assert settings.get("is_rms_norm") and settings.get("norm_before_gate", True) and bias is None
    assert settings.get("group_size") in (None, x.shape[-1]) and settings.get("activation", "swish") in ("swish", "silu")
    rows = x.float()
    rows = rows * torch.rsqrt((rows * rows).mean(-1, keepdim=True) + eps) * weight.float()
    if z is not None:
        rows = rows * functional.silu(z.reshape(x.shape).float())
    return rows.to(x.dtype), None, None
