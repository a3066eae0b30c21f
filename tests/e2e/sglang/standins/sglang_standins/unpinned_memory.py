"""Lets SGLang's LoRA run without an accelerator: what asks for pinned memory gets ordinary memory.

Off unless SGLANG_UNPINNED_MEMORY is set. SGLang has a back end of LoRA in torch, but pins its small tables wherever it runs,
which torch refuses where there is no accelerator.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

VARIABLE = "SGLANG_UNPINNED_MEMORY"
MAKERS = ("tensor", "empty", "zeros", "ones", "arange")


def unpinned(make: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes a tensor, and takes no notice of `pin_memory`."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs)

    return made


def register() -> None:
    """Replace torch's functions; SGLang calls this in each of its processes."""
    if not os.environ.get(VARIABLE):
        return
    for name in MAKERS:
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda tensor: tensor  # type: ignore[method-assign, misc, assignment]
