"""Speculative decoding of a model with recurrent states on a CPU: what verifies a chain of drafts, in torch.

A verification leaves the states of a request as they are, and notes the state after each draft. When it is known how many
drafts were right, the state after the last of them is copied. SGLang has Triton kernels for both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def register() -> None:
    """Verify and copy without kernels; SGLang calls this in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    copies = "sglang.kernels.ops.mamba.mamba_state_scatter_triton"
    gated = "sglang.srt.layers.attention.linear.kernels.gdn_triton.TritonGDNKernel"
    HookRegistry.register(f"{copies}.scatter_mamba_states_after_mtp_verify", settled, HookType.REPLACE)
    HookRegistry.register(f"{gated}.target_verify", verified, HookType.REPLACE)


def verified(
    kernel: Any,
    A_log: Tensor,  # noqa: N803  # SGLang's name
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    ssm_states: Tensor,
    cache_indices: Tensor,
    intermediate_states_buffer: Tensor,
    intermediate_state_indices: Tensor,
    cache_steps: int,
    **_: object,
) -> Tensor:
    """The rows of chains of drafts laid end to end; the state after each draft is noted, and that of the request is kept."""
    from sgl_kernel.mamba import fused_sigmoid_gating_delta_rule_update_cpu

    del kernel
    out = torch.empty_like(v)
    heads = v.shape[2]
    for row, slot in enumerate(cache_indices.tolist()):
        if slot < 0:
            continue
        state, notes = ssm_states[slot : slot + 1].clone(), int(intermediate_state_indices[row])
        for step in range(cache_steps):
            at = slice(row * cache_steps + step, row * cache_steps + step + 1)
            found = fused_sigmoid_gating_delta_rule_update_cpu(
                A_log,
                dt_bias,
                q[:, at],
                k[:, at],
                v[:, at],
                a.reshape(-1, heads)[at],
                b.reshape(-1, heads)[at],
                state,
                torch.zeros(1, dtype=torch.int64),
                use_qk_l2norm=True,
            )
            out[:, at] = found.reshape(out[:, at].shape)
            intermediate_states_buffer[notes, step] = state[0].to(intermediate_states_buffer.dtype)
    return out


def settled(
    caches: Any,
    slots: Tensor,
    steps: Tensor,
    track_slots: Tensor | None,
    track_steps: Tensor | None,
    src_indices_raw: Tensor | None = None,
) -> None:
    """Copy the states after the last right drafts to the requests', and those at the grid to their snapshots."""
    assert src_indices_raw is None
    for targets, chosen in ((slots, steps), (track_slots, track_steps)):
        if targets is None or chosen is None:
            continue
        for row, (slot, step) in enumerate(zip(targets.tolist(), chosen.tolist(), strict=False)):
            if step >= 0 and slot >= 0:
                caches.temporal[:, slot] = caches.intermediate_ssm[:, row, step].to(caches.temporal.dtype)
                for conv, notes in zip(caches.conv, caches.intermediate_conv_window, strict=True):
                    conv[:, slot] = notes[:, row, step].to(conv.dtype)
