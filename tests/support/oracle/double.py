"""Runs modelling code in true double precision: what it asks to be fp32 (norms, softmax, scans, routers) is fp64 too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class TrueDouble(TorchFunctionMode):
    """While it is active, `torch.float32` means `torch.float64` to every torch function that takes a dtype."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        lifted = {name: _lifted(value) for name, value in (kwargs or {}).items()}
        return func(*[_lifted(value) for value in args], **lifted)


def _lifted(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
