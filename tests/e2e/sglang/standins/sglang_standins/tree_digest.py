"""Writes a digest of the tree whenever the cache is emptied, so that the trees of several ranks can be compared.

Off unless SGLANG_TREE_DIGEST names a file; each rank writes its own, which ends in its number, counted on from stage to stage.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

VARIABLE = "SGLANG_TREE_DIGEST"


def register() -> None:
    """Wrap the method that empties the cache; SGLang calls this in each of its processes."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def wrapped(cache: Any, context: Any, *_: Any, **__: Any) -> Any:
        cache.reset = _writing(cache, f"{path}.{context.params.pp_rank * context.tp_size + context.tp_rank}")
        return cache

    HookRegistry.register("sglang.srt.mem_cache.registry.create_tree_cache", wrapped, HookType.AFTER)


def _writing(cache: Any, path: str) -> Callable[[], None]:
    reset = cache.reset

    def written() -> None:
        dump = cache.tree.dump()
        with open(path, "a") as out:
            out.write(f"{len(dump.splitlines())} nodes, sha256 {hashlib.sha256(dump.encode()).hexdigest()}\n")
        reset()

    return written
