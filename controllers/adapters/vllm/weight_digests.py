"""Names of the weights that vLLM computes with: of LoRA adapters by their files, of the model by a digest of its memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import torch

from unified_tree.controllers.storage_tier.store_settings import weights_version

Files = tuple[tuple[str, int, int], ...]
"""Names, sizes and times of change, in ns."""


class LoraFiles:
    """The adapters that requests have named, since vLLM started."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int, str], tuple[Files, str]] = {}

    def version(self, lora: Any) -> str | None:
        """A name of an adapter's weights, the same in every process; "" for one whose files are not in a local folder.

        None if the connector has to leave its requests alone: the weights were replaced in place, the files cannot be read, or
        they have changed since a request named the adapter first, and vLLM may have loaded either. Cost: a stat a file, and
        once for each adapter 128 KiB read of each file.
        """
        if lora.load_inplace:
            return None
        if not os.path.isdir(lora.lora_path):
            return ""
        known = (lora.lora_name, lora.lora_int_id, lora.lora_path)
        try:
            files = _files(lora.lora_path)
            if known not in self._seen:
                layout = "3d" if lora.is_3d_lora_weight else "2d"
                self._seen[known] = files, weights_version(lora.lora_path, layout)
        except OSError:  # they are being replaced, or cannot be read
            return None
        before, version = self._seen[known]
        return version if files == before else None


def _files(folder: str) -> Files:
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
    return tuple(sorted((name, at.st_size, at.st_mtime_ns) for name, at in found))


CHUNK_WORDS = 1 << 20
SEED = 0x5EED


def weights_digest(allocator: Any) -> bytes | None:
    """The digest of this worker's weights, of which vLLM's allocator for its sleep mode knows the memory; None if it has none.

    By it a worker tells that the weights stayed the same while vLLM slept: connectors do not see the model. It is that of all
    allocations with the tag of the weights: whatever changes or replaces a weight in them changes it. Rejected: vLLM's weight
    version, a name that its user sets after an update. A forgotten call would mean wrong outputs.

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
