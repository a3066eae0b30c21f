"""Runs modelling code in true double precision: what it asks to be fp32 (norms, softmax, scans, routers) is fp64 too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

SINGLE = torch.float32


class TrueDouble(TorchFunctionMode):
    """While it is active, `torch.float32` means `torch.float64` to every torch function that takes a dtype."""

    is_active = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        for value in args:  # called half a million times a mix
            if value is SINGLE:
                args = [_lifted(value) for value in args]
                break
        return func(*args, **{name: _lifted(value) for name, value in kwargs.items()}) if kwargs else func(*args)


@contextmanager
def true_double() -> Iterator[None]:
    """The mode, once: within itself it would look at every call twice."""
    if TrueDouble.is_active:
        yield
        return
    TrueDouble.is_active = True
    try:
        with TrueDouble():
            yield
    finally:
        TrueDouble.is_active = False


def _lifted(value: Any) -> Any:
    return torch.float64 if value is SINGLE else value
