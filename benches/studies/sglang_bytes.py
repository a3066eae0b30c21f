"""`ENGINE_PYTHON sglang_bytes.py FILES OUT`: what SGLang allocates of each model, by its own pool configurators on a CPU.

FILES is a JSON object of `config.json`s by name. SGLang's `ModelConfig` reads each, and the configurator that sizes its memory
pools says the bytes of a token; its recurrent states are those of `mamba2_cache_params`. The server's arguments are those of a
plain model. Silent on what a GPU's attention backend changes. It imports nothing of this package.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PLAIN = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
}


def save(folder: str, config: dict[str, Any]) -> str:
    Path(folder, "config.json").write_text(json.dumps(config))
    return folder


def publish() -> Any:
    """The arguments of a server, which the configurators ask for."""
    from sglang.srt import runtime_context
    from sglang.srt.server_args import ServerArgs

    with tempfile.TemporaryDirectory() as folder:
        arguments = ServerArgs(
            model_path=save(folder, PLAIN),
            device="cpu",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            attention_backend="torch_native",
        )
        runtime_context.publish(arguments, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=0))
    return arguments


def allocated(config: dict[str, Any], arguments: Any) -> dict[str, Any]:
    """Bytes a token, or a state, by kind of layer."""
    import torch
    from sglang.srt.configs.hybrid_arch import mambaish_config
    from sglang.srt.configs.model_config import AttentionArch, ModelConfig, is_deepseek_v4
    from sglang.srt.model_executor import pool_configurator as pools
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    besides = json.dumps(config.pop("besides", {}))
    if config["model_type"] == "gemma4_text":  # it knows the language model inside the whole alone
        config = {"model_type": "gemma4", "architectures": config["architectures"], "text_config": config}
    with tempfile.TemporaryDirectory() as folder:
        model = ModelConfig(save(folder, config), dtype="bfloat16", model_override_args=besides)
    layers = getattr(model, "num_attention_layers", None) or model.num_hidden_layers
    hybrid = mambaish_config(model)
    asked = SimpleNamespace(
        model_config=model,
        kv_cache_dtype=torch.bfloat16,
        kv_cache_dtype_str="bfloat16",
        model_dtype=torch.bfloat16,
        page_size=256 if is_deepseek_v4(model.hf_config) else 64,
        layer_info=SimpleNamespace(
            start_layer=0,
            end_layer=layers,
            num_effective_layers=layers,
            swa_attention_layer_ids=model.swa_attention_layer_ids,
            full_attention_layer_ids=model.full_attention_layer_ids,
        ),
        is_draft_worker=False,
        spec_algorithm=SpeculativeAlgorithm.from_string(None),
        use_mla_backend=model.attention_arch == AttentionArch.MLA,
        is_hybrid_swa=model.is_hybrid_swa,
        server_args=arguments,
        pp_size=1,
        attn_dp_size=1,
        sliding_window_size=getattr(model.hf_text_config, "sliding_window", None),
        device="cpu",
        fused_entry_bytes=lambda *_: None,
        mambaish_config=hybrid,
        spec_aux_config=SimpleNamespace(eagle_draft_num_layers=None, dflash_draft_num_layers=None),
        kv_shard_rank=None,
        kv_shard_size=1,
        kv_shard_spec=None,
    )
    sizes = pools.create_memory_pool_configurator(asked)
    found: dict[str, Any] = {}
    if isinstance(sizes, pools.DSV4PoolConfigurator):
        entries = sum(sizes.num_layers(ratio) / ratio for ratio in (4, 128))
        found["full"] = sizes.kv_bytes * entries
        found["index"] = sizes.indexer_bytes_per_token * sizes.num_layers(4) / 4
        found[f"window {sizes.sliding_window_size - 1}"] = sizes.kv_bytes * sizes.num_layers_total
    elif isinstance(sizes, pools.HybridSWAPoolConfigurator):
        found["full"] = sizes._full_per_token * sizes._full_layers_num
        found["window"] = sizes._swa_per_token * sizes._swa_layers_num
    else:
        found["full"] = sizes._cell_size
    if hybrid is not None:
        found["state"] = int(hybrid.mamba2_cache_params.mamba_cache_per_req)
    return found


def served() -> set[str]:
    """The classes of SGLang's models."""
    import sglang.srt

    models = Path(next(iter(sglang.srt.__path__)), "models")
    return {name for file in models.glob("*.py") for name in re.findall(r"^class (\w+)\(", file.read_text(), re.MULTILINE)}


def main(files: str, out: str) -> None:
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    arguments, classes = publish(), served()
    results: dict[str, Any] = {}
    for name, config in json.loads(Path(files).read_text()).items():
        try:
            if config["architectures"][0] not in classes:
                raise LookupError("it has no class of its own for this model")
            results[name] = allocated(config, arguments)
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
