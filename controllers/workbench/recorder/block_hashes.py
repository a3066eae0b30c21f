"""Hashes of token blocks, each of which depends on all tokens before it.

A chain: the digest of a block is BLAKE2b of the digest before it and the block's tokens as int64, beginning with the namespace.
An id is 63 bits of a digest, so that equal ids are equal prefixes (of a billion blocks two differ and have one id with a
chance of 5 %). The chain itself has 128 bits: what follows such a pair has other ids again.

Without a salt, whoever knows a prompt can find out that it is in a trace. With a salt the hashes are keyed (RFC 7693), and
only traces with the same salt have ids in common.

The alternative, dense numbers by a dictionary of what was seen, makes shorter lines, but its memory grows for as long as it
records, and the files of two recorders have nothing in common.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from hashlib import blake2b
from time import sleep
from typing import TYPE_CHECKING, Any

from unified_tree.inputs.arguments import integer
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_BLOCK_TOKENS = 64
TOKEN_BYTES = 8
DIGEST_BYTES = 16
MAX_BLOCK_TOKENS = 1 << 20
BLOCKS_A_TURN = 128
"""Hashing holds the interpreter for no longer. So a scheduler's step in another thread does not wait for a whole prompt, or for
the 5 ms that the interpreter leaves a thread by default."""


def token_bytes(tokens: Iterable[int]) -> bytes:
    """Token ids as native int64. Raises OverflowError or TypeError for what is no int64, ValueError for a negative id."""
    ids = array("q", tokens)
    if ids and min(ids) < 0:
        raise ValueError(f"a token id must be zero or more, not {min(ids)}")
    return ids.tobytes()


@dataclass(frozen=True, slots=True)
class Chain:
    """The end of a hashed prefix, from which it can be continued.

    Attributes:
        digest: of its whole blocks.
        rest: the tokens behind them, as bytes; less than a block.
    """

    digest: bytes
    rest: bytes = b""


class BlockHasher:
    """Hashes prompts.

    Args:
        block_tokens: tokens in a block.
        salt: of the hashes; empty for none.

    Raises ConfigurationError for a block size below 1 or above 2**20.

    >>> hasher = BlockHasher(2)
    >>> first, second = hasher.ids(token_bytes([1, 2, 3, 4, 5])), hasher.ids(token_bytes([1, 2, 9, 4]))
    >>> len(first), first[0] == second[0], first[1] == second[1]
    (2, True, False)
    """

    def __init__(self, block_tokens: int | Any = DEFAULT_BLOCK_TOKENS, salt: bytes = b"") -> None:
        self.block_tokens = integer(block_tokens, "block_tokens", ConfigurationError, minimum=1)
        if self.block_tokens > MAX_BLOCK_TOKENS:
            raise ConfigurationError(f"block_tokens must be {MAX_BLOCK_TOKENS} or less, not {self.block_tokens}")
        self._block_bytes = self.block_tokens * TOKEN_BYTES
        key = blake2b(salt).digest() if salt else b""  # a key has 64 bytes at most
        self._empty = blake2b(digest_size=DIGEST_BYTES, key=key, person=b"unified_tree")

    def begin(self, namespace: str = "") -> Chain:
        """The empty prefix of a namespace."""
        hashed = self._empty.copy()
        hashed.update(namespace.encode("utf-8", "surrogatepass"))
        return Chain(hashed.digest())

    def extend(self, chain: Chain, tokens: bytes | memoryview) -> tuple[Chain, list[int]]:
        """The chain with these tokens behind it, and the ids of the blocks that they complete.

        Args:
            tokens: native int64, as of `token_bytes` or `Key.data`.

        Cost: 1 to 1.5 µs for a block of 64 tokens. After each 128 blocks other threads get their turn.
        """
        size = self._block_bytes
        data = memoryview(chain.rest + tokens if chain.rest else tokens)
        whole = len(data) // size * size
        digest, empty = chain.digest, self._empty
        ids: list[int] = []
        for begin in range(0, whole, size):
            if len(ids) % BLOCKS_A_TURN == BLOCKS_A_TURN - 1:
                sleep(0)
            hashed = empty.copy()
            hashed.update(digest)
            hashed.update(data[begin : begin + size])
            digest = hashed.digest()
            ids.append(int.from_bytes(digest[:8], "big") >> 1)
        return Chain(digest, bytes(data[whole:])), ids

    def ids(self, tokens: bytes | memoryview, namespace: str = "") -> list[int]:
        """The ids of a prompt's whole blocks, each below 2**63. Cost: as `extend`."""
        return self.extend(self.begin(namespace), tokens)[1]
