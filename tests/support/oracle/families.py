"""The families, as small as they can be and still have every kind of layer that they have."""

from __future__ import annotations

from typing import Any

from oracle.tiny_model import Family

SMALL = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 512}
GROUPED: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
HEADS: dict[str, Any] = {**GROUPED, "head_dim": 8}
MOE: dict[str, Any] = {"moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2}
LONG: dict[str, Any] = {"prompt_tokens": 210, "chunk_tokens": (23, 64, 100)}
"""For scans whose own chunks are long."""
DELTA_NET: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,  # of 8, now and then a key is so short that normalising it makes rounding 1e-3 in f32
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "num_hidden_layers": 3,
}
MLA: dict[str, Any] = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    **MOE,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "index_topk": 16,
    "index_head_dim": 8,
    "index_n_heads": 32,  # with few, exact zeros after the ReLU tie at the edge of the top-k
}
PLAIN_MLA: dict[str, Any] = {name: value for name, value in MLA.items() if not name.startswith(("index", "first"))}


def _family(
    name: str,
    model_type: str,
    *,
    page_size: int = Family.page_size,
    chunk_tokens: tuple[int, ...] = Family.chunk_tokens,
    prompt_tokens: int = Family.prompt_tokens,
    **fields: Any,
) -> Family:
    """A family with these fields and the SMALL ones."""
    config = {"model_type": model_type, **SMALL, **fields}
    return Family(name=name, config=config, page_size=page_size, chunk_tokens=chunk_tokens, prompt_tokens=prompt_tokens)


_FIRST = (
    _family("Llama", "llama", **HEADS, num_hidden_layers=2),
    _family("Qwen3", "qwen3", **HEADS, num_hidden_layers=2),
    _family(
        "GPT-OSS",
        "gpt_oss",
        **HEADS,
        num_hidden_layers=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=12,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    _family(
        "Gemma 3",
        "gemma3_text",
        **HEADS,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        sliding_window=11,
        query_pre_attn_scalar=8,
    ),
    _family(
        "MiMo-V2-Flash",
        "mimo_v2_flash",
        **GROUPED,
        **MOE,
        head_dim=16,
        v_head_dim=8,
        num_hidden_layers=4,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        sliding_window=14,
    ),
    _family(
        "Qwen3-Next",
        "qwen3_next",
        **HEADS,
        **DELTA_NET,
        **LONG,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=24,
        num_experts=4,
        num_experts_per_tok=2,
    ),
    _family("Qwen3.5", "qwen3_5_text", **HEADS, **DELTA_NET, **LONG),
    _family(
        "Kimi-Linear",
        "kimi_linear",
        **LONG,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        kv_lora_rank=16,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=8,
        layer_types=["linear_attention", "linear_attention", "full_attention"],
        pad_token_id=0,
        linear_num_heads=4,
        linear_head_dim=8,
        linear_conv_kernel_dim=4,
        moe_intermediate_size=24,
        num_experts=4,
        num_experts_per_token=2,
        num_shared_experts=1,
    ),
    _family(
        "Nemotron-H",
        "nemotron_h",
        **HEADS,
        **MOE,
        layers_block_type=["linear_attention", "mlp", "linear_attention", "full_attention", "moe"],
        mamba_num_heads=4,
        mamba_head_dim=16,
        n_groups=2,
        ssm_state_size=8,
        conv_kernel=4,
        chunk_size=16,
        moe_shared_expert_intermediate_size=24,
        n_shared_experts=1,
        time_step_min=1e-12,  # a chunk clamps to it, a single token does not
    ),
    _family(
        "Bamba",
        "bamba",
        **GROUPED,
        num_hidden_layers=3,
        attn_layer_indices=[1],
        mamba_n_heads=4,
        mamba_n_groups=2,
        mamba_d_state=8,
        mamba_chunk_size=16,
    ),
    _family(
        "Falcon-H1",
        "falcon_h1",
        **GROUPED,
        num_hidden_layers=2,
        mamba_d_ssm=64,
        mamba_n_heads=4,
        mamba_n_groups=2,
        mamba_d_state=8,
        mamba_chunk_size=16,
    ),
    _family(
        "Jamba",
        "jamba",
        **GROUPED,
        num_hidden_layers=3,
        attn_layer_period=3,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=4,
        num_experts_per_tok=2,
        mamba_d_state=8,
        prompt_tokens=50,
        chunk_tokens=(1,),  # its scan of several tokens drops the state that it should go on from
    ),
    _family("DeepSeek-V3.2", "deepseek_v32", **MLA, num_hidden_layers=2),
    _family("GLM-DSA", "glm_moe_dsa", **MLA, num_hidden_layers=3, indexer_types=["full", "shared", "full"]),
    _family(
        "DeepSeek-V4",
        "deepseek_v4",
        **MOE,
        intermediate_size=24,  # which the class takes for that of the experts, too
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        partial_rotary_factor=0.25,
        q_lora_rank=24,
        o_groups=2,
        o_lora_rank=16,
        hc_mult=2,
        num_hidden_layers=4,
        layer_types=[
            "sliding_attention",
            "heavily_compressed_attention",
            "compressed_sparse_attention",
            "compressed_sparse_attention",
        ],
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
        mlp_layer_types=["hash_moe", "moe", "moe", "moe"],
        sliding_window=13,
        n_shared_experts=1,
        index_topk=6,
        index_head_dim=8,
        index_n_heads=32,
        page_size=16,
        prompt_tokens=150,
        chunk_tokens=(7, 16, 50),
    ),
)
_RECENT = (
    _family(
        "Llama 4",
        "llama4_text",
        **HEADS,
        intermediate_size_mlp=48,
        num_hidden_layers=4,
        no_rope_layers=[1, 1, 0, 1],
        attention_chunk_size=20,
        num_local_experts=4,
        num_experts_per_tok=1,
        floor_scale=16,
    ),
    _family(
        "Gemma 3n",
        "gemma3n_text",
        **HEADS,
        num_hidden_layers=6,
        layer_types=["sliding_attention", "full_attention"] * 3,
        sliding_window=12,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=96,
        hidden_size_per_layer_input=8,
        laurel_rank=8,
        activation_sparsity_pattern=[0.95, 0.0, 0.0, 0.0, 0.0, 0.0],
    ),
    _family(
        "Gemma 4",
        "gemma4_text",
        **HEADS,
        num_hidden_layers=6,
        layer_types=["sliding_attention", "full_attention"] * 3,
        sliding_window=12,
        global_head_dim=16,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=96,
        hidden_size_per_layer_input=8,
    ),
    _family("LFM2", "lfm2", **GROUPED, num_hidden_layers=4, layer_types=["conv", "full_attention"] * 2),
    _family(
        "Zamba2",
        "zamba2",
        num_attention_heads=4,
        num_hidden_layers=4,
        layers_block_type=["linear_attention", "hybrid"] * 2,
        mamba_d_state=8,
        mamba_ngroups=2,
        n_mamba_heads=4,
        chunk_size=16,
        adapter_rank=8,
        time_step_min=1e-12,  # a chunk clamps to it, a single token does not
    ),
    _family(
        "Inkling",
        "inkling_text",
        **HEADS,
        **MOE,
        num_hidden_layers=3,
        layer_types=["hybrid_sliding", "hybrid_sliding", "hybrid"],
        swa_num_attention_heads=4,
        swa_num_key_value_heads=1,
        swa_head_dim=8,
        sliding_window_size=12,
        d_rel=4,
        logits_mup_width_multiplier=1.0,
        rel_extent=32,
        n_shared_experts=1,
    ),
    _family("Cohere2", "cohere2", **GROUPED, num_hidden_layers=4, sliding_window=12, logit_scale=1.0),
    _family("EXAONE 4", "exaone4", **HEADS, num_hidden_layers=4, sliding_window=12),
    _family("OLMo-3", "olmo3", **GROUPED, num_hidden_layers=4, sliding_window=12),
    _family("Gemma 2", "gemma2", **HEADS, num_hidden_layers=4, sliding_window=12),
    _family(
        "SmolLM3",
        "smollm3",
        **GROUPED,
        num_hidden_layers=4,
        use_sliding_window=True,
        sliding_window=12,
        no_rope_layer_interval=2,
        pad_token_id=0,
    ),
    _family(
        "Granite hybrid",
        "granitemoehybrid",
        **GROUPED,
        num_hidden_layers=3,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=24,
        mamba_n_heads=4,
        mamba_n_groups=2,
        mamba_d_head=16,
        mamba_d_state=8,
        mamba_chunk_size=16,
    ),
    _family("OLMo hybrid", "olmo_hybrid", **GROUPED, **DELTA_NET, **LONG, pad_token_id=0),
    _family("GLM-4.7-Flash", "glm4_moe_lite", **PLAIN_MLA, num_hidden_layers=2),
)
FAMILIES = {each.name: each for each in _FIRST}
RECENT = {each.name: each for each in _RECENT}
"""By name; they go through mixes and boundaries, not through every tier, policy and event."""
LLAMA, GPT_OSS, GEMMA3, MIMO, DEEPSEEK_V4 = (
    FAMILIES[name] for name in ("Llama", "GPT-OSS", "Gemma 3", "MiMo-V2-Flash", "DeepSeek-V4")
)
DRAFT = Family(name="draft", config={**LLAMA.config, "num_hidden_layers": 1})
DRAFT_OF_WINDOWS = Family(
    name="draft of windows",
    config={
        **FAMILIES["Qwen3"].config,
        "use_sliding_window": True,
        "sliding_window": 12,
        "layer_types": ["sliding_attention", "full_attention"],
    },
)
"""One layer lies in the pages of `full`; the other one's window has pages of its own."""
