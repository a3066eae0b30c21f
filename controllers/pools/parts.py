"""What a memory shows of its pages: for each part, rows of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from unified_tree.controllers.tensors import torch

if TYPE_CHECKING:
    Part: TypeAlias = torch.Tensor | Sequence[torch.Tensor]
    """[layer, page, slot, word], in one tensor or one a layer, [1, page, slot, word]; the words of a row lie side by side."""
    Parts: TypeAlias = Sequence[Part]
    """All have the same layers."""

ALL = slice(None)
"""Layers."""


def by_layer(part: Part, layers: slice = ALL) -> list[torch.Tensor]:
    """Some layers of a part, each [1, page, slot, word]."""
    if isinstance(part, torch.Tensor):
        return [part[index : index + 1] for index in range(*layers.indices(len(part)))]
    return list(part[layers])


def chosen(device: Parts, host: Parts, layers: slice) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Some layers of all parts on both sides, in as few tensors as there are: [layer, page, slot, word]."""
    of_device: list[torch.Tensor] = []
    of_host: list[torch.Tensor] = []
    for one, other in zip(device, host, strict=True):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            of_device.append(one[layers])
            of_host.append(other[layers])
        else:
            of_device += by_layer(one, layers)
            of_host += by_layer(other, layers)
    return of_device, of_host


def device_of(parts: Parts) -> torch.device:
    """Where they lie."""
    return by_layer(parts[0])[0].device
