"""SGLang on a GPU without its compiled operators: what has no other form than a kernel of sgl-kernel, CUTLASS or its own
compiler.

`SGLANG_FORCE_FUSED_OP_BACKEND=torch` has SGLang run its operators in torch, `--attention-backend triton` its attention. This
plug-in is for what is left, and is chosen by `SGLANG_PLUGINS`. The gated delta rule of a prefill stands here, too: SGLang's
kernel takes chunks of 64 tokens in bfloat16, so that a state depends on where a prompt was cut.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def register() -> None:
    """Go without these kernels on CUDA; SGLang calls this in each of its processes."""
    import torch

    if not torch.cuda.is_available():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks = {
        "sglang.srt.layers.dual_gemm.DualGemm._select_mode": lambda *_: None,
        "sglang.kernels.ops.kvcache.kvcache.can_use_store_cache": lambda *_, **__: False,
        "sglang.kernels.ops.kvcache.set_mla_kv_buffer.can_use_set_mla_kv_buffer": lambda *_, **__: False,
        "sglang.srt.layers.attention.linear.kernels.gdn_triton.TritonGDNKernel.extend": extended,
    }
    for name, call in hooks.items():
        HookRegistry.register(name, call, HookType.REPLACE)


def extended(
    kernel: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    ssm_states: Tensor,
    cache_indices: Tensor,
    query_start_loc: Tensor,
    inplace_update: bool = True,
    **_: object,
) -> tuple[Tensor, None, Tensor]:
    """A prefill of gated delta net, one token at a time. On CUDA a state is `[heads, value width, key width]`."""
    from sgl_kernel.mamba import chunk_gated_delta_rule_cpu

    del kernel
    assert inplace_update
    out, _none, states = chunk_gated_delta_rule_cpu(
        q,
        k,
        v,
        g,
        beta,
        initial_state=ssm_states.transpose(-1, -2),
        cu_seqlens=query_start_loc,
        initial_state_indices=cache_indices,
    )
    return out, None, states.transpose(-1, -2)
