"""Which weights the LoRA adapters of vLLM's requests have, known by their files."""

from __future__ import annotations

import os
from typing import Any

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
