"""An import stand-in: SGLang imports torchvision's image transforms at the top of modules that text models never call.

PyPI has no CPU build of torchvision that matches the CPU build of torch. Every submodule imports, every name is a class that
refuses to be called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__version__ = "0.0.0"


class _Members(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class Absent(metaclass=_Members):
    """What stands for every name of torchvision: it can be imported and subclassed, never made; its members are their names."""

    def __init__(self, *_: object, **__: object) -> None:
        raise NotImplementedError("torchvision is a stand-in here: this engine serves text models only")


class _Names(ModuleType):
    def __getattr__(self, name: str) -> type[Absent]:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent


class _Submodules(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        del path, target
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith("torchvision.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        del module


sys.meta_path.append(_Submodules())


def __getattr__(name: str) -> type[Absent]:
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent
