"""Gated delta net on a CPU in plain torch: the operators of sgl-kernel that Qwen3-Next calls, which have no CPU build on PyPI.

The recurrence runs one token at a time, so a state does not depend on how a prompt was cut into chunks. States are written in
place: `[slots, value heads, key width, value width]`, convolutions as `[slots, channels, width - 1]`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

PADDING = -1
SNAPSHOT_TOKENS = 64
"""A prefill reports the state at multiples of this, which is SGLang's chunk."""


def causal_conv1d_fn_cpu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None = None,
    conv_states: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    cache_indices: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    **_: object,
) -> Tensor:
    """A depthwise causal convolution over sequences laid end to end: x is `[channels, tokens]`."""
    assert conv_states is not None and cache_indices is not None and query_start_loc is not None
    past = weight.shape[1] - 1
    out = torch.empty_like(x)
    ends = query_start_loc.tolist()
    for i, slot in enumerate(cache_indices.tolist()[: len(ends) - 1]):
        start, end = ends[i], ends[i + 1]
        if start == end or slot == PADDING:
            continue
        known = has_initial_state is not None and bool(has_initial_state[i])
        head = conv_states[slot] if known else torch.zeros_like(conv_states[slot])
        padded = torch.cat([head.to(x.dtype), x[:, start:end]], dim=1)
        out[:, start:end] = _convolved(padded, weight, bias, activation)
        conv_states[slot] = padded[:, -past:].to(conv_states.dtype)
    return out


def causal_conv1d_update_cpu(
    x: Tensor,
    conv_states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None = None,
    conv_state_indices: Tensor | None = None,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    **_: object,
) -> Tensor:
    """One more token for each request: x is `[requests, channels]`.

    Or a chain of drafts for each, `[requests, channels, drafts]`: the window after each draft is noted, and those of the
    requests are kept.
    """
    assert conv_state_indices is not None
    if intermediate_conv_window is not None and intermediate_state_indices is not None:
        heads = conv_states[conv_state_indices.clamp(min=0)].to(x.dtype)
        padded = torch.cat([heads, x], dim=-1)
        past = heads.shape[-1]
        for step in range(x.shape[-1]):
            windows = padded[..., step + 1 : step + 1 + past]
            intermediate_conv_window[intermediate_state_indices.long(), step] = windows.to(intermediate_conv_window.dtype)
        rows = torch.stack([_convolved(each, weight, bias, activation).T for each in padded])
        return rows.transpose(1, 2)  # contiguous as [requests, drafts, channels]
    assert x.dim() == 2
    live = conv_state_indices != PADDING
    slots = conv_state_indices[live]
    padded = torch.cat([conv_states[slots].to(x.dtype), x[live].unsqueeze(-1)], dim=-1)
    conv_states[slots] = padded[..., 1:].to(conv_states.dtype)
    sums = (padded * weight).sum(-1)
    sums = sums if bias is None else sums + bias
    out = torch.zeros_like(x)
    out[live] = functional.silu(sums) if activation in ("silu", "swish") else sums
    return out


def _convolved(padded: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    sums = (padded.unfold(1, weight.shape[1], 1) * weight.unsqueeze(1)).sum(-1)
    sums = sums if bias is None else sums + bias.unsqueeze(-1)
    return functional.silu(sums) if activation in ("silu", "swish") else sums


def _unit(x: Tensor) -> Tensor:
    return x.float() * torch.rsqrt((x.float() ** 2).sum(-1, keepdim=True) + 1e-6)


def _step(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The gated delta rule for one token: state is `[…, heads, key width, value width]`."""
    state = state * g.exp()[..., None, None]
    delta = (v - (state * k.unsqueeze(-1)).sum(-2)) * beta.unsqueeze(-1)
    state = state + k.unsqueeze(-1) * delta.unsqueeze(-2)
    return state, (state * q.unsqueeze(-1)).sum(-2)


def chunk_gated_delta_rule_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    initial_state_indices: Tensor,
    use_qk_l2norm_in_kernel: bool = True,
    **_: object,
) -> tuple[Tensor, None, Tensor]:
    """A prefill of sequences laid end to end: q and k are `[1, tokens, key heads, width]`, v has the value heads.

    Returns the rows, and the states before each chunk of each sequence: `[1, chunks, …]`.
    """
    groups = v.shape[2] // q.shape[2]
    q, k = (_unit(each) if use_qk_l2norm_in_kernel else each.float() for each in (q[0], k[0]))
    q = q.repeat_interleave(groups, dim=1) * q.shape[-1] ** -0.5
    k = k.repeat_interleave(groups, dim=1)
    out = torch.empty_like(v)
    snapshots: list[Tensor] = []
    ends = cu_seqlens.tolist()
    for i, slot in enumerate(initial_state_indices.tolist()[: len(ends) - 1]):
        assert slot != PADDING
        state = initial_state[slot].float()
        for at in range(ends[i], ends[i + 1]):
            if (at - ends[i]) % SNAPSHOT_TOKENS == 0:
                snapshots.append(state)
            state, row = _step(state, q[at], k[at], v[0, at].float(), g[0, at].float(), beta[0, at].float())
            out[0, at] = row.to(out.dtype)
        initial_state[slot] = state.to(initial_state.dtype)
    return out, None, torch.stack(snapshots).unsqueeze(0)


def fused_gdn_gating_cpu(a_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """The decay in logarithms and the write strength of each token and head: `[1, tokens, heads]`."""
    g = -a_log.float().exp() * functional.softplus(a.float() + dt_bias.float())
    return g.unsqueeze(0), b.sigmoid().unsqueeze(0)


def fused_sigmoid_gating_delta_rule_update_cpu(
    a_log: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    states: Tensor,
    slots: Tensor,
    use_qk_l2norm: bool,
) -> Tensor:
    """One more token for each request: q and k are `[1, requests, key heads, width]`."""
    groups = v.shape[2] // q.shape[2]
    g, beta = fused_gdn_gating_cpu(a_log, a.reshape(-1, v.shape[2]), b.reshape(-1, v.shape[2]), dt_bias)
    q, k = (_unit(each) if use_qk_l2norm else each.float() for each in (q[0], k[0]))
    q = q.repeat_interleave(groups, dim=1) * q.shape[-1] ** -0.5
    k = k.repeat_interleave(groups, dim=1)
    live = slots != PADDING
    state, rows = _step(
        states[slots[live]].float(), q[live], k[live], v[0][live].float(), g[0][live].float(), beta[0][live].float()
    )
    states[slots[live]] = state.to(states.dtype)
    out = torch.zeros_like(v[0])
    out[live] = rows.to(out.dtype)
    return out.unsqueeze(1)


_library: Any = torch.library.Library("sgl_kernel", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("fused_gdn_gating_cpu(Tensor A_log, Tensor a, Tensor b, Tensor dt_bias) -> (Tensor, Tensor)")
_library.define(
    "fused_sigmoid_gating_delta_rule_update_cpu(Tensor A_log, Tensor dt_bias, Tensor q, Tensor k, Tensor v, Tensor a, Tensor b,"
    " Tensor(a!) initial_state_source, Tensor initial_state_indices, Tensor cu_seqlens, bool use_qk_l2norm_in_kernel,"
    " float softplus_beta=1.0, float softplus_threshold=20.0) -> Tensor"
)
_library.impl("fused_gdn_gating_cpu", fused_gdn_gating_cpu, "CPU")
_library.impl(
    "fused_sigmoid_gating_delta_rule_update_cpu",
    lambda a_log, bias, q, k, v, a, b, states, slots, _ends, norm, *_: fused_sigmoid_gating_delta_rule_update_cpu(
        a_log, bias, q, k, v, a, b, states, slots, norm
    ),
    "CPU",
)
