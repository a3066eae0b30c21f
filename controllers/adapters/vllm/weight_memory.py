"""A digest of the model's weights, by which a worker tells that they stayed the same while vLLM slept.

Connectors do not see the model. vLLM's sleep mode has an allocator that knows the memory of the weights. The digest is that of
all allocations with this tag: whatever changes or replaces a weight in them changes it.

Rejected: vLLM's weight version, a name that its user sets after an update. A forgotten call would mean wrong outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import torch

CHUNK_WORDS = 1 << 20
SEED = 0x5EED


def weights_digest(allocator: Any) -> bytes | None:
    """The digest of this worker's weights, of which vLLM's allocator for its sleep mode knows the memory; None if it has none.

    Cost: a pass over the weights.
    """
    weights = sorted((pointer, each.handle) for pointer, each in allocator.pointer_to_data.items() if each.tag == "weights")
    return digest_of(_words(pointer, handle[1], handle[0]) for pointer, handle in weights) if weights else None


def digest_of(memory: Iterable[torch.Tensor]) -> bytes:
    """A digest of tensors of 32-bit words, computed where they are.

    Of each chunk it takes the sum of the words times fixed random 64-bit numbers, modulo 2**64. A chunk that changed has the
    same sum with a probability of at most 2**-32.
    """
    digest, factors = sha256(), dict[torch.device, torch.Tensor]()
    for words in memory:
        if words.device not in factors:
            generator = torch.Generator().manual_seed(SEED)
            numbers = torch.randint(-(1 << 63), (1 << 63) - 1, (CHUNK_WORDS,), dtype=torch.int64, generator=generator)
            factors[words.device] = numbers.to(words.device)
        of_device = factors[words.device]
        chunks = (words[begin : begin + CHUNK_WORDS] for begin in range(0, len(words), CHUNK_WORDS))
        sums = [(chunk.to(torch.int64) * of_device[: len(chunk)]).sum() for chunk in chunks]
        digest.update(len(words).to_bytes(8, "little"))
        digest.update(torch.stack(sums).cpu().numpy().tobytes())
    return digest.digest()


def _words(pointer: int, size_bytes: int, device: int) -> torch.Tensor:
    """Memory of a GPU as a tensor that does not own it."""
    described = {"shape": (size_bytes // 4,), "typestr": "<i4", "data": (pointer, False), "version": 3}
    holder = type("Words", (), {"__cuda_array_interface__": described})
    return torch.as_tensor(holder(), device=f"cuda:{device}")
