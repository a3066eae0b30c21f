"""The families, as small as they can be and still have every kind of layer that they have."""

from __future__ import annotations

from oracle.tiny_model import Family

_SMALL = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 512}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}

LLAMA = Family(name="Llama", config={"model_type": "llama", **_SMALL, **_HEADS, "num_hidden_layers": 2})
QWEN3 = Family(name="Qwen3", config={"model_type": "qwen3", **_SMALL, **_HEADS, "num_hidden_layers": 2})
GPT_OSS = Family(
    name="GPT-OSS",
    config={
        "model_type": "gpt_oss",
        **_SMALL,
        **_HEADS,
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
        **_SMALL,
        **_HEADS,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": 11,
        "query_pre_attn_scalar": 8,
    },
)

FAMILIES = {family.name: family for family in (LLAMA, QWEN3, GPT_OSS, GEMMA3)}
