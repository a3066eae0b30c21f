"""An import stand-in: sgl-kernel is published for CUDA only, and SGLang imports it on a CPU too.

The operators that Qwen3-Next calls on a CPU are in `mamba`, those of EAGLE in `speculative`, copies between a GPU and host
memory in `kvcacheio`; every other name, of any submodule, can be imported, and raises when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from sgl_kernel import speculative


class Absent:
    """What stands for an operator that has no stand-in: it can be named, and so can what it holds, but not called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Absent:
        return absent(self._name, name)

    def __call__(self, *_: object, **__: object) -> None:
        raise NotImplementedError(f"{self._name} has no build here and no stand-in")


def absent(module: str, name: str) -> Absent:
    """What stands for a name of a module. Raises AttributeError for those that Python asks for itself."""
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent(f"{module}.{name}")


class _Names(ModuleType):
    def __getattr__(self, name: str) -> Absent:
        return absent(self.__name__, name)


class _Submodules(MetaPathFinder, Loader):
    """Finds the submodules for which there is no file; it is asked last."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        del path, target
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith("sgl_kernel.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        del module


sys.meta_path.append(_Submodules())


def __getattr__(name: str) -> Absent | Callable[..., None]:
    if not name.startswith("__") and hasattr(speculative, name):
        found: Callable[..., None] = getattr(speculative, name)
        return found
    return absent("sgl_kernel", name)
