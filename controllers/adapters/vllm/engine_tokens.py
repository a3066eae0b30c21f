"""The tokens of a request's key: its own where they say what is computed, else what stands for an image or an embedding.

A prompt with images has the same placeholder tokens for all of them, and one of embeddings has zeros. There the key has numbers
beyond every vocabulary. They follow from vLLM's name of the image, which is a hash of it, or from the embedding's bytes. So
equal prompts have equal keys, in other processes and in stores too, and a prefix may end within an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b, shake_256
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUMBER_BYTES: Final = 8
BEYOND_VOCABULARY: Final = 1 << 62
"""All numbers that stand for something else have this bit, and no sign."""


class PromptInputs(Protocol):
    """What vLLM's request says of its inputs."""

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Of the prompt and the output known so far."""
        ...

    @property
    def mm_features(self) -> Sequence[Any]:
        """Images and the like: `identifier` is a hash, `mm_position` says where it lies by `offset` and `length`."""
        ...

    @property
    def prompt_embeds(self) -> Any:
        """A tensor [tokens, hidden] in host memory; None for a prompt of tokens."""
        ...

    @property
    def prompt_is_token_ids(self) -> Sequence[bool] | None:
        """Which positions of a prompt with embeddings are tokens; None for none of them."""
        ...


def key_tokens(request: PromptInputs, begin: int, end: int) -> NDArray[np.int64]:
    """The elements of a request's key from `begin` to `end`; fewer if so many are not known. Shape [tokens].

    Cost: O(tokens); a hash of the bytes of embeddings, some milliseconds a MiB.
    """
    tokens = np.fromiter(request.all_token_ids[begin:end], np.int64)
    end = begin + tokens.size
    if request.prompt_embeds is not None and begin < len(request.prompt_embeds):
        rows = embedded(request.prompt_embeds[begin:end])
        is_token = request.prompt_is_token_ids
        own = np.zeros(rows.size, np.bool_) if is_token is None else np.array(is_token[begin : begin + rows.size], np.bool_)
        tokens[: rows.size] = np.where(own, tokens[: rows.size], rows)
    for feature in request.mm_features:
        start, stop = feature.mm_position.offset, feature.mm_position.offset + feature.mm_position.length
        first, last = max(begin, start), min(end, stop)
        if first < last:
            tokens[first - begin : last - begin] = named(feature.identifier, last - start)[first - start :]
    return tokens


def named(identifier: str, count: int) -> NDArray[np.int64]:
    """The numbers that stand for the first tokens of what has this name. Shape [count]."""
    drawn = shake_256(identifier.encode("utf-8", "surrogatepass")).digest(count * NUMBER_BYTES)
    return _numbers(drawn)


def embedded(rows: Any) -> NDArray[np.int64]:
    """The numbers that stand for embeddings, given as a tensor [tokens, hidden]. Shape [tokens]."""
    import torch

    data = rows.detach().cpu().contiguous()
    kind = str(data.dtype).encode()
    hashes = [blake2b(row.numpy(), digest_size=NUMBER_BYTES, key=kind).digest() for row in data.view(torch.uint8)]
    return _numbers(b"".join(hashes))


def _numbers(drawn: bytes) -> NDArray[np.int64]:
    found = np.frombuffer(drawn, "<u8") & np.uint64(BEYOND_VOCABULARY - 1) | np.uint64(BEYOND_VOCABULARY)
    return found.astype(np.int64)
