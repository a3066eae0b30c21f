"""Lanes on a GPU: side streams and events."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from unified_tree.controllers.tensors import torch
from unified_tree.controllers.transfer_engines.cuda_engine import Mark
from unified_tree.nodes.effect import EffectKind


class CudaMark:
    """A Mark that is an event on each of some streams of one device."""

    __slots__ = ("_device", "events")

    def __init__(self, *streams: torch.cuda.Stream) -> None:
        self._device = streams[0].device
        self.events = tuple(stream.record_event() for stream in streams)

    def has_passed(self) -> bool:
        """See Mark.has_passed."""
        return all(event.query() for event in self.events)

    def make_caller_wait(self) -> None:
        """See Mark.make_caller_wait."""
        stream = torch.cuda.current_stream(self._device)
        for event in self.events:
            stream.wait_event(event)

    def wait(self) -> None:
        """See Mark.wait."""
        for event in self.events:
            event.synchronize()


class CudaLane:
    """A Lane that is a stream.

    Args:
        device: a CUDA device.
        priority: of the stream; -1 is before 0.
        fences: other streams of the caller's that use the pages; their work counts as that of its current stream.
    """

    __slots__ = ("_fences", "_stream")

    def __init__(self, device: torch.device | str, priority: int, fences: Sequence[torch.cuda.Stream] = ()) -> None:
        self._stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
        self._fences = tuple(fences)

    def entered(self) -> AbstractContextManager[object]:
        """See Lane.entered."""
        return torch.cuda.stream(self._stream)

    def mark(self) -> CudaMark:
        """See Lane.mark."""
        return CudaMark(self._stream)

    def mark_caller(self) -> CudaMark:
        """See Lane.mark_caller."""
        return CudaMark(torch.cuda.current_stream(self._stream.device), *self._fences)

    def follow(self, mark: Mark) -> None:
        """See Lane.follow; the mark must be of a CUDA stream."""
        assert isinstance(mark, CudaMark)
        for event in mark.events:
            self._stream.wait_event(event)


def cuda_lanes(device: torch.device | str, fences: Sequence[torch.cuda.Stream] = ()) -> dict[EffectKind, CudaLane]:
    """A lane for each direction of one device. The kernels of loads are preferred to those of backups.

    Args:
        fences: streams that use the pages beside the one that is current when transfers are submitted.
    """
    return {EffectKind.LOAD: CudaLane(device, -1, fences), EffectKind.BACKUP: CudaLane(device, 0, fences)}
