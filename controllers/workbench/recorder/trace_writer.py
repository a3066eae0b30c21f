"""Writing a trace, with an account of what is missing in it."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from unified_tree.inputs.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from unified_tree.controllers.workbench.recorder.block_hashes import BlockHasher
    from unified_tree.controllers.workbench.recorder.trace_files import TraceFiles


LOG = logging.getLogger("unified_tree.recorder")
DISK_FAILED: Final = "the disk failed"
TOO_LONG: Final = "too long"
RETRY_S = 10.0
"""So long a disk that failed is left alone. Requests until then are lost."""
SAY_EVERY_S = 60.0


class TraceWriter:
    """Writes requests into files, and never raises: what cannot be written is counted.

    Args:
        hasher: of the prompts.
        files: where the lines go.
        retry_s: so long a disk that failed is left alone.
        time_s: a clock that never goes back.

    Attributes:
        recorded: how many requests were written.
        lost: how many were not, by reason.

    A line that follows lost requests says so (`lost_before`), and so does the log, at most once a minute. One thread writes.
    """

    def __init__(
        self,
        hasher: BlockHasher,
        files: TraceFiles,
        *,
        retry_s: float = RETRY_S,
        time_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hasher = hasher
        self.files = files
        self.recorded = 0
        self.lost: Counter[str] = Counter()
        self._retry_s = retry_s
        self._time_s = time_s
        self._told_lost = 0
        self._failed_at: float | None = None
        self._said_at: float | None = None

    def write(self, request: RecordedRequest) -> None:
        """Hash a request and write it. Cost: as `BlockHasher.extend`, and one system call."""
        self.write_line(request.line(self.hasher))

    def write_line(self, line: TraceLine) -> None:
        """Write a line."""
        lost = self.lost.total()
        text = line.text(lost - self._told_lost)
        if not line.is_readable or len(text) > self.files.file_bytes:
            self.lose(TOO_LONG)
            return
        if self._failed_at is not None and self._time_s() - self._failed_at < self._retry_s:
            self.lose(DISK_FAILED)
            return
        try:
            self.files.write(text)
        except OSError as error:
            self._failed_at = self._time_s()
            self.lose(DISK_FAILED, printable(str(error), 300))
        else:
            self._failed_at = None
            self._told_lost = lost
            self.recorded += 1

    def lose(self, reason: str, why: str = "") -> None:
        """A request will be missing."""
        self.lost[reason] += 1
        now = self._time_s()
        if self._said_at is None or now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            LOG.warning("%s%s", self.summary(), f" ({why})" if why else "")

    def summary(self) -> str:
        """One line: what was recorded, and what was lost."""
        text = f"recorded {self.recorded:,} requests in {printable(str(self.files.directory), 300)}"
        if not self.lost:
            return text
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in self.lost.copy().items())
        return f"{text}; lost {self.lost.total():,} ({reasons})"

    def close(self) -> None:
        """Close the files. Idempotent."""
        self.files.close()


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
