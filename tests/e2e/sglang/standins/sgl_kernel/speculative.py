"""Speculative decoding on a CPU in plain torch: the operators of sgl-kernel that EAGLE calls there, for chains of drafts.

A chain is a tree in which each draft has one child (`--speculative-eagle-topk 1`).
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def assign_extend_cache_locs_cpu(rows: Tensor, table: Tensor, starts: Tensor, ends: Tensor, out: Tensor, _width: int) -> None:
    """Write the slots of each request between two lengths, laid end to end."""
    at = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        out[at : at + end - start] = table[row, start:end]
        at += end - start


def assign_req_to_token_pool_cpu(rows: Tensor, table: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, _width: int) -> None:
    """Write slots that lie end to end into the table, each request's between two lengths."""
    at = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = slots[at : at + end - start]
        at += end - start


def assign_draft_cache_locs_contiguous_cpu(
    rows: Tensor, table: Tensor, lengths: Tensor, out: Tensor, width: int, topk: int, steps: int
) -> None:
    """Write the slots of each request's drafts, which follow its tokens."""
    assign_extend_cache_locs_cpu(rows, table, lengths, lengths + topk * steps, out, width)


def build_tree_kernel_efficient_cpu(
    _parents: Tensor,
    _selected: Tensor,
    lengths: Tensor,
    mask: Tensor,
    positions: Tensor,
    index: Tensor,
    next_token: Tensor,
    _next_sibling: Tensor,
    topk: int,
    _depth: int,
    count: int,
    _mask_mode: int,
) -> None:
    """Write the places of a chain, and who follows whom; -1 means none."""
    assert topk == 1
    chain = torch.arange(count)
    positions.copy_((lengths.unsqueeze(1) + chain).flatten())
    index.copy_(torch.arange(index.numel()).view_as(index))
    next_token[:, :-1] = chain[1:]
    mask.view(len(lengths), count, count).copy_(chain.unsqueeze(1) >= chain)


def verify_tree_greedy_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    target_predict: Tensor,
    **_: Tensor,
) -> None:
    """Accept the drafts of each chain up to the first that the model would not have chosen, then its own choice."""
    targets = target_predict.view_as(candidates)
    for row in range(len(candidates)):
        agree = (candidates[row, 1:] == targets[row, :-1])[: accept_index.shape[1] - 1]
        accepted = int(agree.long().cumprod(0).sum())
        places = retrive_index[row, : accepted + 1]
        accept_index[row, : accepted + 1] = places.to(accept_index.dtype)
        accept_token_num[row] = accepted
        predicts[places] = targets[row, : accepted + 1].to(predicts.dtype)


def fill_bonus_tokens_cpu(accepted: Tensor, lengths: Tensor, bonus: Tensor, stride: int) -> None:
    """Write the last accepted token of each request."""
    bonus.copy_(accepted.flatten()[torch.arange(len(lengths)) * stride + lengths.long() - 1])


def fill_accept_out_cache_loc_cpu(index: Tensor, slots: Tensor, out: Tensor) -> None:
    """Write the slots of the accepted tokens, without gaps."""
    chosen = slots[index[index > -1].long()]
    out[: len(chosen)] = chosen


def copy_all_layer_kv_cache_cpu(addresses: Tensor, strides: Tensor, targets: Tensor, sources: Tensor) -> None:
    """Copy slots within each buffer, which is known by its address and the bytes of a slot."""
    for address, stride in zip(addresses.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(address + source * stride, stride) for source in sources.tolist()]
        for target, row in zip(targets.tolist(), rows, strict=True):
            ctypes.memmove(address + target * stride, row, stride)
