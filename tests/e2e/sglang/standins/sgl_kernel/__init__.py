"""An import stand-in: sgl-kernel is published for CUDA only, and SGLang imports it on a CPU too.

The operators that Qwen3-Next calls on a CPU are in `mamba`, those of EAGLE in `speculative`; every other name can be imported,
and raises when it is called.
"""

from __future__ import annotations

from collections.abc import Callable

from sgl_kernel import speculative


def __getattr__(name: str) -> Callable[..., None]:
    if name.startswith("__"):
        raise AttributeError(name)
    if hasattr(speculative, name):
        found: Callable[..., None] = getattr(speculative, name)
        return found

    def absent(*_: object, **__: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU build and no stand-in")

    return absent
