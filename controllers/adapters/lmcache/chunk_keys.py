"""LMCache's keys of chunks, by SHA-256.

LMCache hashes tokens with Python's `hash` where no serving engine is installed: no digest, and another in each process. Its
engine takes any token database, and its own one makes keys of any hashes; so this hashes, and that makes the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class ChunkKeys:
    """A token database of an LMCache engine.

    Args:
        keys: LMCache's `ChunkedTokenDatabase`.
        chunk_tokens: of every chunk.
    """

    def __init__(self, keys: Any, chunk_tokens: int) -> None:
        self._keys = keys
        self._chunk_tokens = chunk_tokens

    def process_tokens(
        self,
        tokens: list[int],
        hashes: None = None,
        offsets: None = None,
        mask: torch.Tensor | None = None,
        make_key: bool = True,
        request_configs: dict[str, str] | None = None,
    ) -> Iterator[tuple[int, int, Any]]:
        """(begin, end, key) of every whole chunk that the mask holds. Cost: O(tokens)."""
        assert hashes is None and offsets is None, "prefixes are known by their tokens"
        digests = list(self._digests(tokens))
        first = 0 if mask is None else mask.numel() - int(mask.sum())
        for begin, end, key in self._keys.process_tokens(
            hashes=digests, offsets=[self._chunk_tokens] * len(digests), make_key=make_key, request_configs=request_configs
        ):
            if begin >= first:
                yield begin, end, key

    def _digests(self, tokens: list[int]) -> Iterator[int]:
        digest = 0
        for end in range(self._chunk_tokens, len(tokens) + 1, self._chunk_tokens):
            chunk = tuple(tokens[end - self._chunk_tokens : end])
            digest = int.from_bytes(sha256(repr((digest, chunk, ())).encode()).digest(), "big")
            yield digest
