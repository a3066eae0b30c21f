"""What vLLM's workers make on a CPU only when they compile a model, and a later pipeline stage needs."""

from __future__ import annotations

from typing import Any

OPTIONS: dict[str, Any] = {
    "pipeline_parallel_size": 2,
    "distributed_executor_backend": "mp",
    "worker_extension_cls": "vllm_stage_room.StageRoom",
}
"""Arguments of vLLM for two stages."""


class StageRoom:
    """Is mixed into vLLM's worker."""

    model_runner: Any

    def make_room(self) -> bool:
        """Room for what the stage before sends; whether this is a later stage."""
        from vllm.distributed import get_pp_group

        runner, is_first = self.model_runner, get_pp_group().is_first_rank
        if not is_first:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )
        return not is_first

    def held_bytes(self) -> list[int]:
        """Of a host page of each group."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        pages: dict[int, Any] = get_kv_transfer_group().worker_side.pages
        return [each.block_bytes for each in pages.values()]
