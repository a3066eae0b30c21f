"""The protocol between a consensus and its message transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from unified_tree.controllers.ranks.message import Message


class Reduction(Protocol):
    """Bitwise AND over the messages of all ranks, one after the other.

    The caller guarantees: `start` and `finish` alternate, `start` first, equally often on every rank, and all messages of a
    round have one size. The reduction guarantees: `finish` ends within the time-out. After either has raised, only `close` is
    called.
    """

    @property
    def rank(self) -> int:
        """This one, from 0."""
        ...

    @property
    def ranks(self) -> int:
        """How many there are."""
        ...

    def start(self, message: Message) -> None:
        """Send a message. Never waits. Raises RankError if ranks are gone."""
        ...

    def finish(self) -> Message:
        """The AND of what all ranks sent; waits for them. Raises RankTimeoutError, and RankError if a rank is gone."""
        ...

    def close(self) -> None:
        """Abandon a pending reduction, without waiting. Idempotent."""
        ...


class SingleRankReduction:
    """The Reduction of a single rank, which never waits."""

    rank = 0
    ranks = 1

    def __init__(self) -> None:
        self._message: Message | None = None

    def start(self, message: Message) -> None:
        """See Reduction.start."""
        self._message = message

    def finish(self) -> Message:
        """See Reduction.finish."""
        assert self._message is not None, "nothing was started"
        message, self._message = self._message, None
        return message

    def close(self) -> None:
        """See Reduction.close."""
        self._message = None
