"""A visit with vLLM's scheduler and its block manager: the same scripts, without a model. Runs in vLLM's own interpreter.

`PYTHONPATH=. PYTHON tests/museum/vllm_visit.py` prints a JSON object: the prompt tokens that hit, by exhibit. Its kinds live in
one pool of blocks. So a bounded pool is played only where all kinds have the same pages, and a state only with the block that
the report names. Host tiers, namespaces and a draft with windows are left out.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import tempfile
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}

import torch
from exhibits import EXHIBITS, WINDOW, Exhibit, Start, Tokens
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

ROOMY_BLOCKS = 100_000
DRAFTED_TOKENS = 3
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "max_position_embeddings": 1 << 16,
}
"""What a configuration asks for; nothing of it is run."""
EAGLE = SimpleNamespace(
    num_speculative_tokens=DRAFTED_TOKENS,
    num_speculative_tokens_per_batch_size=None,
    max_num_new_slots_for_drafting=0,
    use_eagle=lambda: True,
    use_eagle_block_drop=lambda: True,
    needs_eagle_block_drop=lambda: True,
    disable_eagle_block_drop=False,
    disable_lookahead_block_hashes=False,
    use_dspark=lambda: False,
    use_dflash=lambda: False,
    uses_draft_model=lambda: False,
    use_multi_module_mtp=lambda: False,
)
"""A draft model, as far as a scheduler looks at it."""


class Server:
    """A scheduler over an exhibit's pools."""

    def __init__(self, exhibit: Exhibit, config: Any) -> None:
        names = {component.name for component in exhibit.components}
        self._block = block = exhibit.block_tokens or exhibit.page_size
        blocks = sum(exhibit.pools.values()) or ROOMY_BLOCKS
        has_states, has_draft = "mamba" in names, "draft" in names
        config.cache_config.num_gpu_blocks, config.cache_config.block_size = blocks, block
        config.cache_config.mamba_cache_mode = "align" if has_states else "none"
        config.scheduler_config.max_num_batched_tokens = max(exhibit.chunk_tokens, block)
        config.speculative_config = EAGLE if has_draft else None
        shape = {"block_size": block, "num_kv_heads": 1, "head_size": 64, "dtype": torch.float32}
        full = FullAttentionSpec(**shape)
        groups = [KVCacheGroupSpec(["full"], full, is_eagle_group=has_draft)]
        if "swa" in names:
            groups.append(KVCacheGroupSpec(["swa"], SlidingWindowSpec(**shape, sliding_window=WINDOW + 1)))
        if has_states:
            state: dict[str, Any] = {"shapes": ((1, 1),), "dtypes": (torch.float32,), "mamba_cache_mode": "align"}
            spec = MambaSpec(block_size=block, page_size_padded=full.page_size_bytes, **state)
            groups.append(KVCacheGroupSpec(["mamba"], spec))
        layout = KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            prefix_cache_retention_interval=config.cache_config.prefix_cache_retention_interval,
        )
        self._scheduler = Scheduler(config, layout, StructuredOutputManager(config), block_size=block)
        since_0_33 = getattr(config, "num_hash_lookahead_tokens", None)
        self._lookahead = [] if since_0_33 is None else [since_0_33]
        self._names = count()

    def serve(self, prompt: Tokens, output: Tokens) -> int:
        """A request from its arrival to its end; the tokens that it hit."""
        scheduler = self._scheduler
        request = Request(
            str(next(self._names)),
            list(prompt),
            SamplingParams(max_tokens=len(output) + 1, ignore_eos=True),
            None,
            block_hasher=get_request_block_hasher(self._block, sha256, *self._lookahead),
        )
        scheduler.add_request(request)
        cached: int | None = None
        pending = [*output, 0]
        while not request.is_finished():
            step = scheduler.schedule()
            for new in step.scheduled_new_reqs:
                cached = new.num_computed_tokens if cached is None else cached
            names = list(step.num_scheduled_tokens)
            assert names, "a request that nothing is scheduled for"
            is_computed = request.num_computed_tokens >= request.num_tokens
            sampled = [[pending.pop(0)] if is_computed else []]
            indices = {name: index for index, name in enumerate(names)}
            ran = ModelRunnerOutput(req_ids=names, req_id_to_index=indices, sampled_token_ids=sampled)
            scheduler.update_from_output(step, ran)
        assert cached is not None
        return cached


def can_play(exhibit: Exhibit) -> bool:
    """Whether its kinds, pools and steps are ones that it has."""
    if not exhibit.is_of_an_engine:
        return False
    required = tuple(component.name for component in exhibit.components if component.required)
    if required == ("full", "mamba"):
        return exhibit.block_tokens is not None and not exhibit.pools
    return required in {("full",), ("full", "swa")}


def hits(exhibit: Exhibit, config: Any) -> int:
    """The prompt tokens that hit; a script of one request at a time."""
    server = Server(exhibit, config)
    return sum(server.serve(step.request.prompt, step.request.output) for step in exhibit.script if isinstance(step, Start))


def main() -> None:
    """Print what is hit."""
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        arguments: dict[str, Any] = {"max_model_len": 1 << 16, "max_num_seqs": 4, "enable_prefix_caching": True}
        config = EngineArgs(model=folder, skip_tokenizer_init=True, async_scheduling=False, **arguments).create_engine_config()
    print(json.dumps({exhibit.name: hits(exhibit, config) for exhibit in EXHIBITS if can_play(exhibit)}))


if __name__ == "__main__":
    main()
