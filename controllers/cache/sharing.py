"""What namespaces that share have in common: the key under which the tree has a prompt, and who has shown it.

A namespace meets another's pages only in what is common: pages that `Tenants.share_after` tenants beside the one that asks have
shown in prompts. A tenant is a group that shares; its own prober counts for nothing but itself, however many namespaces it has.
So `cached_tokens` says of a prompt that its tenant has not shown no more than that so many others have.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import urandom
from typing import TYPE_CHECKING

from unified_tree.controllers.cache.shown_prefixes import ShownPrefixes
from unified_tree.declare.keys import Key
from unified_tree.declare.owners import SHARED, can_mark
from unified_tree.lookup.forks import forked
from unified_tree.native.int64 import INT64_BYTES
from unified_tree.terms.errors import InvalidKeyError, LeaseError

if TYPE_CHECKING:
    from unified_tree.state.tree_state import TreeState

SALT_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingStats:
    """What namespaces share.

    Attributes:
        shown_pages: pages of prompts of which it is remembered which tenants have shown them; common_pages: those that are
            common to all.
        common_tokens: prompt tokens that were common when their request came; common_hit_tokens: those of them that it hit.
    """

    shown_pages: int
    common_pages: int
    common_tokens: int
    common_hit_tokens: int


class Sharing:
    """The namespaces of one cache that share. Without any it does nothing.

    Attributes:
        is_on: whether there are any.
    """

    __slots__ = ("_common_tokens", "_hit_tokens", "_owners", "_shown", "_state", "is_on")

    def __init__(self, state: TreeState) -> None:
        self._state = state
        self._owners = state.owners
        self._shown: ShownPrefixes | None = None
        self._common_tokens = self._hit_tokens = 0
        self.is_on = state.owners is not None
        tenants = state.tenants
        if tenants is not None and tenants.share_after is not None:
            self._shown = ShownPrefixes(after=tenants.share_after, max_pages=tenants.shown_pages, salt=urandom(SALT_BYTES))

    def in_tree(self, key: Key) -> Key:
        """A request's key as the tree has it: the same, unless its namespace shares. Counts nothing.

        Raises LeaseError for the namespace that stands for those that share, and InvalidKeyError for negative ids, and for a
        packed key of a namespace that shares.
        Cost: O(tokens), and as a match.
        """
        return key if self._owners is None or key.mark is not None else self._placed(key, self._digests(key))

    def admit(self, key: Key) -> Admitted:
        """The same for a request that is to be admitted; `showed` then says that it was."""
        digests = self._digests(key)
        return Admitted(self._placed(key, digests), digests)

    def showed(self, admitted: Admitted, hit_tokens: int) -> None:
        """A request was admitted: its tenant has shown its prompt. Cost: O(pages)."""
        mark = admitted.key.mark
        if self._owners is None or mark is None:
            return
        self._common_tokens += mark.fork
        self._hit_tokens += min(mark.fork, hit_tokens)
        tenant = self._owners.tenants[mark.owner]
        if self._shown is not None and tenant:
            self._shown.note(admitted.digests, tenant)

    def namespaces(self, namespace: str | None) -> tuple[str | None, ...]:
        """Where the tree has a namespace's values: those that share are invalidated together."""
        return (namespace,) if self._owners is None or namespace not in self._owners.marks else (namespace, SHARED)

    def stats(self) -> SharingStats | None:
        """A snapshot; None if nothing is shared."""
        if not self.is_on:
            return None
        shown = self._shown
        return SharingStats(
            shown_pages=0 if shown is None else shown.page_count,
            common_pages=0 if shown is None else shown.common_count,
            common_tokens=self._common_tokens,
            common_hit_tokens=self._hit_tokens,
        )

    def _digests(self, key: Key) -> list[bytes]:
        owners, shown = self._owners, self._shown
        if owners is None:
            return []
        if key.namespace == SHARED:
            raise LeaseError(f"the namespace {SHARED!r} stands for those that share; no request may have it")
        if shown is None or not owners.tenants[owners.marks.get(key.namespace, 0)]:
            return []
        return shown.digests(key.data, self._state.page_size * key.width_bytes, b"bigram" if key.bigram else b"plain")

    def _placed(self, key: Key, digests: list[bytes]) -> Key:
        owners = self._owners
        owner = 0 if owners is None else owners.marks.get(key.namespace, 0)
        if owners is None or not owner:
            return key
        if key.width_bytes < INT64_BYTES:
            raise InvalidKeyError(f"{key} is packed, and the namespace shares: give all tokens, `Key(tokens, namespace)`")
        key.require_tokens()
        if not can_mark(key.data):
            return key
        common = 0 if self._shown is None or not digests else self._shown.common_pages(digests, owners.tenants[owner])
        return forked(self._state, key, owner, common * self._state.page_size)


class Admitted:
    """A request on its way: its key in the tree, and the digests of its pages if its tenant counts."""

    __slots__ = ("digests", "key")

    def __init__(self, key: Key, digests: list[bytes]) -> None:
        self.key = key
        self.digests = digests
