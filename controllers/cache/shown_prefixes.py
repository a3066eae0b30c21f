"""Which tenants have shown a prefix, page by page, without its tokens.

Each page of a prompt has a digest, SHA-256 of the digest before it and the page. The first one begins with a secret of this
table, so a reader of the table cannot look for a prompt that he guesses. By digest the table remembers up to k tenants that
have shown the page; with one more the page is common to all, and its tenants are forgotten. Digests shown longest ago go first,
and of one prompt the last pages. So the pages remembered of a prompt are always its first ones.

Cost: one hash and a look-up a page. Rejected: counters in a sketch, which would take a prompt for common where prompts collide.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import Final

COMMON: Final[tuple[int, ...]] = ()
"""In place of the tenants: more than k."""


class ShownPrefixes:
    """Counts the tenants that have shown a prefix.

    Args:
        after: k, how many tenants beside the one that asks.
        max_pages: how many pages are remembered.
        salt: the secret.

    Attributes:
        common_count: of the pages remembered, those that more than k tenants have shown.

    >>> shown = ShownPrefixes(after=2, max_pages=100, salt=b"secret")
    >>> digests = shown.digests(bytes(32), 16, b"")
    >>> for tenant in (1, 1, 2):
    ...     shown.note(digests, tenant)
    >>> [shown.common_pages(digests, tenant) for tenant in (1, 2, 3)]
    [0, 0, 2]
    """

    __slots__ = ("_after", "_max_pages", "_root", "_tenants", "common_count")

    def __init__(self, *, after: int, max_pages: int, salt: bytes) -> None:
        self._after = after
        self._max_pages = max_pages
        self._root = salt
        self._tenants: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()
        self.common_count = 0

    @property
    def page_count(self) -> int:
        """How many pages are remembered."""
        return len(self._tenants)

    def digests(self, data: bytes | memoryview, page_bytes: int, kind: bytes) -> list[bytes]:
        """A digest for each whole page of elements, which differs for keys of different kinds. Cost: O(pages)."""
        digest, found = sha256(self._root + kind).digest(), []
        for begin in range(0, len(data) // page_bytes * page_bytes, page_bytes):
            digest = sha256(digest + data[begin : begin + page_bytes]).digest()
            found.append(digest)
        return found

    def common_pages(self, digests: list[bytes], tenant: int) -> int:
        """How many pages at least k tenants beside this one have shown. Cost: O(pages found)."""
        for count, digest in enumerate(digests):
            tenants = self._tenants.get(digest)
            if tenants is None or (tenants != COMMON and len(tenants) - (tenant in tenants) < self._after):
                return count
        return len(digests)

    def note(self, digests: list[bytes], tenant: int) -> None:
        """A tenant shows a prompt. Cost: O(pages), k for each."""
        known = self._tenants
        for digest in reversed(digests[: self._max_pages]):
            tenants = known.get(digest)
            if tenants is None:
                known[digest] = (tenant,)
                continue
            known.move_to_end(digest)
            if tenants != COMMON and tenant not in tenants:
                is_common = len(tenants) == self._after
                known[digest] = COMMON if is_common else (*tenants, tenant)
                self.common_count += is_common
        while len(known) > self._max_pages:
            self.common_count -= known.popitem(last=False)[1] == COMMON
