"""What is served: a model, a page size, pools small enough to evict and to retract."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tiny_models import ADAPTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the table for each cache."""

    name: str
    model: str
    engine: dict[str, object]
    mix: dict[str, object] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    share: float = 1.0
    """How many of the asked requests this case serves: slower models serve fewer."""
    has_draft: bool = False
    """Whether an EAGLE draft runs with the model."""


CROWD: dict[str, object] = {"waves": 6, "at_once": 16, "longest": 200, "longest_answer": 100}


def _engine(tokens: int, page: int, **more: object) -> dict[str, object]:
    return {"max_total_tokens": tokens, "page_size": page, **more}


WINDOWS: dict[str, object] = {"attention_backend": "cpu_windows"}
RETRACTS = {
    "SGLANG_INIT_NEW_TOKEN_RATIO": "0.5",
    "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR": "0.02",
    "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS": "1",
    "SGLANG_RETRACT_DECODE_STEPS": "1",
}
"""The scheduler expects short answers, also after it was wrong: it admits too many requests and takes some back."""
RETRACTS_OFTEN = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "5"}
"""SGLang's own switch: every fifth step takes a running request back, whether or not there is room."""

QWEN3_NEXT = {"TRITON_INTERPRET": "1", "SGLANG_MAMBA_CONV_DTYPE": "float32"}
"""Triton kernels without a form in torch run in Triton's interpreter. SGLang keeps the state of convolutions in bfloat16 by
default: what a request answers then depends on where its prompt was cut, with any cache and with none."""
EAGLE: dict[str, object] = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
LORA: dict[str, object] = {"enable_lora": True, "lora_backend": "torch_native", "max_loras_per_batch": 3}
EXTRA_BUFFER: dict[str, object] = {"mamba_radix_cache_strategy": "extra_buffer", "mamba_track_interval": 64}

OF_PROMPTS = (
    Case(name="llama", model="llama", engine=_engine(1024, 1)),
    Case(name="llama-small", model="llama", engine=_engine(600, 1, max_running_requests=8), environment=RETRACTS, mix=CROWD),
    Case(
        name="llama-small-page16",
        model="llama",
        engine=_engine(640, 16, max_running_requests=8),
        environment=RETRACTS,
        mix=CROWD,
    ),
    Case(name="llama-page16", model="llama", engine=_engine(1024, 16)),
    Case(name="llama-overlap", model="llama", engine=_engine(1024, 1, disable_overlap_schedule=False)),
    Case(
        name="llama-overlap-small",
        model="llama",
        engine=_engine(600, 1, disable_overlap_schedule=False, max_running_requests=8),
        environment=RETRACTS,
        mix=CROWD,
    ),
    Case(
        name="llama-overlap-retract",
        model="llama",
        engine=_engine(1024, 16, disable_overlap_schedule=False),
        environment=RETRACTS_OFTEN,
    ),
    Case(name="llama-mixed", model="llama", engine=_engine(1024, 1, enable_mixed_chunk=True)),
    Case(
        name="llama-64",
        model="llama",
        engine=_engine(24_576, 1, max_running_requests=64, chunked_prefill_size=512),
        mix={"waves": 2, "at_once": 500, "longest_answer": 96},
        share=0.25,
    ),
    Case(
        name="llama-long",
        model="llama",
        engine=_engine(16_384, 1, chunked_prefill_size=2048, context_length=4096),
        mix={"scale": 12, "longest": 3840, "longest_answer": 96},
    ),
    Case(
        name="llama-lora",
        model="llama",
        engine=_engine(1024, 1, **LORA),
        mix={"adapters": tuple(ADAPTERS)},
        environment={"SGLANG_UNPINNED_MEMORY": "1"},
    ),
    Case(name="llama-eagle", model="llama", engine=_engine(1024, 1, **WINDOWS, **EAGLE), has_draft=True),
    Case(
        name="llama-eagle-page16",
        model="llama",
        engine=_engine(1024, 16, **WINDOWS, **EAGLE),
        environment={"TRITON_INTERPRET": "1"},
        has_draft=True,
    ),
    Case(name="mellum", model="mellum", engine=_engine(1024, 1, swa_full_tokens_ratio=0.5, **WINDOWS)),
    Case(
        name="mellum-long",
        model="mellum",
        engine=_engine(16_384, 1, swa_full_tokens_ratio=0.5, chunked_prefill_size=2048, context_length=4096, **WINDOWS),
        mix={"scale": 12, "longest": 3840, "longest_answer": 96},
    ),
    Case(
        name="qwen3-next-eagle",
        model="qwen3-next",
        engine=_engine(1024, 1, max_mamba_cache_size=40, **WINDOWS, **EAGLE, **EXTRA_BUFFER),
        environment=QWEN3_NEXT,
        share=0.5,
        has_draft=True,
    ),
    Case(
        name="mellum-small",
        model="mellum",
        engine=_engine(600, 1, swa_full_tokens_ratio=0.6, max_running_requests=8, **WINDOWS),
        environment=RETRACTS,
        mix=CROWD,
    ),
    Case(
        name="mellum-small-page16",
        model="mellum",
        engine=_engine(640, 16, swa_full_tokens_ratio=0.6, max_running_requests=8, **WINDOWS),
        environment=RETRACTS,
        mix=CROWD,
    ),
    Case(
        name="mellum-retract",
        model="mellum",
        engine=_engine(1024, 1, swa_full_tokens_ratio=0.5, **WINDOWS),
        environment=RETRACTS_OFTEN,
    ),
    Case(name="mellum-page16", model="mellum", engine=_engine(1024, 16, swa_full_tokens_ratio=0.6, **WINDOWS)),
    Case(
        name="qwen3-next",
        model="qwen3-next",
        engine=_engine(1024, 1, max_mamba_cache_size=24),
        environment=QWEN3_NEXT,
        share=0.5,
    ),
    Case(
        name="qwen3-next-small",
        model="qwen3-next",
        engine=_engine(600, 1, max_mamba_cache_size=24, max_running_requests=8),
        environment={**QWEN3_NEXT, **RETRACTS},
        mix=CROWD,
        share=0.5,
    ),
    Case(
        name="qwen3-next-extra",
        model="qwen3-next",
        engine=_engine(1024, 16, max_mamba_cache_size=40, chunked_prefill_size=128, **EXTRA_BUFFER),
        environment=QWEN3_NEXT,
        share=0.5,
    ),
    Case(
        name="qwen3-next-extra-overlap",
        model="qwen3-next",
        engine=_engine(700, 1, max_mamba_cache_size=40, disable_overlap_schedule=False, **EXTRA_BUFFER),
        environment={**QWEN3_NEXT, **RETRACTS},
        share=0.5,
    ),
    Case(name="deepseek", model="deepseek", engine=_engine(1024, 1, **WINDOWS)),
    Case(name="deepseek-page16", model="deepseek", engine=_engine(1024, 16, **WINDOWS)),
)
IN_SESSIONS = (
    "llama",
    "llama-small-page16",
    "llama-overlap",
    "llama-lora",
    "llama-eagle",
    "mellum",
    "mellum-small",
    "qwen3-next",
    "qwen3-next-extra",
    "deepseek-page16",
)
CASES = (
    *OF_PROMPTS,
    *(
        replace(case, name=f"{case.name}-sessions", mix={**case.mix, "sessions": True})
        for case in OF_PROMPTS
        if case.name in IN_SESSIONS
    ),
)
