"""Families of hybrid models beside those of `families`: chunks, KV shared by layers, short convolutions and more."""

from __future__ import annotations

from oracle.families import DELTA_NET, HEADS, MLA, SMALL
from oracle.tiny_model import Family

COHERE2 = Family(
    name="Cohere2",
    config={
        "model_type": "cohere2",
        **SMALL,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "sliding_window": 12,
        "logit_scale": 1.0,
    },
)
EXAONE4 = Family(
    name="EXAONE 4",
    config={"model_type": "exaone4", **SMALL, **HEADS, "num_hidden_layers": 4, "sliding_window": 12},
)
OLMO3 = Family(
    name="OLMo-3",
    config={
        "model_type": "olmo3",
        **SMALL,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "sliding_window": 12,
    },
)
GEMMA2 = Family(
    name="Gemma 2",
    config={"model_type": "gemma2", **SMALL, **HEADS, "num_hidden_layers": 4, "sliding_window": 12},
)
GRANITE_HYBRID = Family(
    name="Granite hybrid",
    config={
        "model_type": "granitemoehybrid",
        **SMALL,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 24,
        "mamba_n_heads": 4,
        "mamba_n_groups": 2,
        "mamba_d_head": 16,
        "mamba_d_state": 8,
        "mamba_chunk_size": 16,
    },
)
OLMO_HYBRID = Family(
    name="OLMo hybrid",
    config={
        "model_type": "olmo_hybrid",
        **SMALL,
        "pad_token_id": 0,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        **DELTA_NET,
    },
    prompt_tokens=210,
    chunk_tokens=(23, 64, 100),
)
GLM4_LITE = Family(
    name="GLM-4.7-Flash",
    config={
        "model_type": "glm4_moe_lite",
        **SMALL,
        **{name: value for name, value in MLA.items() if not name.startswith(("index", "first"))},
        "num_hidden_layers": 2,
    },
)
SMOLLM3 = Family(
    name="SmolLM3",
    config={
        "model_type": "smollm3",
        **SMALL,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "use_sliding_window": True,
        "sliding_window": 12,
        "no_rope_layer_interval": 2,
        "pad_token_id": 0,
    },
)

LLAMA4 = Family(
    name="Llama 4",
    config={
        "model_type": "llama4_text",
        **SMALL,
        **HEADS,
        "intermediate_size_mlp": 48,
        "num_hidden_layers": 4,
        "no_rope_layers": [1, 1, 0, 1],
        "attention_chunk_size": 20,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "floor_scale": 16,
    },
)
GEMMA3N = Family(
    name="Gemma 3n",
    config={
        "model_type": "gemma3n_text",
        **SMALL,
        **HEADS,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "sliding_window": 12,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 96,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0, 0.0, 0.0],
    },
)
GEMMA4 = Family(
    name="Gemma 4",
    config={
        "model_type": "gemma4_text",
        **SMALL,
        **HEADS,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "sliding_window": 12,
        "global_head_dim": 16,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 96,
        "hidden_size_per_layer_input": 8,
    },
)
LFM2 = Family(
    name="LFM2",
    config={
        "model_type": "lfm2",
        **SMALL,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "layer_types": ["conv", "full_attention"] * 2,
    },
)
ZAMBA2 = Family(
    name="Zamba2",
    config={
        "model_type": "zamba2",
        **SMALL,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "mamba_d_state": 8,
        "mamba_ngroups": 2,
        "n_mamba_heads": 4,
        "chunk_size": 16,
        "adapter_rank": 8,
        "time_step_min": 1e-12,  # a chunk clamps to it, a single token does not
    },
)
INKLING = Family(
    name="Inkling",
    config={
        "model_type": "inkling_text",
        **SMALL,
        **HEADS,
        "num_hidden_layers": 3,
        "layer_types": ["hybrid_sliding", "hybrid_sliding", "hybrid"],
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 1,
        "swa_head_dim": 8,
        "sliding_window_size": 12,
        "d_rel": 4,
        "logits_mup_width_multiplier": 1.0,
        "rel_extent": 32,
        "moe_intermediate_size": 24,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
    },
)

RECENT = {
    family.name: family
    for family in (
        LLAMA4,
        GEMMA3N,
        GEMMA4,
        LFM2,
        ZAMBA2,
        INKLING,
        COHERE2,
        EXAONE4,
        OLMO3,
        GEMMA2,
        SMOLLM3,
        GRANITE_HYBRID,
        OLMO_HYBRID,
        GLM4_LITE,
    )
}
"""By name; they go through mixes and boundaries, not through every tier, policy and event."""
