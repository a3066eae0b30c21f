"""Lanes on a GPU: side streams and events."""

from __future__ import annotations

from contextlib import AbstractContextManager

from unified_tree.controllers.tensors import torch
from unified_tree.controllers.transfer_engines.lane import Mark
from unified_tree.effect import EffectKind


class CudaMark:
    """A Mark that is an event."""

    __slots__ = ("_device", "event")

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._device = stream.device
        self.event = stream.record_event()

    def has_passed(self) -> bool:
        """See Mark.has_passed."""
        return bool(self.event.query())

    def make_caller_wait(self) -> None:
        """See Mark.make_caller_wait."""
        torch.cuda.current_stream(self._device).wait_event(self.event)

    def wait(self) -> None:
        """See Mark.wait."""
        self.event.synchronize()


class CudaLane:
    """A Lane that is a stream.

    Args:
        device: a CUDA device.
        priority: of the stream; -1 is before 0.
    """

    __slots__ = ("_stream",)

    def __init__(self, device: torch.device | str, priority: int) -> None:
        self._stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]

    def entered(self) -> AbstractContextManager[object]:
        """See Lane.entered."""
        return torch.cuda.stream(self._stream)

    def mark(self) -> CudaMark:
        """See Lane.mark."""
        return CudaMark(self._stream)

    def mark_caller(self) -> CudaMark:
        """See Lane.mark_caller."""
        return CudaMark(torch.cuda.current_stream(self._stream.device))

    def follow(self, mark: Mark) -> None:
        """See Lane.follow; the mark must be of a CUDA stream."""
        assert isinstance(mark, CudaMark)
        self._stream.wait_event(mark.event)


def cuda_lanes(device: torch.device | str) -> dict[EffectKind, CudaLane]:
    """A lane for each direction of one device. The kernels of loads are preferred to those of backups."""
    return {EffectKind.LOAD: CudaLane(device, -1), EffectKind.BACKUP: CudaLane(device, 0)}
