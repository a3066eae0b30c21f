"""The lines of a recorded trace, in the block form that `unified-tree replay` reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.recorder.block_hashes import BlockHasher

MAX_TOKENS = 1 << 26
"""A reader takes a longer prompt or answer for a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """A request that was served, before it is hashed.

    Attributes:
        time_ms: when it came, in milliseconds since 1970.
        tokens, answer: of its prompt and of its answer, native int64; an answer that is not known is empty.
        namespace: what keeps its prompt apart from equal ones: a cache salt, an adapter.
        prompt_tokens, output_tokens: their lengths as the engine counts them.
        cached_tokens: the first tokens that the engine did not compute; None if it did not say.
    """

    time_ms: int
    tokens: bytes | memoryview
    namespace: str = ""
    prompt_tokens: int
    output_tokens: int = 0
    cached_tokens: int | None = None
    answer: bytes | memoryview = b""

    def line(self, hasher: BlockHasher) -> TraceLine:
        """The request without its tokens. Cost: one hash for each block."""
        chain, ids = hasher.extend(hasher.begin(self.namespace), self.tokens)
        answer = hasher.extend(chain, self.answer)[1] if self.answer else []
        count = self.prompt_tokens // hasher.block_tokens
        return TraceLine(
            time_ms=self.time_ms,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            ids=ids[:count],
            answer_ids=answer,
            block_tokens=hasher.block_tokens,
            cached_tokens=self.cached_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLine:
    """One line of a trace.

    Attributes:
        ids: of the prompt's whole blocks.
        answer_ids: of the blocks that go on from there and end in the answer, where its tokens are known.
        others: see RecordedRequest and BlockHasher.
    """

    time_ms: int
    prompt_tokens: int
    output_tokens: int
    ids: list[int]
    block_tokens: int
    cached_tokens: int | None = None
    answer_ids: list[int]

    @property
    def is_readable(self) -> bool:
        """Whether a reader takes its lengths."""
        return 0 < self.prompt_tokens <= MAX_TOKENS and 0 <= self.output_tokens <= MAX_TOKENS

    def text(self, lost: int = 0) -> bytes:
        """The line as JSON with its line feed, after so many requests that are missing."""
        fields: dict[str, object] = {
            "timestamp": self.time_ms,
            "input_length": self.prompt_tokens,
            "output_length": self.output_tokens,
            "hash_ids": self.ids,
            "block_size": self.block_tokens,
        }
        if self.answer_ids:
            fields["output_hash_ids"] = self.answer_ids
        if self.cached_tokens is not None:
            fields["cached_tokens"] = self.cached_tokens
        if lost:
            fields["lost_before"] = lost
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"
