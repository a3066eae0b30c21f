"""A name of a checkpoint of a model, under which its pages are stored."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def weights_version(model_path: str, label: str) -> str:
    """A name of a model's weights: the label, and a digest of the path, or of the names, sizes and ends of local files.

    Two checkpoints of one shape get different names, and a copy on another machine gets the same. Cost: reads 128 KiB a file.
    """
    digest = hashlib.sha256()
    folder = Path(model_path)
    is_local = os.path.isdir(model_path)  # False for what no path can be
    if not is_local:
        digest.update(model_path.encode("utf-8", "surrogatepass"))
    for file in sorted(folder.glob("*")) if is_local else ():
        if file.suffix in (".safetensors", ".bin", ".json", ".gguf") and file.is_file():
            size = file.stat().st_size
            digest.update(f"{file.name} {size}\n".encode("utf-8", "surrogatepass"))
            with file.open("rb") as opened:
                digest.update(opened.read(1 << 16))
                opened.seek(max(0, size - (1 << 16)), os.SEEK_SET)
                digest.update(opened.read(1 << 16))
    return f"{label}-{digest.hexdigest()[:32]}"
