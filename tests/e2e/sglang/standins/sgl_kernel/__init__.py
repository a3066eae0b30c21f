"""An import stand-in: sgl-kernel is published for CUDA only, and SGLang imports it on a CPU too.

The operators that Qwen3-Next calls on a CPU are in `mamba`; every other name can be imported and raises when it is called.
"""

from __future__ import annotations

from collections.abc import Callable


def __getattr__(name: str) -> Callable[..., None]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_: object, **__: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU build and no stand-in")

    return absent
