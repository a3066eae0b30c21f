"""What namespaces that share have in common: the key under which the tree has a prompt, and who has shown it.

A namespace meets another's pages only in what is common: pages that `Tenants.share_after` tenants beside the one that asks have
shown in prompts. A tenant is a group that shares; its own prober counts for nothing but itself, however many namespaces it has.
So `cached_tokens` says of a prompt that its tenant has not shown no more than that so many others have.

`ShownPrefixes` knows which tenants have shown a prefix, page by page, without its tokens. Each page of a prompt has a digest,
SHA-256 of the digest before it and the page. The first one begins with a secret of this table, so a reader of the table cannot
look for a prompt that he guesses. By digest the table remembers up to k tenants that have shown the page; with one more the
page is common to all, and its tenants are forgotten. Digests shown longest ago go first, and of one prompt the last pages. So
the pages remembered of a prompt are always its first ones.

Cost: one hash and a look-up a page. Rejected: counters in a sketch, which would take a prompt for common where prompts collide.

A prompt leaves what is common where its elements begin to carry its owner's mark, its fork (`declare.owners`). It is common as
far as enough tenants have shown it, and as far as the tree has it as common: that was shown by as many before. What its owner
has cached from earlier, when less of it was common, hangs on the way there, at the end of that. So the prompt keeps an earlier
fork where it resumes further along it: sharing takes no hit from a namespace that it would have alone.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from os import urandom
from typing import TYPE_CHECKING, Final

from unified_tree.controllers.cache.group_stats import SharingStats
from unified_tree.declare.keys import Key, Mark
from unified_tree.declare.owners import SHARED, can_mark, marked, owned
from unified_tree.inputs.arguments import INT64_BYTES
from unified_tree.lookup.matching import match, walk
from unified_tree.nodes.children import child_at
from unified_tree.terms.errors import InvalidKeyError, LeaseError

if TYPE_CHECKING:
    from unified_tree.nodes.node import Node
    from unified_tree.state.tree_state import TreeState


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


SALT_BYTES = 32


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


def forked(state: TreeState, key: Key, owner: int, common: int) -> Key:
    """A whole key as the tree has it.

    Args:
        key: as the request gave it, with ids that can be marked.
        owner: its mark.
        common: so many elements, in whole pages, were shown by enough tenants.

    Changes nothing. Cost: as a match, and a match for each earlier fork of this prompt.
    """
    plain, own = bytes(key.data), owned(key.data, owner)
    root = state.roots.get((SHARED, key.bigram))
    if root is None:
        return marked(key, plain, own, Mark(key.namespace, owner, common))
    node, length = walk(state, key, root, key.length)
    best = marked(key, plain, own, Mark(key.namespace, owner, max(common, length)))
    earlier = _earlier(state, node, length, own, best.mark.fork if best.mark is not None else 0, key.width_bytes)
    if not earlier:
        return best
    reach = _reach(state, best)
    for fork in earlier:
        other = marked(key, plain, own, Mark(key.namespace, owner, fork))
        found = _reach(state, other)
        if found > reach:
            best, reach = other, found
    return best


def _earlier(state: TreeState, node: Node, length: int, own: bytes, fork: int, width: int) -> list[int]:
    """The lengths before a fork, the last first, at which the tree goes on with the owner's own page. Cost: O(nodes passed)."""
    size = state.page_size * width
    found: list[int] = []
    at: Node | None = node if length == node.end else node.parent  # an owner's nodes begin at a node's end
    while at is not None:
        begin = at.end * width
        if at.end < fork and child_at(at, own[begin : begin + size]) is not None:
            found.append(at.end)
        at = at.parent
    return found


def _reach(state: TreeState, key: Key) -> tuple[int, int]:
    """How far a key resumes, over all tiers and on device."""
    found = match(state, key, key.length - 1, touch=False)
    return found.reachable.length, found.device.length
