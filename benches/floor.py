"""The floor of serving a request, as a contestant: what no cache can do without, and nothing else.

A PrefixCache runs beside it, untimed, and says what is found and what is new. Timed are the passes over bytes that this
implies: one copy of the prompt as a key, one comparison of what is cached, a copy of its page ids; these ids and new ones into
the row that kernels read; a copy of new tokens and ids that stay in the tree (their page faults included); and, of a token
that is decoded, two calls that do nothing.
"""

from __future__ import annotations

from collections import deque
from time import thread_time_ns
from typing import Any

import numpy as np

from benches.serving import PrefixCacheServer
from benches.subject import LONGEST_TOKENS, WINDOW_TOKENS, Capacity, Request, Tokens

ROOMY_TOKENS = 1 << 24


class FloorServer:
    """See ServingSubject; the answers are PrefixCache's."""

    def open(self, components: str, page_size: int, capacity: Capacity | None) -> None:
        """Start with nothing kept. See ServingSubject."""
        self.server = PrefixCacheServer()
        self.server.open(components, page_size, capacity)
        self.page_size = page_size
        self.ids = np.arange(LONGEST_TOKENS // page_size)
        self.rows = {"full": np.zeros(LONGEST_TOKENS // page_size, np.int32)}
        if components == "full_swa":
            self.rows["swa"] = self.rows["full"].copy()
        self.kept: deque[Any] = deque()
        self.room = (capacity.full_tokens if capacity else ROOMY_TOKENS) + LONGEST_TOKENS

    def key(self, tokens: list[int]) -> int:
        """Tokens of a list as an array."""
        start = thread_time_ns()
        np.array(tokens, np.int64)
        return thread_time_ns() - start

    def begin(self, prompt: Tokens) -> Request:
        """Copy the key, compare what is cached, copy its ids."""
        request = self.server.begin(prompt)
        cached = request.cached_tokens
        one, other = prompt[:cached].tobytes(), prompt[:cached].tobytes()
        start = thread_time_ns()
        prompt.tobytes()
        same = one == other
        self.ids[: cached // self.page_size].copy()
        spent = thread_time_ns() - start
        assert same
        request.parts_ns = {}
        request.spend("admit", spent)
        self.prompt = prompt
        return request

    def prefill(self, request: Request, chunk_tokens: int) -> None:
        """Ids of what is cached and of what is new into the row; new tokens and ids into the tree."""
        lease = request.held
        known, start = lease.cached_tokens, lease.compute_from
        self.server.prefill(request, chunk_tokens)
        request.parts_ns = {"admit": request.parts_ns["admit"]}
        self._write("rows", request, 0, known, start)
        self._write("allocate", request, known, lease.length, known)
        self._keep("commit", request, np.frombuffer(self.prompt, np.int64)[known:])

    def decode(self, request: Request, token_count: int, *, singly: bool) -> None:
        """Two calls a token, and the new ids into the row."""
        begin = request.held.length
        self.server.decode(request, token_count, singly=singly)
        request.parts_ns.pop("decode")
        if singly:
            start = thread_time_ns()
            for length in range(token_count):
                _nothing(request, length)
                _nothing(request, length)
            request.spend("decode", thread_time_ns() - start)
        self._write("decode", request, begin, begin + token_count, begin)

    def finish(self, request: Request, tokens: Tokens) -> None:
        """What is new of the answer into the tree."""
        known = request.held.committed
        self.server.finish(request, tokens)
        request.parts_ns.pop("finish")
        self._keep("finish", request, np.frombuffer(tokens, np.int64)[known:])

    def _write(self, part: str, request: Request, begin: int, end: int, run: int) -> None:
        size = self.page_size
        start = thread_time_ns()
        for name, row in self.rows.items():
            first = begin // size if name == "full" else max(0, run - WINDOW_TOKENS) // size
            last = -(-end // size)
            row[first:last] = self.ids[first:last]
        request.spend(part, thread_time_ns() - start)

    def _keep(self, part: str, request: Request, tokens: Any) -> None:
        start = thread_time_ns()
        self.kept.append((tokens.tobytes(), self.ids[: tokens.size // self.page_size].copy()))
        self.room -= tokens.size
        while self.room < 0 and len(self.kept) > 1:
            self.room += len(self.kept.popleft()[0]) // 8
        request.spend(part, thread_time_ns() - start)


def _nothing(request: Request, length: int) -> None:
    """A call."""
