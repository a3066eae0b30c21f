"""The choices of an engine's scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from unified_tree.terms.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How requests share a step.

    Attributes:
        max_running: requests that run at a time.
        chunk_tokens: the most tokens of a prompt that one step computes. A rebuild is never cut: what it computes before
            `write_from` is discarded, so the next chunk could not read it.
        commit_pages: decoding publishes its output every so many pages; 0 for only at the end.
    """

    max_running: int = 4
    chunk_tokens: int = 32
    commit_pages: int = 1

    def __post_init__(self) -> None:
        if self.max_running < 1 or self.chunk_tokens < 1 or self.commit_pages < 0:
            raise ConfigurationError(f"an engine cannot work with {self}")
