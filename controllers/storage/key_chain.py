"""Keys of stored pages: a SHA-256 chain over a prefix, page by page.

    root      = H(kind of chain, page size, namespace, weights version)
    chain[i]  = H(chain[i - 1], tokens of page i)          chain[-1] = root
                H(chain[i - 1], H(owner), tokens of page i)  of namespaces that share, where the page is not common
    pool key  = H(chain[i], format digest)

Tokens are hashed as little-endian int64; a bigram page includes the next token, because its last element is a pair with it. So
a digest covers everything the state after page i depends on, and equal digests mean equal prefixes. Every input of H has a
fixed length except the root's, whose fields have length prefixes, so inputs are unambiguous. An owner's digest makes the input
of a page longer, in a chain whose root has a namespace of its own.

Cost: one hash of 8 page_size + 32 bytes a page, about 0.7 microseconds at page 64; extending a known prefix hashes the new
pages only. Hashing whole prefixes anew at each page would be quadratic; one hash over all tokens would name no prefix.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.storage.digests import Digests
from unified_tree.controllers.storage.storage_engine import KEY_BYTES
from unified_tree.declare.owners import MARK_SHIFT, SHARED, unmarked
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError, InvalidKeyError

if TYPE_CHECKING:
    from unified_tree.declare.keys import Key

_DOMAIN = b"unified_tree prefix chain 1"
_TOKEN_BYTES = 8


class KeyChain:
    """The chain digests of prefixes under one weights version.

    Args:
        page_size: tokens a page.
        weights_version: of the model; pages of another version are never found.
        owners: the names of the namespaces that share, by mark: each salts its own pages. See `declare.owners`.

    Raises ConfigurationError unless the page size is a positive integer and the version a string.

    >>> from unified_tree import Key
    >>> chain = KeyChain(page_size=2, weights_version="v1")
    >>> both = chain.digests(Key([1, 2, 3, 4, 5]))
    >>> len(both), both[1:] == chain.digests(Key([1, 2, 3, 4]), start_page=1, parent=both[0])
    (2, True)
    """

    def __init__(self, *, page_size: int, weights_version: str, owners: Sequence[str] = ()) -> None:
        if type(page_size) is not int or page_size <= 0:
            raise ConfigurationError(f"page_size must be a positive integer, not {repr_of(page_size)}")
        if type(weights_version) is not str:
            raise ConfigurationError(f"weights_version must be a string, not {repr_of(weights_version)}")
        self.page_size = page_size
        self.weights_version = weights_version
        self._owners = owners

    def root(self, namespace: str, *, bigram: bool = False) -> bytes:
        """The digest of the empty prefix, 32 bytes."""
        fields = (
            _DOMAIN,
            b"bigram" if bigram else b"plain",
            str(self.page_size).encode(),
            namespace.encode("utf-8", "surrogatepass"),
            self.weights_version.encode("utf-8", "surrogatepass"),
        )
        return sha256(b"".join(struct.pack("<Q", len(field)) + field for field in fields)).digest()

    def digests(self, key: Key, *, start_page: int = 0, parent: bytes | None = None) -> list[bytes]:
        """The chain digests of the key's whole pages from `start_page` on, 32 bytes each.

        Args:
            key: a partial last page is left out; of a `Key.tail` the pages before `start_page` may be missing.
            start_page: pages before it are not hashed.
            parent: the digest of page `start_page - 1` of the same prefix; must be given if that is not the root.

        Raises InvalidKeyError for a negative token id among the pages that are hashed, and for a parent that is missing,
        not 32 bytes, or beyond the key. Cost: O(tokens from `start_page` on).
        """
        page_count = len(key) // self.page_size
        if not key.begin <= start_page * self.page_size <= page_count * self.page_size:
            first_page = -(-key.begin // self.page_size)
            raise InvalidKeyError(f"start_page {start_page!r} is not one of {first_page} … {page_count}")
        if start_page and (type(parent) is not bytes or len(parent) != KEY_BYTES):
            raise InvalidKeyError(
                f"the parent of page {start_page} must be a digest of {KEY_BYTES} bytes, not {repr_of(parent)}"
            )
        root = self.root(key.namespace, bigram=key.bigram)
        digest = root if parent is None else parent
        if not start_page and digest != root:
            raise InvalidKeyError("the parent of the first page is the root of its namespace, not another digest")
        key.require_tokens(start_page * self.page_size)
        data = _token_bytes(key, start_page * self.page_size, page_count * self.page_size)
        step = self.page_size * _TOKEN_BYTES
        size = step + _TOKEN_BYTES if key.bigram else step
        if key.namespace == SHARED and self._owners:
            return self._owned(digest, key, start_page, page_count)
        found: list[bytes] = []
        for offset in range(0, (page_count - start_page) * step, step):
            digest = sha256(digest + data[offset : offset + size]).digest()
            found.append(digest)
        return found

    def _owned(self, digest: bytes, key: Key, start_page: int, page_count: int) -> list[bytes]:
        """As `digests`, of pages that are common or have an owner, whose name is hashed with each of them: servers that declare
        other namespaces have other marks.
        """
        data = _token_bytes(unmarked(key, SHARED), start_page * self.page_size, page_count * self.page_size)
        ids = np.frombuffer(key.data, np.int64)[:: key.width_bytes // _TOKEN_BYTES]
        owners: list[int] = (ids[start_page * self.page_size - key.begin :: self.page_size] >> MARK_SHIFT).tolist()
        step = self.page_size * _TOKEN_BYTES
        size = step + _TOKEN_BYTES if key.bigram else step
        found: list[bytes] = []
        for at in range(page_count - start_page):
            name = self._owners[owners[at]].encode("utf-8", "surrogatepass")
            salt = sha256(name).digest() if owners[at] else b""
            digest = sha256(digest + salt + data[at * step : at * step + size]).digest()
            found.append(digest)
        return found

    def continued(self, known: Digests, key: Key) -> Digests:
        """The chain digests of all of the key's whole pages, as `digests`, given those of the first ones.

        Args:
            key: may be the tail behind `known`.

        Cost: O(tokens behind `known`), and a copy of 32 bytes a page.
        """
        return known.followed_by(self.digests(key, start_page=len(known), parent=known[-1] if len(known) else None))


def pool_keys(chain_digests: Iterable[bytes], format_digest: bytes) -> list[bytes]:
    """The keys under which a pool stores these pages. Cost: about half a microsecond a page."""
    return [sha256(digest + format_digest).digest() for digest in chain_digests]


def _token_bytes(key: Key, begin: int, end: int) -> bytes:
    """Tokens `begin` to `end` as little-endian int64, for a bigram key one more."""
    ids = np.frombuffer(key.data, np.int64)
    begin, end = begin - key.begin, end - key.begin
    if key.bigram:
        pairs = ids.reshape(-1, 2)[begin:end]
        ids = np.concatenate((pairs[:, 0], pairs[-1:, 1]))
    else:
        ids = ids[begin:end]
    return ids.astype("<i8", copy=False).tobytes()
