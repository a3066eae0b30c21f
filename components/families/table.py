"""The families that are read as a stack of layers, by `model_type`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from unified_tree.components.families import schedules as s
from unified_tree.components.families import spellings as f
from unified_tree.components.families import states
from unified_tree.components.families.attention_fields import (
    deepseek_mlp,
    dense_mlp,
    expert_mlp,
    jamba_mlp,
    no_mlp,
    qwen_mlp,
    unknown_mlp,
)
from unified_tree.components.families.schedules import (
    CHUNKED,
    CONV,
    EXPERTS,
    FULL,
    HYBRID,
    HYBRID_SLIDING,
    INDEXED,
    LINEAR,
    SLIDING,
)
from unified_tree.components.families.stack import LATENT, Rules

PLAIN = Rules()
"""Full attention in every layer, with a list of kinds that the classes do not follow refused."""
PLAIN_CHECKED = replace(PLAIN, check=f.no_windows)
WINDOWS = Rules(kinds=(FULL, SLIDING), otherwise=None)
ALTERNATING = replace(WINDOWS, otherwise=s.every_nth_full(SLIDING, None, 2))
GEMMA3 = Rules(
    kinds=(FULL, SLIDING), otherwise=s.every_nth_full(SLIDING, "sliding_window_pattern", 6), check=f.causal, mlp=dense_mlp
)
GEMMA4 = Rules(
    kinds=(FULL, SLIDING),
    otherwise=s.every_nth_full(SLIDING, None, 6, last_is_full=True),
    check=f.causal,
    adapt=f.gemma4,
)
SHORT_WINDOWS = Rules(kinds=(FULL, SLIDING), otherwise=s.windowed_if_shorter, check=f.short_window)
MLA = Rules(attention=LATENT, mlp=deepseek_mlp)
ANY_MLA = Rules(attention=LATENT, check=f.latents)
SPARSE_MLA = Rules(kinds=(INDEXED,), otherwise=s.everywhere(INDEXED), attention=LATENT, mlp=deepseek_mlp)
DELTA = Rules(
    kinds=(FULL, LINEAR),
    otherwise=s.every_nth_full(LINEAR, "full_attention_interval", 4),
    state=states.gated_delta_net,
    gated=True,
)
QWEN_DELTA = replace(DELTA, mlp=qwen_mlp)
KIMI = Rules(kinds=(FULL, LINEAR), otherwise=s.kimi_kinds, attention=LATENT, state=states.kda, mlp=deepseek_mlp)
MAMBA2 = Rules(kinds=(FULL, LINEAR), otherwise=None, state=states.mamba2)
LFM = Rules(
    kinds=(FULL, CONV),
    otherwise=s.at_indices("full_attn_idxs", FULL, CONV, otherwise=FULL),
    state=states.short_conv,
    understood=("block_dim", "block_ff_dim", "block_use_swiglu", "conv_dim_out", "num_heads"),
)
MIMO = Rules(kinds=(FULL, SLIDING), otherwise=s.mimo_windows, wide=True, window=f.mimo_window, adapt=f.mimo, mlp=deepseek_mlp)
INKLING = Rules(kinds=(HYBRID, HYBRID_SLIDING), otherwise=s.inkling_kinds, state=states.inkling_convs, adapt=f.inkling)
STEP = Rules(kinds=(FULL, SLIDING, INDEXED), otherwise=None, adapt=f.step)
MINIMAX_M3 = Rules(kinds=(FULL, INDEXED), otherwise=s.minimax_m3_kinds, adapt=f.minimax_m3)
MINIMAX_TEXT = Rules(kinds=(FULL, LINEAR), otherwise=s.minimax_text_kinds, state=states.lightning)

RULES: Mapping[str, Rules] = {
    **dict.fromkeys(
        (
            "apertus",
            "arcee",
            "aria_text",
            "bitnet",
            "cohere",
            "csm",
            "emu3_text_model",
            "flex_olmo",
            "gemma",
            "glm",
            "glm4",
            "glm4_moe",
            "glm4v_moe_text",
            "glm4v_text",
            "glm_ocr_text",
            "granite",
            "granitemoe",
            "granitemoeshared",
            "helium",
            "hy_v3",
            "hyperclovax",
            "internlm3",
            "iquestcoder",
            "jais2",
            "ministral3",
            "nanochat",
            "nemotron",
            "olmo",
            "olmo2",
            "olmoe",
            "paddleocr_vl_text",
            "qwen3_omni_moe_text",
            "qwen3_vl_moe_text",
            "qwen3_vl_text",
            "seed_oss",
            "solar_open",
            "stablelm",
        ),
        PLAIN_CHECKED,
    ),
    **dict.fromkeys(
        ("biogpt", "bloom", "codegen", "gpt2", "gpt_neox", "gpt_neox_japanese", "gptj", "opt", "persimmon", "xglm"),
        replace(PLAIN_CHECKED, adapt=f.named(f.GPT_NAMES)),
    ),
    "minimax_m2": replace(PLAIN, check=f.all_softmax),
    **dict.fromkeys(("ernie4_5", "ernie4_5_moe", "ernie4_5_vl_moe_text"), replace(PLAIN, check=f.uncompressed)),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe"), replace(PLAIN, check=f.hunyuan)),
    "mllama_text_model": replace(PLAIN_CHECKED, adapt=f.mllama),
    "falcon": replace(PLAIN_CHECKED, adapt=f.falcon),
    "gpt_bigcode": replace(PLAIN_CHECKED, adapt=f.gpt_bigcode),
    "llama": replace(PLAIN_CHECKED, mlp=dense_mlp),
    "mistral": Rules(kinds=(FULL, SLIDING), otherwise=s.windowed_unless_null, check=f.mistral, mlp=dense_mlp),
    "mixtral": Rules(kinds=(FULL, SLIDING), otherwise=s.windowed_if_sized, check=f.mistral, mlp=expert_mlp),
    "ministral": Rules(kinds=(FULL, SLIDING), otherwise=s.windowed_unless_null),
    "phi3": SHORT_WINDOWS,
    "phi4_multimodal": SHORT_WINDOWS,
    "phimoe": SHORT_WINDOWS,
    "starcoder2": SHORT_WINDOWS,
    "qwen2": Rules(kinds=(FULL, SLIDING), otherwise=s.qwen_windows, check=f.qwen, mlp=dense_mlp),
    "qwen2_5_omni_text": Rules(kinds=(FULL, SLIDING), otherwise=s.qwen_windows, check=f.qwen),
    "qwen2_5_vl_text": Rules(kinds=(FULL, SLIDING), otherwise=s.qwen_windows, check=f.qwen),
    "qwen2_moe": Rules(kinds=(FULL, SLIDING), otherwise=s.qwen2_moe_windows, check=f.qwen),
    "qwen2_vl_text": Rules(kinds=(FULL, SLIDING), otherwise=s.qwen_windows, check=f.qwen),
    "dots1": Rules(kinds=(FULL, SLIDING), otherwise=s.dots1_windows),
    "qwen3": Rules(kinds=(FULL, SLIDING), otherwise=s.qwen_windows, check=f.qwen, mlp=dense_mlp),
    "qwen3_moe": Rules(kinds=(FULL, SLIDING), otherwise=s.windows_if_used, mlp=qwen_mlp),
    "smollm3": Rules(kinds=(FULL, SLIDING), otherwise=s.without_rope),
    "afmoe": replace(WINDOWS, otherwise=s.every_nth_full(SLIDING, "global_attn_every_n_layers", 4)),
    "beam": replace(WINDOWS, otherwise=s.every_nth_full(SLIDING, None, 6, last_is_full=True)),
    "cohere2": replace(WINDOWS, otherwise=s.every_nth_full(SLIDING, "sliding_window_pattern", 4), window=f.past_tokens_only),
    "cohere2_moe": replace(WINDOWS, otherwise=s.cohere2_moe_windows, window=f.past_tokens_only),
    "cwm": replace(WINDOWS, otherwise=s.first_of_each(SLIDING, 4)),
    "exaone4": replace(WINDOWS, otherwise=s.exaone_windows),
    "exaone_moe": replace(WINDOWS, otherwise=s.exaone_windows),
    "flint": replace(WINDOWS, otherwise=s.flint_windows),
    "gemma2": ALTERNATING,
    "vaultgemma": ALTERNATING,
    "gemma3_text": GEMMA3,
    "gemma3n_text": Rules(kinds=(FULL, SLIDING), otherwise=s.every_nth_full(SLIDING, None, 5), check=f.causal, adapt=f.gemma3n),
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": GEMMA4,
    "gpt_oss": replace(ALTERNATING, mlp=expert_mlp),
    "granite_swa": replace(WINDOWS, otherwise=s.first_of_each(SLIDING, 4)),
    "granitemoe_swa": replace(WINDOWS, otherwise=s.first_of_each(SLIDING, 4)),
    "kolibri1": replace(WINDOWS, otherwise=s.every_nth_full(SLIDING, None, 5)),
    "laguna": Rules(kinds=(FULL, SLIDING), adapt=f.laguna),
    "mellum": Rules(kinds=(FULL, SLIDING)),
    "mimo_v2_flash": MIMO,
    "muse_glimmer_text": replace(WINDOWS, otherwise=s.counted_from_the_end(SLIDING, 4)),
    "muse_spark_text": replace(WINDOWS, otherwise=s.counted_from_the_end(SLIDING, 4)),
    "olmo3": replace(WINDOWS, otherwise=s.every_nth_full(SLIDING, None, 4)),
    "step3p5": STEP,
    "llama4_text": Rules(kinds=(FULL, CHUNKED), otherwise=s.chunks_with_rope),
    "deepseek_v2": ANY_MLA,
    "deepseek_v3": MLA,
    "axk1": ANY_MLA,
    "glm4_moe_lite": ANY_MLA,
    "longcat_flash": replace(ANY_MLA, adapt=f.longcat),
    "minicpm3": ANY_MLA,
    "mistral4": ANY_MLA,
    "youtu": ANY_MLA,
    "deepseek_v32": SPARSE_MLA,
    "glm_moe_dsa": SPARSE_MLA,
    "axk2": SPARSE_MLA,
    "hy_v4": replace(SPARSE_MLA, defaults={"index_topk_freq": 4}, understood=("learnable_sink",)),
    "mistral_large4_text": replace(SPARSE_MLA, adapt=f.mistral_large4),
    "dots3_note_text": Rules(
        kinds=(INDEXED, SLIDING),
        otherwise=s.dots3_windows,
        attention=LATENT,
        mlp=deepseek_mlp,
        adapt=f.dots3,
        window=f.dots3_window,
    ),
    "glm5_next_text": Rules(
        kinds=(INDEXED, LINEAR),
        otherwise=s.glm5_kinds,
        attention=LATENT,
        state=states.kda,
        mlp=deepseek_mlp,
        adapt=f.glm5,
    ),
    "minimax_m3_vl_text": MINIMAX_M3,
    "minimax": MINIMAX_TEXT,
    "qwen3_next": QWEN_DELTA,
    "qwen3_5_moe_text": QWEN_DELTA,
    "qwen3_5_text": replace(DELTA, mlp=dense_mlp),
    "olmo_hybrid": replace(DELTA, otherwise=s.mostly_delta, gated=False),
    "qwen4_exp_text": replace(
        DELTA,
        kinds=(INDEXED, LINEAR),
        otherwise=s.every_nth_full(LINEAR, "full_attention_interval", 4, whole=INDEXED),
        adapt=f.qwen4,
        index_keys=f.pooled_index,
        beside=states.ngram_conv,
    ),
    "kimi_linear": KIMI,
    "bailing_hybrid": Rules(
        kinds=(FULL, LINEAR),
        otherwise=s.bailing_kinds,
        attention=LATENT,
        state=states.bailing,
        adapt=f.bailing,
    ),
    "bamba": replace(MAMBA2, otherwise=s.at_indices("attn_layer_indices", FULL, LINEAR), mlp=dense_mlp),
    "granitemoehybrid": replace(MAMBA2, otherwise=s.everywhere(LINEAR), check=f.granite_hybrid),
    "falcon_h1": Rules(kinds=(HYBRID,), otherwise=s.everywhere(HYBRID), state=states.mamba2, mlp=dense_mlp, adapt=f.falcon_h1),
    "zamba2": Rules(kinds=(HYBRID, LINEAR), otherwise=None, state=states.mamba2, adapt=f.zamba, mlp=unknown_mlp),
    "zamba": Rules(kinds=(HYBRID, LINEAR), otherwise=None, state=states.zamba_mamba1, adapt=f.zamba, mlp=unknown_mlp),
    "jamba": Rules(kinds=(FULL, LINEAR), otherwise=s.jamba_kinds, state=states.mamba1, mlp=jamba_mlp),
    "mamba": Rules(kinds=(LINEAR,), otherwise=s.everywhere(LINEAR), state=states.pure_mamba1, mlp=no_mlp),
    "falcon_mamba": Rules(kinds=(LINEAR,), otherwise=s.everywhere(LINEAR), state=states.pure_mamba1, mlp=no_mlp),
    "mamba2": Rules(kinds=(LINEAR,), otherwise=s.everywhere(LINEAR), state=states.pure_mamba2, mlp=no_mlp),
    "rwkv7": Rules(kinds=(LINEAR,), otherwise=s.everywhere(LINEAR), state=states.rwkv7, mlp=unknown_mlp),
    "recurrent_gemma": Rules(kinds=(SLIDING, LINEAR), otherwise=s.griffin_kinds, state=states.rg_lru, adapt=f.recurrent_gemma),
    "lfm2": LFM,
    "lfm2_moe": replace(LFM, otherwise=None),
    "lfm3": Rules(kinds=(FULL, SLIDING, CONV), otherwise=s.lfm3_kinds, state=states.short_conv),
    "inkling_text": INKLING,
    "inkling2_text": INKLING,
    "zaya": Rules(
        kinds=(HYBRID, HYBRID_SLIDING, EXPERTS), otherwise=None, state=states.zaya_state, adapt=f.zaya, understood=("cca",)
    ),
}
"""How each `model_type` is read."""
