"""What a page must hold: bytes that say which prefix and which component they were computed for.

A page's digest is a hash chained over the namespace and the tokens from the first one to the page's last; a component's
content is that digest mixed with a hash of its name, and numbered on from block to block where pages are longer than a
digest. So a page of another prefix, component, place in the page or time differs in nearly every byte.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Digests = NDArray[np.uint64]

DIGEST_BYTES = 64
WORDS = DIGEST_BYTES // 8
BLOCK_STEP = np.uint64(0x9E3779B97F4A7C15)


def prefix_digests(namespace: str, tokens: NDArray[np.int64], page_size: int) -> Digests:
    """The digest of every whole page's prefix, uint64 [pages + 1, 8]; the first is that of no tokens at all.

    Cost: one hash of a page's tokens a page.
    """
    digest = blake2b(namespace.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
    digests = [digest]
    data, stride = tokens.tobytes(), page_size * tokens.itemsize
    for start in range(0, len(data) - stride + 1, stride):
        digest = blake2b(digest + data[start : start + stride], digest_size=DIGEST_BYTES).digest()
        digests.append(digest)
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, WORDS)


def component_digest(name: str) -> Digests:
    """What makes a component's content its own, uint64 [8]."""
    return np.frombuffer(
        blake2b(name.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES, person=b"component").digest(), np.uint64
    )


def page_contents(digests: Digests, component: Digests, page_bytes: int) -> Bytes:
    """The content of pages with these digests, uint8 [n, page_bytes]. Cost: O(bytes)."""
    words = digests ^ component
    block_count = -(-page_bytes // DIGEST_BYTES)
    if block_count > 1:
        blocks = np.arange(block_count, dtype=np.uint64) * BLOCK_STEP
        words = (words[:, np.newaxis, :] + blocks[np.newaxis, :, np.newaxis]).reshape(len(digests), -1)
    return np.ascontiguousarray(words).view(np.uint8)[:, :page_bytes]
