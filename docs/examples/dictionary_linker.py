"""A prefix linker that keeps the pages of paths in a dictionary of this process, and does each transfer in the call.

`MemoryLinker` in the source of the library also carries windows and states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_tree import LinkError
from unified_tree.controllers.prefix_linker import LinkedPool, Progress, Span

Chunks = dict[bytes, dict[str, list[Any]]]
"""By the digest of a chunk and all tokens before it: by pool, copies of its tensors' pages."""


class DictionaryLinker:
    """Two linkers over one dictionary find each other's prefixes."""

    is_healthy = True

    def __init__(self, pools: Sequence[LinkedPool], chunk_tokens: int, chunks: Chunks) -> None:
        self.chunk_tokens = chunk_tokens
        self._pools = {pool.name: pool for pool in pools}
        self._page_tokens = pools[0].page_tokens
        self._chunks = chunks
        self._found: dict[str, int] = {}
        self._progress: dict[str, Progress] = {}
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise LinkError("this linker was closed")

    def _digests(self, tokens: NDArray[np.int64], salt: str, end: int) -> Iterator[bytes]:
        """Of each whole chunk up to `end`, over all tokens before its end."""
        digest = hashlib.sha256(salt.encode())
        for begin in range(0, end - self.chunk_tokens + 1, self.chunk_tokens):
            digest.update(tokens[begin : begin + self.chunk_tokens].tobytes())
            yield digest.copy().digest()

    def lookup(self, request: str, tokens: NDArray[np.int64], salt: str) -> None:
        """Find the longest prefix. Nothing is ever evicted here, so nothing needs a lock."""
        self._check_open()
        found = 0
        for digest in self._digests(tokens, salt, tokens.size):
            if digest not in self._chunks:
                break
            found += self.chunk_tokens
        self._found[request] = found

    def found(self, request: str) -> int:
        """How many tokens were found."""
        self._check_open()
        return self._found[request]

    def _copy(self, name: str, span: Span, *, store: bool) -> None:
        self._check_open()
        pages_a_chunk = self.chunk_tokens // self._page_tokens
        first_chunk = span.begin // self.chunk_tokens
        for index, digest in enumerate(self._digests(span.tokens, span.salt, span.end)):
            if index < first_chunk:
                continue
            chunk = self._chunks.setdefault(digest, {}) if store else self._chunks[digest]
            for pool in self._pools.values():
                at = (index - first_chunk) * pages_a_chunk
                ids = span.pages[pool.name][at : at + pages_a_chunk].copy()
                if store:
                    chunk[pool.name] = [tensor[ids] for tensor in pool.tensors]
                    continue
                own = max(0, span.begin // self._page_tokens - index * pages_a_chunk)  # pages before `begin` stay as they are
                for tensor, kept in zip(pool.tensors, chunk[pool.name], strict=True):
                    tensor[ids[own:]] = kept[own:]
        self._progress[name] = Progress.DONE

    def retrieve(self, request: str, span: Span) -> None:
        """Copy the found prefix to device pages."""
        self._copy(request, span, store=False)

    def store(self, name: str, span: Span) -> None:
        """Copy device pages to the dictionary."""
        self._copy(name, span, store=True)

    def progress(self, name: str) -> Progress:
        """Of a retrieve or a store."""
        self._check_open()
        return self._progress[name]

    def release(self, name: str) -> None:
        """Forget a request or a store."""
        self._found.pop(name, None)
        self._progress.pop(name, None)

    def close(self) -> None:
        """Refuse all further calls."""
        self._closed = True
