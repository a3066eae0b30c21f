"""A `config.json` of each family of models, with what SGLang and vLLM ask of it.

The sizes are the defaults of the family's class in `transformers`, as far as not given here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MIMO = [0, *[1, 1, 1, 1, 0] * 9, 1, 0]
THREE_TO_ONE = ["linear_attention"] * 3 + ["full_attention"]
V4_RATIOS = [0, 0, *[4, 128] * 20, 4]
COMMON = {"vocab_size": 1024, "max_position_embeddings": 8192}
DROPPED = ("transformers_version", "compress_rates")

FAMILIES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "Llama": ("llama", "LlamaForCausalLM", {}),
    "Qwen3": ("qwen3", "Qwen3ForCausalLM", {}),
    "Qwen3 MoE": ("qwen3_moe", "Qwen3MoeForCausalLM", {}),
    "Mistral": ("mistral", "MistralForCausalLM", {"sliding_window": None}),
    "Mistral with a window": ("mistral", "MistralForCausalLM", {"sliding_window": 4096}),
    "GLM 4.5": ("glm4_moe", "Glm4MoeForCausalLM", {"head_dim": 128}),
    "gpt-oss": ("gpt_oss", "GptOssForCausalLM", {}),
    "Gemma 2": ("gemma2", "Gemma2ForCausalLM", {}),
    "Gemma 3": ("gemma3_text", "Gemma3ForCausalLM", {}),
    "Gemma 4": ("gemma4_text", "Gemma4ForCausalLM", {}),
    "Command-A": ("cohere2", "Cohere2ForCausalLM", {}),
    "EXAONE 4": ("exaone4", "Exaone4ForCausalLM", {}),
    "Mellum": ("mellum", "MellumForCausalLM", {"layer_types": ["sliding_attention", "full_attention"] * 14}),
    "MiMo V2": (
        "mimo_v2_flash",
        "MiMoV2FlashForCausalLM",
        {
            "hybrid_layer_pattern": MIMO,
            "layer_types": ["sliding_attention" if entry else "full_attention" for entry in MIMO],
            "moe_layer_freq": [0] + [1] * 47,
            "sliding_window_size": 128,
            "sliding_window": 128,
            "swa_num_attention_heads": 64,
            "swa_num_key_value_heads": 8,
            "swa_head_dim": 192,
            "swa_v_head_dim": 128,
            "swa_rope_theta": 10000,
            "add_swa_attention_sink_bias": True,
            "attention_value_scale": 1.0,
            "layernorm_epsilon": 1e-6,
        },
    ),
    "Llama 4": ("llama4_text", "Llama4ForCausalLM", {}),
    "DeepSeek V3": ("deepseek_v3", "DeepseekV3ForCausalLM", {}),
    "DeepSeek V3.2": ("deepseek_v32", "DeepseekV32ForCausalLM", {}),
    "DeepSeek V4": (
        "deepseek_v4",
        "DeepseekV4ForCausalLM",
        {"compress_ratios": V4_RATIOS, "layer_types": None, "window_size": 128, "sliding_window": 128},
    ),
    "GLM 5": ("glm_moe_dsa", "GlmMoeDsaForCausalLM", {}),
    "Hunyuan 4": ("hy_v4", "HYV4ForCausalLM", {}),
    "MiniCPM 3": ("minicpm3", "MiniCPM3ForCausalLM", {}),
    "MiniMax M3": (
        "minimax_m3_vl_text",
        "MiniMaxM3SparseForCausalLM",
        {
            "rope_theta": 10000.0,
            "rotary_dim": 64,
            "layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57,
            "sparse_attention_config": {
                "use_sparse_attention": True,
                "sparse_attention_freq": [0] * 3 + [1] * 57,
                "sparse_disable_index_value": [0] * 3 + [1] * 57,
                "sparse_index_dim": 128,
                "sparse_num_index_heads": 4,
                "sparse_block_size": 128,
                "sparse_topk_blocks": 16,
                "sparse_local_block": 1,
            },
        },
    ),
    "Kimi Linear": (
        "kimi_linear",
        "KimiLinearForCausalLM",
        {
            "num_hidden_layers": 8,
            "layer_types": THREE_TO_ONE * 2,
            "mlp_layer_types": ["dense"] + ["sparse"] * 7,
            "linear_attn_config": {
                "head_dim": 128,
                "num_heads": 32,
                "short_conv_kernel_size": 4,
                "kda_layers": [1, 2, 3, 5, 6, 7],
                "full_attn_layers": [4, 8],
            },
            "mla_use_nope": True,
        },
    ),
    "Ling 2.5": (
        "bailing_hybrid",
        "BailingMoeV2_5ForCausalLM",
        {
            "num_hidden_layers": 8,
            "layer_group_size": 4,
            "head_dim": 128,
            "num_key_value_heads": 32,
            "q_lora_rank": 1536,
            "group_norm_size": 4,
            "linear_silu": False,
            "use_qk_norm": True,
            "partial_rotary_factor": 0.5,
            "use_bias": False,
            "use_qkv_bias": False,
            "num_experts": 16,
        },
    ),
    "Qwen3-Next": ("qwen3_next", "Qwen3NextForCausalLM", {"full_attention_interval": 4}),
    "Qwen3.5": ("qwen3_5_text", "Qwen3_5ForCausalLM", {"full_attention_interval": 4, "mamba_ssm_dtype": "float32"}),
    "Nemotron-H": (
        "nemotron_h",
        "NemotronHForCausalLM",
        {
            "layers_block_type": ["mamba", "mlp", "attention", "mlp", "mamba", "mlp"],
            "hybrid_override_pattern": "M-*-M-",
            "num_hidden_layers": 6,
            "layer_types": None,
            "mlp_hidden_act": "relu2",
        },
    ),
    "Falcon-H1": ("falcon_h1", "FalconH1ForCausalLM", {}),
    "Granite 4": (
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        {"layer_types": ["mamba", "mamba", "mamba", "attention"] * 8, "position_embedding_type": "nope"},
    ),
    "Jamba": ("jamba", "JambaForCausalLM", {}),
    "Zamba2": ("zamba2", "Zamba2ForCausalLM", {}),
    "LFM2": (
        "lfm2",
        "Lfm2ForCausalLM",
        {
            "layer_types": ["conv", "conv", "full_attention", "conv"] * 8,
            "full_attn_idxs": list(range(2, 32, 4)),
            "block_dim": 2560,
            "block_ff_dim": 12288,
            "block_multiple_of": 256,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": True,
            "conv_dim": 2560,
            "conv_dim_out": 2560,
        },
    ),
    "Mamba": ("mamba", "MambaForCausalLM", {}),
    "Falcon-Mamba": ("falcon_mamba", "FalconMambaForCausalLM", {}),
}
"""By name: the model type, the architecture, and fields."""


BESIDES: Mapping[str, Mapping[str, Any]] = {
    "Ling 2.5": {"head_dim": 128},
    "MiniMax M3": {
        "partial_rotary_factor": 0.5,
        "hidden_act": "swigluoai",
        "moe_layer_freq": [0] * 60,  # no kernel of a CPU makes its experts, which are not cached
        **{name: FAMILIES["MiniMax M3"][2][name] for name in ("rope_theta", "rotary_dim", "sparse_attention_config")},
    },
}
"""Fields of published files that the classes of `transformers` 5.23 drop or change, and engines ask their objects for."""


def file_of(name: str) -> dict[str, Any]:
    """The file of a family. Needs `transformers`."""
    from transformers import AutoConfig

    model_type, architecture, fields = FAMILIES[name]
    try:
        usual = AutoConfig.for_model(model_type).to_dict()
    except ValueError:  # a type that `transformers` does not have
        usual = dict(COMMON)
    made = {**usual, **fields, "model_type": model_type, "architectures": [architecture]}
    if model_type == "bailing_hybrid":  # the class adds what files of 2.5 do not have
        made = {
            key: value
            for key, value in made.items()
            if not key.startswith(("linear_", "kda_", "short_", "layer_types", "mlp_layer"))
        }
        made |= {"linear_silu": False}
    return {key: value for key, value in made.items() if key not in DROPPED and (value is not None or key == "sliding_window")}
