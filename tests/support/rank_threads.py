"""Ranks that are threads of this process: their messages meet in a dictionary, and time passes when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import Any, TypeVar

import numpy as np
from waiting import PATIENCE_S

from unified_tree.controllers.ranks import Consensus, MessageShape, TickedConsensus
from unified_tree.controllers.ranks.message import Message
from unified_tree.terms.errors import RankError, RankTimeoutError

T = TypeVar("T")


def reduce_messages(messages: Sequence[Message]) -> Message:
    """What becomes of the messages of all ranks: their bitwise AND."""
    reduced: Message = np.bitwise_and.reduce([np.frombuffer(message, np.uint8) for message in messages]).tobytes()
    return reduced


class RankThreads:
    """Where the messages of `ranks` threads meet, turn by turn.

    Attributes:
        late: ranks whose messages the others do not wait for: a time-out that has passed.
        sizes: of all messages, in the order they were sent.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.late: set[int] = set()
        self.closed: set[int] = set()
        self.turns: dict[int, dict[int, Message]] = {}
        self.sizes: list[int] = []
        self.changed = Condition()

    def reduction(self, rank: int) -> ThreadReduction:
        """The end of one rank."""
        return ThreadReduction(self, rank)

    def run(self, script: Callable[..., T], shape: MessageShape | None = None, **given: Any) -> list[T]:
        """Call a script with every rank's consensus and number, each in a thread; what they return, by rank."""

        def one(rank: int) -> T:
            consensus: Consensus = TickedConsensus(shape or MessageShape(), self.reduction(rank))
            try:
                return script(consensus, rank, **given)
            finally:
                consensus.close()

        with ThreadPoolExecutor(self.ranks) as pool:
            return [future.result(PATIENCE_S) for future in [pool.submit(one, rank) for rank in range(self.ranks)]]


class ThreadReduction:
    """A Reduction, see there."""

    def __init__(self, meeting: RankThreads, rank: int) -> None:
        self.rank = rank
        self.ranks = meeting.ranks
        self._meeting = meeting
        self._turn = -1

    def start(self, message: Message) -> None:
        """See Reduction.start."""
        self._turn += 1
        with self._meeting.changed:
            self._meeting.turns.setdefault(self._turn, {})[self.rank] = message
            self._meeting.sizes.append(len(message))
            self._meeting.changed.notify_all()

    def finish(self) -> Message:
        """See Reduction.finish."""
        meeting = self._meeting
        sent = meeting.turns[self._turn]
        with meeting.changed:
            while len(sent) < self.ranks:
                missing = set(range(self.ranks)) - set(sent)
                if missing & meeting.late:
                    raise RankTimeoutError(f"rank {self.rank} waited in vain for {missing}")
                if missing & meeting.closed:
                    raise RankError(f"rank {self.rank} lost {missing}")
                assert meeting.changed.wait(PATIENCE_S), f"rank {self.rank} hangs in turn {self._turn}, waiting for {missing}"
        return reduce_messages(list(sent.values()))

    def close(self) -> None:
        """See Reduction.close."""
        with self._meeting.changed:
            self._meeting.closed.add(self.rank)
            self._meeting.changed.notify_all()
