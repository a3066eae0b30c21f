"""How fast the simulated server is, and how loaded."""

from __future__ import annotations

from dataclasses import dataclass

from unified_tree.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How the server runs.

    Attributes:
        concurrency: requests running at once, at most.
        chunk_tokens: prompt tokens a step computes.
        step_ms: milliseconds a step takes.
        prefill_flops_per_s: what the hardware computes of prompts, all ranks together, and then no step computes more of them;
            None for `chunk_tokens` whatever they cost.
        time_scale: arrival times are multiplied by it; 0.5 is twice the load, 0 has every request arrive at once.
    """

    concurrency: int = 32
    chunk_tokens: int = 8192
    step_ms: float = 20.0
    time_scale: float = 1.0
    prefill_flops_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.chunk_tokens < 1:
            raise ConfigurationError(
                f"concurrency and chunk_tokens must be one or more: {self.concurrency}, {self.chunk_tokens}"
            )
        if not 1e-3 <= self.step_ms <= 1e9:
            raise ConfigurationError(f"step_ms must be from 0.001 to 1e9, not {self.step_ms}")
        if self.prefill_flops_per_s is not None and not 1e3 <= self.prefill_flops_per_s <= 1e24:
            raise ConfigurationError(f"prefill_flops_per_s must be from 1e3 to 1e24, not {self.prefill_flops_per_s}")
        if not 0 <= self.time_scale <= 1e9:
            raise ConfigurationError(f"time_scale must be from 0 to 1e9, not {self.time_scale}")
