"""Recording the requests of a cache, by its own hook.

In the cache's thread a request costs some 15 µs, and a copy of its prompt where the caller may change that. Hashing and writing
are the recorder's.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.counters.observers import CacheObserver
from unified_tree.controllers.workbench.recorder.block_hashes import DEFAULT_BLOCK_TOKENS, BlockHasher, token_bytes
from unified_tree.controllers.workbench.recorder.recorder import DEFAULT_QUEUE_BYTES, Recorder
from unified_tree.controllers.workbench.recorder.trace_writer import (
    DEFAULT_FILE_BYTES,
    DEFAULT_TOTAL_BYTES,
    RecordedRequest,
    TraceFiles,
    TraceWriter,
)
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unified_tree.controllers.counters.observers import ObservedRequest
    from unified_tree.declare.keys import Key


DEFAULT_OPEN_BYTES = 256 << 20


class CacheRecorder(CacheObserver):
    """Records each request that a cache admits, when it has ended; `cache.observers.add` makes one of it.

    The time of a request is that of its admission. The cached tokens are those that it resumed from. A lease that extends a
    prompt records as its answer what was published behind the prompt, and what was computed.

    Args:
        recorder: closed with the cache.
        time_ms: a clock, milliseconds since 1970.
        open_bytes: the prompts of the requests that are followed have no more. Beyond that the oldest is recorded as it is,
            without an answer.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        time_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        open_bytes: int = DEFAULT_OPEN_BYTES,
    ) -> None:
        self._recorder = recorder
        self._time_ms = time_ms
        self._room = open_bytes
        self._open: OrderedDict[Any, tuple[int, Key, int, int]] = OrderedDict()

    def acquired(self, request: ObservedRequest, key: Key) -> None:
        """See CacheObserver."""
        self._room -= len(key.data)
        self._open[request] = self._time_ms(), key.owned(), request.prompt_tokens, request.compute_from
        while self._room < 0:
            self._ended(self._open.popitem(last=False)[1])

    def finished(self, request: ObservedRequest, answer: Sequence[int]) -> None:
        """See CacheObserver."""
        opened = self._open.pop(request, None)
        if opened is not None:
            self._ended(opened, len(answer), token_bytes(answer) if opened[1].length == opened[2] else b"")

    def releasing(self, lease: Any) -> None:
        """See CacheObserver."""
        opened = self._open.pop(lease, None)
        if opened is not None:
            prompt, known = opened[2], lease.key
            answer = b"" if known.bigram else bytes(known.data[prompt * known.width_bytes :])
            self._ended(opened, max(known.length, lease.computed) - prompt, answer)

    def closed(self) -> None:
        """See CacheObserver."""
        while self._open:
            self._ended(self._open.popitem(last=False)[1])
        self._recorder.close()

    def failed(self, error: Exception) -> None:  # noqa: ARG002
        """See CacheObserver."""
        self._open.clear()
        self._recorder.close(0.0)

    def summary(self) -> str:
        """One line: what was recorded, and what was lost, so far."""
        return self._recorder.summary()

    def _ended(self, opened: tuple[int, Key, int, int], output_tokens: int = 0, answer: bytes = b"") -> None:
        time_ms, key, prompt_tokens, cached_tokens = opened
        self._room += len(key.data)
        self._recorder.record(
            RecordedRequest(
                time_ms=time_ms,
                tokens=_tokens(key),
                namespace=key.namespace,
                prompt_tokens=max(prompt_tokens, key.length + key.bigram),
                output_tokens=output_tokens,
                cached_tokens=cached_tokens,
                answer=answer,
            )
        )


def _tokens(key: Key) -> bytes | memoryview:
    """The tokens of a key; of a bigram key all that its pairs name. Cost: none, or one copy of those."""
    if not key.bigram:
        return memoryview(key.data)[: key.length * key.width_bytes]
    pairs = np.frombuffer(key.data, np.int64, 2 * key.length).reshape(-1, 2)
    return np.concatenate((pairs[:, 0], pairs[-1:, 1])).tobytes()


def open_recorder(
    directory: Any,
    *,
    block_tokens: Any = DEFAULT_BLOCK_TOKENS,
    salt: Any = "",
    file_bytes: Any = DEFAULT_FILE_BYTES,
    total_bytes: Any = DEFAULT_TOTAL_BYTES,
    queue_bytes: Any = DEFAULT_QUEUE_BYTES,
) -> CacheRecorder:
    """A recorder of a cache; the factory of the observer `record`.

    Args:
        directory: of the trace, for this recorder alone.
        block_tokens, salt: of the hashes.
        file_bytes, total_bytes: bounds of a file, and of all.
        queue_bytes: bound of what waits to be written.

    Raises ConfigurationError for arguments of a wrong type or size. A disk that cannot be written costs the recording: the log
    says so.
    """
    if not isinstance(directory, str | Path) or not str(directory):
        raise ConfigurationError(f"directory must be the path of a folder, not {directory!r}")
    if not isinstance(salt, str):
        raise ConfigurationError("salt must be a string")
    files = TraceFiles(Path(directory), file_bytes=file_bytes, total_bytes=total_bytes)
    hasher = BlockHasher(block_tokens, salt.encode("utf-8", "surrogatepass"))
    return CacheRecorder(Recorder(TraceWriter(hasher, files), queue_bytes=queue_bytes))
