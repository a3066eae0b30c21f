"""The protocol between the cache and a prefix cache elsewhere, which finds prefixes by tokens and copies device pages itself.

It differs from a store of pages: it has its own keys, locks what a lookup found until that is read or released, and reads and
writes pages of the device pools asynchronously. The caller must not touch pages until their transfer has ended. The peer is
trusted: nothing here verifies what it wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool
    from unified_tree.declare.keys import Key


Pages = Mapping[str, "NDArray[np.int64]"]
"""By pool: device page ids."""


class Progress(Enum):
    """How far a transfer is."""

    RUNNING = "running"
    """The linker may read or write its pages at any moment."""
    DONE = "done"
    """All of it; the pages are the caller's again."""
    FAILED = "failed"
    """Not all of it, and what the pages hold is undefined; they are the caller's again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Some tokens of a prefix and their pages.

    Attributes:
        tokens: all of the prefix, int64, from the first on; at least `end`.
        salt: tokens with another salt are another prefix.
        begin: first token to move, at a page's start; of a retrieve, the pages before it must not be written.
        end: one past the last, a multiple of the linker's chunk.
        pages: by pool, the ids of the pages that `LinkedPool.page_range` says of the tokens from `first_token` to `end`. A
            window or a state is that of length `end`: what is stored can be resumed there, and what is found ends there.
    """

    tokens: NDArray[np.int64]
    salt: str
    begin: int
    end: int
    pages: Pages

    def first_token(self, chunk_tokens: int) -> int:
        """Where the chunk begins that `begin` lies in."""
        return self.begin // chunk_tokens * chunk_tokens


class PrefixLinker(Protocol):
    """Finds prefixes by their tokens, and copies them between a peer and device pages.

    A request is any string, used once: `lookup`, then `found` until the result is known, then at most one `retrieve`, then
    `release`. Each store has a name that no request and no other store has. No call but `close` blocks. One thread makes all
    calls.

    The linker guarantees: a RUNNING transfer ends, or becomes FAILED when its memory cannot be written any more; after DONE or
    FAILED it does not touch the pages any more; a retrieve writes all pages of [begin, end) and no other, or is FAILED; an
    unreachable peer finds nothing. Calls after `close` raise LinkError, but for `release` and `close`.
    """

    @property
    def chunk_tokens(self) -> int:
        """Prefixes are found, retrieved and stored in multiples of so many tokens; a multiple of the page size."""
        ...

    @property
    def is_healthy(self) -> bool:
        """Whether the peer has answered recently. If not, `found` returns 0, and transfers are FAILED, at once."""
        ...

    def lookup(self, request: str, tokens: NDArray[np.int64], salt: str) -> None:
        """Start to look up the longest prefix of these tokens, and to lock it for this request."""
        ...

    def found(self, request: str) -> int | None:
        """How many tokens were found and are locked; None while unknown, 0 if the peer is unreachable."""
        ...

    def retrieve(self, request: str, span: Span) -> None:
        """Start to fill pages with what was found, or, without windows and states, with part of it. This consumes its locks."""
        ...

    def store(self, name: str, span: Span) -> None:
        """Start to copy pages to the peer, which may drop them."""
        ...

    def progress(self, name: str) -> Progress:
        """The progress of a request's retrieve, or of a store. The result is kept until `release`."""
        ...

    def release(self, name: str) -> None:
        """Forget a request or a store, and release locks that no retrieve has consumed. Not allowed during a transfer.

        Raises LinkError while its transfer runs. No effect for an unknown name.
        """
        ...

    def close(self) -> None:
        """Wait for running transfers, at most as long as the linker's time limit, and close. Idempotent.

        Raises LinkError, after closing, if some may still be running: their pages must never be used again.
        """
        ...


def tokens_of(key: Key) -> NDArray[np.int64]:
    """The tokens of a key that is no bigram's, as they stand in a span: a view. Cost: O(1)."""
    assert not key.bigram, key
    return np.frombuffer(key.data, np.int64, key.length)


def check_span(span: Span, chunk_tokens: int, page_tokens: int, pools: Mapping[str, LinkedPool]) -> None:
    """Assert that a span is valid: aligned, with as many pages as it needs. Cost: O(pools)."""
    assert 0 <= span.begin < span.end <= span.tokens.size, (span.begin, span.end, span.tokens.size)
    assert span.begin % page_tokens == 0 and span.end % chunk_tokens == 0, (span.begin, span.end)
    ranges = {name: pool.page_range(span.first_token(chunk_tokens), span.end) for name, pool in pools.items()}
    counts = {name: last - first for name, (first, last) in ranges.items()}
    assert {name: ids.size for name, ids in span.pages.items()} == counts, (span, counts)


@dataclass(slots=True, kw_only=True)
class LinkCounters:
    """Counters since the link was created.

    Attributes:
        lookups, found_tokens: prompts looked up, and the tokens found of them, including those that the cache had itself.
        retrieved_tokens, stored_tokens: of transfers that succeeded.
        retrieves_failed, retrieves_late, stores_failed: transfers.
        no_room: retrieves dropped for lack of device pages.
        stores_dropped: stores dropped because too many were running, or the peer was unreachable.
    """

    lookups: int = 0
    found_tokens: int = 0
    retrieved_tokens: int = 0
    stored_tokens: int = 0
    retrieves_failed: int = 0
    retrieves_late: int = 0
    stores_failed: int = 0
    no_room: int = 0
    stores_dropped: int = 0
