"""What a whole request asks of a cache: to be admitted, computed chunk by chunk, decoded, and ended.

Every method adds the time of its public calls to the request's parts, and of what a scheduler does to have page ids where
kernels read them: a row of page ids (ours) or of slots (SGLang's `req_to_token`) is written before each run. Tensors of
keys and values do not exist: what computing them costs is the same for all caches. Time is the processor's: a
request is long enough that others' work on the machine would show.
"""

from __future__ import annotations

from time import thread_time_ns
from typing import Any, Protocol

import numpy as np

from benches.ours import SETS, page_counts
from benches.subject import LONGEST_TOKENS, WINDOW_TOKENS, Capacity, Request, Tokens
from unified_tree import Key
from unified_tree.controllers import PrefixCache

SERVED_PARTS = ("admit", "allocate", "rows", "commit", "decode", "finish")
"""What a served request consists of, in order."""


class ServingSubject(Protocol):
    """A cache that serves requests one at a time."""

    def open(self, components: str, page_size: int, capacity: Capacity | None) -> None:
        """Start with an empty cache. See Subject."""

    def key(self, tokens: list[int]) -> int:
        """Make of a list what `begin` takes: time."""
        ...

    def begin(self, prompt: Tokens) -> Request:
        """A request is admitted: match all but its last token, lock."""
        ...

    def prefill(self, request: Request, chunk_tokens: int) -> None:
        """Its prompt is computed: for each chunk allocate, write the row, and publish what is computed."""

    def decode(self, request: Request, token_count: int, *, singly: bool) -> None:
        """Its answer is computed, token by token as engines do, or in one piece: allocate, write the row."""

    def finish(self, request: Request, tokens: Tokens) -> None:
        """It ends with these tokens: publish, unlock, and free what is not published."""


class PrefixCacheServer:
    """PrefixCache, by the calls of `docs/embedding.md`."""

    def open(self, components: str, page_size: int, capacity: Capacity | None) -> None:
        """See ServingSubject."""
        self.page_size = page_size
        self.cache = PrefixCache(SETS[components], page_size, page_counts(components, page_size, capacity))
        self.window = components == "full_swa"
        self.state = components == "full_mamba"
        self.rows = {name: np.zeros(LONGEST_TOKENS // page_size, np.int32) for name in ("full", "swa")}

    def key(self, tokens: list[int]) -> int:
        """See ServingSubject."""
        start = thread_time_ns()
        Key(tokens)
        return thread_time_ns() - start

    def begin(self, prompt: Tokens) -> Request:
        """See ServingSubject."""
        start = thread_time_ns()
        lease = self.cache.acquire(Key(prompt))
        spent = thread_time_ns() - start
        request = Request(cached_tokens=lease.cached_tokens, held=lease)
        request.spend("admit", spent)
        return request

    def prefill(self, request: Request, chunk_tokens: int) -> None:
        """See ServingSubject."""
        cache, lease = self.cache, request.held
        start, end_of_prompt, written = lease.compute_from, lease.prompt_tokens, 0
        while start < end_of_prompt:
            t0 = thread_time_ns()
            end = min(end_of_prompt, max(start + chunk_tokens, lease.cached_tokens), lease.next_stop(start) or end_of_prompt)
            cache.allocate(lease, end)
            t1 = thread_time_ns()
            self._write_rows(lease, start, written)
            t2 = thread_time_ns()
            written = lease.committed  # a commit may swap the pages that it publishes
            pages = lease.save_pages
            cache.commit(lease, end, {end: pages[end]} if end in pages else None)
            t3 = thread_time_ns()
            request.spend("allocate", t1 - t0)
            request.spend("rows", t2 - t1)
            request.spend("commit", t3 - t2)
            start = end
        request.written = written

    def decode(self, request: Request, token_count: int, *, singly: bool) -> None:
        """See ServingSubject."""
        lease = request.held
        first = lease.prompt_tokens
        start = thread_time_ns()
        if singly:
            self._write_rows(lease, first, request.written)
            self._decode_singly(lease, first, first + token_count)
        else:
            self.cache.allocate(lease, first + token_count)
            self._write_rows(lease, first, request.written)
            self.cache.advance(lease, first + token_count)
        request.spend("decode", thread_time_ns() - start)

    def _decode_singly(self, lease: Any, first: int, last: int) -> None:
        """For each token allocate, write the row at a new page, compute, advance."""
        cache, size, rows = self.cache, self.page_size, self.rows
        names = ("full", "swa") if self.window else ("full",)
        for length in range(first, last):
            cache.allocate(lease, length + 1)
            if length % size == 0:
                index = length // size
                for name in names:
                    rows[name][index] = lease.page(name, index)
            cache.advance(lease, length + 1)
            if self.state:
                self.is_saving = length + 1 in lease.save_pages  # a kernel copies the running state to that page then

    def finish(self, request: Request, tokens: Tokens) -> None:
        """See ServingSubject."""
        cache, lease = self.cache, request.held
        start = thread_time_ns()
        known = lease.committed
        cache.commit(lease, tokens[known:], dict(lease.save_pages), begin=known)
        cache.release(lease)
        request.spend("finish", thread_time_ns() - start)

    def _write_rows(self, lease: Any, start: int, written: int) -> None:
        """Write what the run from `start` reads and is not yet in the rows: all of the path from `written` on, the window."""
        first = written // self.page_size
        ids = lease.pages("full", first)
        self.rows["full"][first : first + ids.size] = ids
        if self.window:
            first = max(0, start - WINDOW_TOKENS) // self.page_size
            ids = lease.pages("swa", first)
            self.rows["swa"][first : first + ids.size] = ids
