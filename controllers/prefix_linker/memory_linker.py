"""A prefix linker that keeps prefixes in this process, for tests and trials without a daemon."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool, check_windows, format_digest
from unified_tree.controllers.prefix_linker.prefix_linker import Progress, Span, check_span
from unified_tree.controllers.storage.engine_settings import MAX_BYTES, Bounds, check_number
from unified_tree.terms.errors import ConfigurationError, LinkError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray


class MemoryLinker:
    """A PrefixLinker whose calls are synchronous. A prefix is found at a length whose windows and states are all kept.

    Args:
        pools: the device pools, all of one page size.
        chunk_tokens: a multiple of that.
        capacity_chunks: the least recently used go first; those that are locked stay.
        peer: another linker to share chunks and locks with, like two servers of one daemon.

    Raises ConfigurationError for invalid numbers, and for chunks that do not match the pages or a window.
    """

    def __init__(
        self, pools: Sequence[LinkedPool], chunk_tokens: int, capacity_chunks: int, peer: MemoryLinker | None = None
    ) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._page_tokens = pools[0].page_tokens
        check_number("chunk_tokens", chunk_tokens, int, Bounds(1, MAX_BYTES))
        check_number("capacity_chunks", capacity_chunks, int, Bounds(1, MAX_BYTES))
        if chunk_tokens % self._page_tokens:
            raise ConfigurationError(f"chunks of {chunk_tokens} tokens are no multiple of the page size {self._page_tokens}")
        check_windows(pools, chunk_tokens)
        self._chunk_tokens = chunk_tokens
        self._paths = {pool.name for pool in pools if pool.coverage.is_path}
        self._capacity_chunks = capacity_chunks
        self._formats = format_digest(pools)
        self._chunks: OrderedDict[bytes, dict[str, list[torch.Tensor]]] = OrderedDict()  # by pool, what a chunk keeps of it
        self._locked: dict[str, list[bytes]] = {}
        if peer is not None:
            self._chunks, self._locked = peer._chunks, peer._locked
        self._progress: dict[str, Progress] = {}
        self._is_closed = False

    @property
    def chunk_tokens(self) -> int:
        """See PrefixLinker.chunk_tokens."""
        return self._chunk_tokens

    @property
    def is_healthy(self) -> bool:
        """See PrefixLinker.is_healthy."""
        return not self._is_closed

    @property
    def locks(self) -> int:
        """How many chunks are locked, each as often as it is."""
        return sum(map(len, self._locked.values()))

    def lookup(self, request: str, tokens: NDArray[np.int64], salt: str) -> None:
        """See PrefixLinker.lookup."""
        self._check_open()
        assert request not in self._locked, f"{request!r} was used before"
        kept = []
        digests = list(self._digests(tokens, salt, tokens.size))
        for digest in digests:
            if not self._paths <= self._chunks.get(digest, {}).keys():
                break
            kept.append(self._chunks[digest])
        length = len(kept)
        while length and not self._is_whole(kept[:length]):
            length -= 1
        self._locked[request] = digests[:length]
        for digest in digests[:length]:
            self._chunks.move_to_end(digest)

    def found(self, request: str) -> int | None:
        """See PrefixLinker.found."""
        self._check_open()
        return len(self._locked[request]) * self._chunk_tokens

    def retrieve(self, request: str, span: Span) -> None:
        """See PrefixLinker.retrieve."""
        self._check_open()
        check_span(span, self._chunk_tokens, self._page_tokens, self._pools)
        first = span.first_token(self._chunk_tokens)
        digests = list(self._digests(span.tokens, span.salt, span.end))
        assert self._locked[request][: len(digests)] == digests, "what is retrieved was not found"
        for index, digest in enumerate(digests[first // self._chunk_tokens :], first // self._chunk_tokens):
            for pool in self._pools.values():
                ids, page = self._in_chunk(pool, span, index)
                own = 0 if pool.coverage.is_exact else max(0, span.begin // self._page_tokens - page)
                if ids.size > own:
                    for tensor, kept in zip(pool.tensors, self._chunks[digest][pool.name], strict=True):
                        tensor[ids[own:].copy()] = kept[own:]
        self._locked[request] = []
        self._progress[request] = Progress.DONE

    def store(self, name: str, span: Span) -> None:
        """See PrefixLinker.store."""
        self._check_open()
        check_span(span, self._chunk_tokens, self._page_tokens, self._pools)
        assert span.begin % self._chunk_tokens == 0, "whole chunks are stored"
        digests = list(self._digests(span.tokens, span.salt, span.end))
        for index in range(span.begin // self._chunk_tokens, len(digests)):
            kept = self._chunks.setdefault(digests[index], {})
            self._chunks.move_to_end(digests[index])
            for pool in self._pools.values():
                ids, _ = self._in_chunk(pool, span, index)
                if ids.size:
                    kept[pool.name] = [tensor[ids.copy()] for tensor in pool.tensors]
        self._shrink()
        self._progress[name] = Progress.DONE

    def progress(self, name: str) -> Progress:
        """See PrefixLinker.progress."""
        self._check_open()
        return self._progress[name]

    def release(self, name: str) -> None:
        """See PrefixLinker.release."""
        self._locked.pop(name, None)
        self._progress.pop(name, None)

    def close(self) -> None:
        """See PrefixLinker.close."""
        self._is_closed = True
        self._chunks = OrderedDict()

    def _is_whole(self, chunks: Sequence[dict[str, list[torch.Tensor]]]) -> bool:
        """Whether windows and states are there for a prefix of just these chunks."""
        for pool in self._pools.values():
            needed = pool.coverage.boundary_pages(self._chunk_tokens)
            if not all(pool.name in chunk for chunk in chunks[max(0, len(chunks) - needed) :] if needed):
                return False
        return True

    def _in_chunk(self, pool: LinkedPool, span: Span, index: int) -> tuple[NDArray[np.int64], int]:
        """The ids that a span names of one pool in a chunk, and the page that the first of them is."""
        page, last = pool.page_range(span.first_token(self._chunk_tokens), span.end)
        a_chunk = self._chunk_tokens // self._page_tokens
        begin, end = max(page, index * a_chunk), min(last, (index + 1) * a_chunk)
        return span.pages[pool.name][max(0, begin - page) : max(0, end - page)], begin

    def _shrink(self) -> None:
        locked = Counter(digest for digests in self._locked.values() for digest in digests)
        for digest in [digest for digest in self._chunks if digest not in locked]:
            if len(self._chunks) <= self._capacity_chunks:
                return
            del self._chunks[digest]

    def _digests(self, tokens: NDArray[np.int64], salt: str, end: int) -> Iterator[bytes]:
        """Of the whole chunks up to `end`, each over all tokens before it."""
        digest = sha256(f"{self._formats} {salt}".encode()).digest()
        for begin in range(0, end - self._chunk_tokens + 1, self._chunk_tokens):
            digest = sha256(digest + tokens[begin : begin + self._chunk_tokens].tobytes()).digest()
            yield digest

    def _check_open(self) -> None:
        if self._is_closed:
            raise LinkError("the memory linker was closed")
