"""An attention backend for models with windows on a CPU.

SGLang keeps the KV of window layers in a pool of its own, whose slots are found by the allocator's full-to-window mapping. Its
`torch_native` backend reads window layers with the slots of the full layers, which fails as soon as the two pools differ. This
one translates, and computes only the rows that are asked for. It does not use the mapping of tokens left of the window.

It also serves speculative decoding by chains of drafts, for which SGLang has no attention in torch: a draft step reads the
drafts before it, and the verification of a chain is a causal prefill.

Where context-parallel ranks divide the tokens of a prefill, SGLang gathers the keys and values and writes all of them on each
rank. This backend gathers the queries, too, and computes every rank's rows.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

NAME = "cpu_windows"


def register() -> None:
    """Make `--attention-backend cpu_windows` known; SGLang calls this in each of its processes."""
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if NAME not in ATTENTION_BACKEND_CHOICES:
        ATTENTION_BACKEND_CHOICES.append(NAME)
    register_attention_backend(NAME)(_backend)
    AttentionBackendRegistry.register(NAME, lambda *_: AttnForwardMethod.MLA)
    if not torch.cuda.is_available():
        torch.cuda.current_stream = lambda *_: None  # type: ignore[assignment]  # asked for where ranks divide a prefill
    drafts = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
    HookRegistry.register(f"{drafts}.create_decode_backend", _draft_steps, HookType.REPLACE)
    HookRegistry.register(
        f"{drafts}.create_draft_extend_backend", lambda factory: _backend(factory.draft_model_runner), HookType.REPLACE
    )


def _draft_steps(factory: Any) -> Any:
    """One backend for each draft step but the last, whose token needs no attention."""
    steps = [_backend(factory.draft_model_runner, ahead=i + 1) for i in range(factory.speculative_num_steps - 1)]
    return SimpleNamespace(attn_backends=steps, init_forward_metadata=lambda _batch: None) if steps else None


def _backend(runner: Any, *, ahead: int = 0) -> Any:
    """The backend; one of a draft step reads that many tokens more than the batch says."""
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.layers.cp.utils import get_cp_strategy, is_cp_active
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    class WindowAttention(AttentionBackend):  # type: ignore[misc]  # its base is untyped where the engine is not installed
        """Reads full layers by the slots of the request, window layers by the slots that those map to."""

        def __init__(self) -> None:
            super().__init__()
            self.req_to_token_pool = runner.req_to_token_pool
            self.token_to_kv_pool = self.pool = runner.token_to_kv_pool
            self.written: Tensor | None = None

        def init_forward_metadata(self, forward_batch: Any) -> None:
            slots = forward_batch.out_cache_loc
            has_windows = hasattr(self.pool, "translate_loc_from_full_to_swa") and slots is not None
            self.written = self.pool.translate_loc_from_full_to_swa(slots) if has_windows else None

        def forward_extend(self, q: Tensor, k: Tensor, v: Tensor, layer: Any, batch: Any, save_kv_cache: bool = True) -> Tensor:
            if batch.forward_mode.is_target_verify():
                drafts = batch.spec_info.draft_token_num
                return self._forward(q, k, v, layer, batch, save_kv_cache, [drafts] * len(batch.seq_lens), more=drafts)
            lengths = batch.extend_seq_lens.tolist()
            if is_cp_active(batch):
                strategy = get_cp_strategy()
                strategy.materialize_full_kv(batch, layer, k, v, swa_loc=self.written)
                queries = strategy.gather_kv_cache(q.reshape(len(q), -1), batch)
                rows = self._forward(queries, k, v, layer, batch, False, lengths)
                mine: Tensor = strategy.shard_hidden_states(rows, batch)
                return mine
            return self._forward(q, k, v, layer, batch, save_kv_cache, lengths)

        def forward_decode(self, q: Tensor, k: Tensor, v: Tensor, layer: Any, batch: Any, save_kv_cache: bool = True) -> Tensor:
            return self._forward(q, k, v, layer, batch, save_kv_cache, [1] * len(batch.seq_lens), more=ahead)

        def _forward(
            self, q: Tensor, k: Tensor, v: Tensor, layer: Any, batch: Any, save: bool, lengths: list[int], more: int = 0
        ) -> Tensor:
            if save and k is not None:
                self.pool.set_kv_buffer(layer, KVWriteLoc(batch.out_cache_loc, self.written), k, v)
            keys = self.pool.get_key_buffer(layer.layer_id)
            values = self.pool.get_value_buffer(layer.layer_id)
            window = layer.sliding_window_size
            has_window = window is not None and window > -1
            queries = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
            out = q.new_empty((len(queries), layer.tp_q_head_num, layer.v_head_dim))
            start = 0
            totals = (batch.seq_lens + more).tolist()
            for row, total, count in zip(batch.req_pool_indices.tolist(), totals, lengths, strict=True):
                first = max(0, total - count - window) if has_window else 0
                slots = self.req_to_token_pool.req_to_token[row, first:total].long()
                if has_window and self.written is not None:
                    slots = self.pool.translate_loc_from_full_to_swa(slots)
                at = torch.arange(total - count, total).unsqueeze(1)
                past = torch.arange(first, total).unsqueeze(0)
                seen = (past <= at) & (past >= at - window) if has_window else past <= at
                out[start : start + count] = _attended(
                    queries[start : start + count], keys[slots], values[slots], seen, layer.scaling
                )
                start += count
            return out.view(len(queries), -1)

        def support_triton(self) -> bool:
            return False

        def get_cpu_graph_seq_len_fill_value(self) -> int:
            """The length of rows that a step of several data-parallel ranks is filled up with."""
            return 1

    return WindowAttention()


def _attended(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scaling: float) -> Tensor:
    """Attention of one request: q is `[tokens, heads, width]`, k and v have the KV heads, `seen` says who sees whom."""
    return torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        k.to(q.dtype).transpose(0, 1).unsqueeze(0),
        v.to(q.dtype).transpose(0, 1).unsqueeze(0),
        attn_mask=seen,
        scale=scaling,
        enable_gqa=q.shape[1] != k.shape[1],
    )[0].transpose(0, 1)
