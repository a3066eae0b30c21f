"""Time that passes only when told to."""

from __future__ import annotations


class VirtualClock:
    """A clock in nanoseconds, starting at 0.

    >>> clock = VirtualClock()
    >>> clock.advance(250)
    >>> clock.now
    250
    """

    __slots__ = ("_now_ns",)

    def __init__(self) -> None:
        self._now_ns = 0

    @property
    def now(self) -> int:
        """Nanoseconds since the clock was made."""
        return self._now_ns

    def advance(self, duration_ns: int) -> None:
        """Let time pass; must not be negative."""
        assert duration_ns >= 0, duration_ns
        self._now_ns += duration_ns
