"""Tiny random models of each kind, saved as checkpoints that SGLang and transformers both read.

A random model as transformers makes it answers by the last token alone. These are scaled so that attention is sharp and strong:
a wrong page anywhere in a prompt changes what is generated. All are float32, where a greedy choice is rarely near a tie.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

VOCABULARY = 512
WINDOW = 32
LENGTH = 4096
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


WIDTHS = {"num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {**COMMON, **WIDTHS}),
    "mellum": (  # dense MLPs, for SGLang's experts have no float32 path here
        "MellumConfig",
        {
            **COMMON,
            **WIDTHS,
            **EXPERTS,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "mlp_layer_types": ["dense"] * 4,
        },
    ),
    "qwen3-next": (
        "Qwen3NextConfig",
        {
            **COMMON,
            **WIDTHS,
            **EXPERTS,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "shared_expert_intermediate_size": 32,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"],
            "full_attention_interval": 4,
        },
    ),
    # Multi-head latent attention with dense MLPs; SGLang's MLA has YaRN alone on a CPU, and its Triton kernel these widths.
    "deepseek": (
        "DeepseekV3Config",
        {
            **COMMON,
            "num_key_value_heads": 4,
            "q_lora_rank": 32,
            "kv_lora_rank": 256,
            "qk_rope_head_dim": 32,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 4,
            "num_mtp_layers": 0,
            "moe_layer_freq": 1,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 2.0,
                "original_max_position_embeddings": LENGTH // 2,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
    ),
}
GAINS = {"q_proj": 3.0, "q_b_proj": 3.0, "o_proj": 3.0, "out_proj": 3.0, "v_proj": 2.0, "kv_b_proj": 2.0}
"""By how much a projection is stronger than one that keeps the size of its input."""


def saved(name: str, parent: Path, *, seed: int = 2, **changes: object) -> Path:
    """The folder of a model's checkpoint, made at the first call; `changes` are of its configuration."""
    folder = parent / "-".join([name, *(f"{key}-{value}" for key, value in changes.items()), *([f"seed-{seed}"] * (seed != 2))])
    if not (folder / "config.json").exists():
        model(name, seed=seed, **changes).save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "dtype": "float32"}, indent=1))
    return folder


def saved_draft(parent: Path) -> Path:
    """The folder of an EAGLE draft for the Llama: one layer over the last token's embedding, so that some drafts are right."""
    folder = parent / "llama-eagle"
    if not (folder / "config.json").exists():
        import torch
        from safetensors.torch import save_file

        whole = model("llama", seed=3, num_hidden_layers=1)
        width = whole.config.hidden_size
        weights = {
            key.removeprefix("model."): weight.data.clone() for key, weight in whole.named_parameters() if ".layers." in key
        }
        del weights["layers.0.input_layernorm.weight"]
        for key in ("layers.0.self_attn.o_proj.weight", "layers.0.mlp.down_proj.weight"):
            weights[key] *= 0.1
        weights["fc.weight"] = torch.cat([torch.eye(width), torch.zeros(width, width)], dim=1)
        weights["fc.bias"] = torch.zeros(width)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        config = {**whole.config.to_dict(), "architectures": ["LlamaForCausalLMEagle"], "dtype": "float32"}
        (folder / "config.json").write_text(json.dumps(config, indent=1, default=str))
    return folder


RANK, ADAPTED = 4, ("q_proj", "k_proj", "v_proj", "o_proj")
ADAPTERS = {"red": 11, "blue": 12}
"""LoRA adapters by name, each with the seed of its weights."""


def saved_adapter(parent: Path, name: str) -> Path:
    """The folder of a random LoRA adapter of rank 4 for the Llama, strong enough to change what is generated."""
    folder = parent / f"llama-lora-{name}"
    if not (folder / "adapter_config.json").exists():
        import torch
        from safetensors.torch import save_file

        generator = torch.Generator().manual_seed(ADAPTERS[name])
        weights = {}
        for key, weight in model("llama").named_parameters():
            if key.split(".")[-2] in ADAPTED:
                stem = f"base_model.model.{key.removesuffix('.weight')}"
                for part, shape in (("A", (RANK, weight.shape[1])), ("B", (weight.shape[0], RANK))):
                    weights[f"{stem}.lora_{part}.weight"] = torch.randn(shape, generator=generator) / math.sqrt(shape[1])
        folder.mkdir(parents=True, exist_ok=True)
        save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(ADAPTED), "bias": "none"}
        (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "llama"}, indent=1))
    return folder


def model(name: str, *, seed: int = 2, **changes: object) -> Any:
    """The model itself, as transformers runs it."""
    import torch
    import transformers

    kind, settings = CONFIGURATIONS[name]
    configuration: Any = getattr(transformers, kind)(**settings)
    for key, value in changes.items():
        assert hasattr(configuration, key), key
        setattr(configuration, key, value)
    torch.manual_seed(1)
    models: Any = transformers.AutoModelForCausalLM
    made = models.from_config(configuration, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, weight in made.named_parameters():
            scale = _scale(key, weight)
            if scale is not None:
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
    return made


def _scale(key: str, weight: Any) -> float | None:
    """The standard deviation of a weight; None leaves what transformers chose."""
    if weight.dim() < 2 or "conv1d" in key:
        return None
    if "embed_tokens" in key:
        return 1.0
    return GAINS.get(key.split(".")[-2], 1.0) / math.sqrt(weight.shape[-1])
