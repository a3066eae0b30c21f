"""A dictionary of chained block hashes, the design of vLLM's prefix cache, as a contestant in plain Python.

Each block's hash covers its tokens and the hash of the block before; a block without users waits in an ordered queue, the
least recently used first. vLLM hashes with SHA-256 over a pickled tuple; here it is SHA-256 over the bytes, which is faster.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from time import perf_counter_ns
from typing import Any

from benches.subject import Capacity, Request, Tokens, UnsupportedError

SMALLEST_BLOCK_TOKENS = 16
ROOMY_BLOCKS = 1 << 40


class Block:
    """A cached block: its id, its key in the dictionary, and how many requests use it."""

    __slots__ = ("digest", "page", "users")

    def __init__(self, page: int, digest: bytes, users: int) -> None:
        self.page = page
        self.digest = digest
        self.users = users


class BlockDictSubject:
    """Full attention only, blocks of at least 16 tokens."""

    def open(self, components: str, page_size: int, capacity: Capacity | None) -> None:
        """See Subject."""
        if components != "full" or page_size < SMALLEST_BLOCK_TOKENS:
            raise UnsupportedError("full attention and blocks of 16 tokens and more only")
        self.page_size = page_size
        self.free_blocks = ROOMY_BLOCKS if capacity is None else capacity.full_tokens // page_size
        self.unused_pages = 0
        self.returned_pages: list[int] = []
        self.blocks: dict[bytes, Block] = {}
        self.idle: OrderedDict[bytes, Block] = OrderedDict()

    def _digests(self, tokens: Tokens, limit: int, done: list[bytes]) -> list[bytes]:
        """Hashes of the whole blocks of the first `limit` tokens, of which the caller has some already."""
        data = memoryview(tokens).cast("B")
        size = self.page_size * tokens.itemsize
        digests = done[:]
        parent = digests[-1] if digests else b""
        for block in range(len(digests), limit // self.page_size):
            parent = hashlib.sha256(parent + data[block * size : (block + 1) * size]).digest()
            digests.append(parent)
        return digests

    def _cached(self, digests: list[bytes]) -> list[Block]:
        found = []
        blocks = self.blocks
        for digest in digests:
            block = blocks.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def _use(self, blocks: list[Block]) -> None:
        for block in blocks:
            if block.users == 0:
                del self.idle[block.digest]
            block.users += 1

    def _let_go(self, blocks: list[Block]) -> None:
        for block in reversed(blocks):
            block.users -= 1
            if block.users == 0:
                self.idle[block.digest] = block

    def _evict(self, count: int) -> int:
        freed = 0
        while freed < count and self.idle:
            digest, block = self.idle.popitem(last=False)
            self.returned_pages.append(block.page)
            del self.blocks[digest]
            freed += 1
        self.free_blocks += freed
        return freed

    def _allocate(self, count: int) -> list[int]:
        self.free_blocks -= count
        pages = [self.returned_pages.pop() for _ in range(min(count, len(self.returned_pages)))]
        fresh = count - len(pages)
        pages.extend(range(self.unused_pages, self.unused_pages + fresh))
        self.unused_pages += fresh
        return pages

    def _put(self, digests: list[bytes], pages: list[int]) -> list[Block]:
        """Publish new blocks, in use by their request; a block that came in between is kept, the duplicate page freed."""
        used = []
        for digest, page in zip(digests, pages, strict=True):
            block = self.blocks.get(digest)
            if block is not None:
                self._use([block])
                self.returned_pages.append(page)
                self.free_blocks += 1
            else:
                block = self.blocks[digest] = Block(page, digest, 1)
            used.append(block)
        return used

    def insert(self, tokens: Tokens, known_tokens: int) -> tuple[int, int]:
        """See Subject."""
        pages = self._allocate((len(tokens) - known_tokens) // self.page_size)
        start = perf_counter_ns()
        digests = self._digests(tokens, len(tokens), [])
        known = self._cached(digests[: known_tokens // self.page_size])
        self._let_go(self._put(digests[len(known) :], pages))
        return perf_counter_ns() - start, len(known) * self.page_size

    def match(self, tokens: Tokens, *, with_pages: bool) -> tuple[int, int]:
        """See Subject."""
        start = perf_counter_ns()
        found = self._cached(self._digests(tokens, len(tokens), []))
        if with_pages:
            [block.page for block in found]
        return perf_counter_ns() - start, len(found) * self.page_size

    def find(self, tokens: Tokens) -> Any:
        """See Subject."""
        return self._cached(self._digests(tokens, len(tokens), []))

    def hold(self, handle: Any) -> None:
        """See Subject."""
        self._use(handle)

    def lock_unlock(self, handle: Any) -> int:
        """See Subject."""
        start = perf_counter_ns()
        self._use(handle)
        self._let_go(handle)
        return perf_counter_ns() - start

    def evict(self, pool: str, token_count: int) -> tuple[int, int]:
        """See Subject."""
        del pool
        start = perf_counter_ns()
        freed = self._evict(-(-token_count // self.page_size))
        return perf_counter_ns() - start, freed * self.page_size

    def begin(self, prompt: Tokens) -> Request:
        """See Subject."""
        t0 = perf_counter_ns()
        digests = self._digests(prompt, len(prompt) - 1, [])
        found = self._cached(digests)
        t1 = perf_counter_ns()
        self._use(found)
        t2 = perf_counter_ns()
        [block.page for block in found]
        t3 = perf_counter_ns()
        return Request(
            cached_tokens=len(found) * self.page_size,
            held=(digests, found),
            parts_ns={"match": t1 - t0, "lock": t2 - t1, "pages": t3 - t2},
        )

    def finish(self, request: Request, tokens: Tokens) -> None:
        """See Subject."""
        digests, found = request.held
        t0 = perf_counter_ns()
        need = -(-len(tokens) // self.page_size) - len(found)
        if need > self.free_blocks:
            self._evict(need - self.free_blocks)
        t1 = perf_counter_ns()
        pages = self._allocate(need)
        t2 = perf_counter_ns()
        digests = self._digests(tokens, len(tokens), digests)
        whole = len(digests) - len(found)
        used = self._put(digests[len(found) :], pages[:whole])
        self.returned_pages.extend(pages[whole:])
        self.free_blocks += len(pages) - whole
        t3 = perf_counter_ns()
        self._let_go(found + used)
        t4 = perf_counter_ns()
        request.parts_ns |= {"evict": t1 - t0, "allocate": t2 - t1, "insert": t3 - t2, "unlock": t4 - t3}
