"""The families, as small as they can be and still have every kind of layer that they have."""

from __future__ import annotations

from oracle.tiny_model import Family

SMALL = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 512}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}

LLAMA = Family(name="Llama", config={"model_type": "llama", **SMALL, **HEADS, "num_hidden_layers": 2})
QWEN3 = Family(name="Qwen3", config={"model_type": "qwen3", **SMALL, **HEADS, "num_hidden_layers": 2})
GPT_OSS = Family(
    name="GPT-OSS",
    config={
        "model_type": "gpt_oss",
        **SMALL,
        **HEADS,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 12,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
)
GEMMA3 = Family(
    name="Gemma 3",
    config={
        "model_type": "gemma3_text",
        **SMALL,
        **HEADS,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": 11,
        "query_pre_attn_scalar": 8,
    },
)

MIMO = Family(
    name="MiMo-V2-Flash",
    config={
        "model_type": "mimo_v2_flash",
        **SMALL,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "v_head_dim": 8,
        "num_hidden_layers": 4,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": 14,
        "moe_intermediate_size": 24,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
    },
)
DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,  # of 8, now and then a key is so short that normalising it makes rounding 1e-3 in f32
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "num_hidden_layers": 3,
}
QWEN3_NEXT = Family(
    name="Qwen3-Next",
    config={
        "model_type": "qwen3_next",
        **SMALL,
        **HEADS,
        **DELTA_NET,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    },
    prompt_tokens=210,
    chunk_tokens=(23, 64, 100),
)
QWEN3_5 = Family(
    name="Qwen3.5",
    config={"model_type": "qwen3_5_text", **SMALL, **HEADS, **DELTA_NET},
    prompt_tokens=210,
    chunk_tokens=(23, 64, 100),
)
KIMI_LINEAR = Family(
    name="Kimi-Linear",
    config={
        "model_type": "kimi_linear",
        **SMALL,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "pad_token_id": 0,
        "linear_num_heads": 4,
        "linear_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "moe_intermediate_size": 24,
        "num_experts": 4,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
    },
    prompt_tokens=210,
    chunk_tokens=(23, 64, 100),
)
NEMOTRON_H = Family(
    name="Nemotron-H",
    config={
        "model_type": "nemotron_h",
        **SMALL,
        **HEADS,
        "layers_block_type": ["linear_attention", "mlp", "linear_attention", "full_attention", "moe"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 8,
        "conv_kernel": 4,
        "chunk_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "moe_shared_expert_intermediate_size": 24,
        "n_shared_experts": 1,
        "time_step_min": 1e-12,  # a chunk clamps to it, a single token does not
    },
    chunk_tokens=(7, 16, 40),
)
BAMBA = Family(
    name="Bamba",
    config={
        "model_type": "bamba",
        **SMALL,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "attn_layer_indices": [1],
        "mamba_n_heads": 4,
        "mamba_n_groups": 2,
        "mamba_d_state": 8,
        "mamba_chunk_size": 16,
    },
)
FALCON_H1 = Family(
    name="Falcon-H1",
    config={
        "model_type": "falcon_h1",
        **SMALL,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "mamba_d_ssm": 64,
        "mamba_n_heads": 4,
        "mamba_n_groups": 2,
        "mamba_d_state": 8,
        "mamba_chunk_size": 16,
    },
)
JAMBA = Family(
    name="Jamba",
    config={
        "model_type": "jamba",
        **SMALL,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "mamba_d_state": 8,
    },
    prompt_tokens=50,
    chunk_tokens=(1,),  # its scan of several tokens drops the state that it should go on from
)
MLA = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "index_topk": 16,
    "index_head_dim": 8,
    "index_n_heads": 32,  # with few, exact zeros after the ReLU tie at the edge of the top-k
}
DEEPSEEK_V32 = Family(name="DeepSeek-V3.2", config={"model_type": "deepseek_v32", **SMALL, **MLA, "num_hidden_layers": 2})
GLM_DSA = Family(
    name="GLM-DSA",
    config={
        "model_type": "glm_moe_dsa",
        **SMALL,
        **MLA,
        "num_hidden_layers": 3,
        "indexer_types": ["full", "shared", "full"],
    },
)
DEEPSEEK_V4 = Family(
    name="DeepSeek-V4",
    config={
        "model_type": "deepseek_v4",
        "vocab_size": 96,
        "hidden_size": 32,
        "max_position_embeddings": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "partial_rotary_factor": 0.25,
        "q_lora_rank": 24,
        "o_groups": 2,
        "o_lora_rank": 16,
        "hc_mult": 2,
        "num_hidden_layers": 4,
        "layer_types": [
            "sliding_attention",
            "heavily_compressed_attention",
            "compressed_sparse_attention",
            "compressed_sparse_attention",
        ],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
        "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
        "sliding_window": 13,
        "moe_intermediate_size": 24,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "index_topk": 6,
        "index_head_dim": 8,
        "index_n_heads": 32,
    },
    page_size=16,
    prompt_tokens=150,
    chunk_tokens=(7, 16, 50),
)

FAMILIES = {
    family.name: family
    for family in (
        LLAMA,
        QWEN3,
        GPT_OSS,
        GEMMA3,
        MIMO,
        QWEN3_NEXT,
        QWEN3_5,
        KIMI_LINEAR,
        NEMOTRON_H,
        BAMBA,
        FALCON_H1,
        JAMBA,
        DEEPSEEK_V32,
        GLM_DSA,
        DEEPSEEK_V4,
    )
}

DRAFT = Family(name="draft", config={**LLAMA.config, "num_hidden_layers": 1})
DRAFT_OF_WINDOWS = Family(
    name="draft of windows",
    config={
        **QWEN3.config,
        "use_sliding_window": True,
        "sliding_window": 12,
        "layer_types": ["sliding_attention", "full_attention"],
    },
)
"""One layer lies in the pages of `full`; the other one's window has pages of its own."""
