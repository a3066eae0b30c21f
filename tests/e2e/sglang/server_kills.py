"""Ends one of two servers, by SIGKILL, while what one sends the other is under way, and starts it again."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

ROLES = ("prefill", "decode")


class Kills:
    """Of a mix that is served in groups of requests, each by both servers.

    The rest of a group is lost with the server. For the other one each transfer of the group that has not ended fails then, as
    a transport tells that finds its peer gone. The server that was started again begins with the next group.

    Args:
        rooms: the folder that both servers share, as `file_transfer` has it.
        start: starts a server in a role, at the first request of a group; returns the leader of its processes.
        first: the first request of each group.
        count: how many kills there are to be.
        ranks: of each server.
        lasts_s: how long a transfer takes at most.
        seed: of the moments.

    Attributes:
        done: the role and the group of each kill, and how many of its transfers were under way.
        ended: the roles of servers that ended by themselves while there was still something to do.
    """

    def __init__(
        self,
        rooms: Path,
        start: Callable[[str, int], int],
        first: list[int],
        count: int,
        *,
        ranks: int,
        lasts_s: float,
        seed: int,
    ) -> None:
        self._rooms, self._start, self._first = rooms, start, first
        self._ranks, self._lasts_s = ranks, lasts_s
        self._draw = random.Random(seed)
        self._count = count
        self._leaders: dict[str, int] = {}
        self.done: list[tuple[str, int, int]] = []
        self.ended: list[str] = []

    def run(self) -> None:
        """Start both servers, kill, and wait for their end."""
        self._leaders = {role: self._start(role, self._first[0]) for role in ROLES}
        spared = len(self._first) - 1
        for index in range(spared):
            left = self._count - len(self.done)
            if left and self._draw.random() < left / (spared - index) and self._wait_for_transfers(index):
                time.sleep(self._draw.random() * self._lasts_s)
                self._kill(self._draw.choice(ROLES), index)
            elif self.ended:
                break
        for leader in self._leaders.values():
            if self.ended:  # the other one would wait for it
                os.killpg(leader, signal.SIGKILL)
            os.waitpid(leader, 0)

    def _rooms_of(self, index: int) -> list[Path]:
        """The folders of a group's requests."""
        numbers = range(self._first[index], self._first[index + 1])
        return [self._rooms / f"{number + 1}.{rank}" for number in numbers for rank in range(self._ranks)]

    def _under_way(self, index: int) -> list[Path]:
        """Those whose transfer was asked for and has not ended."""
        ends = ("last", "aborted")
        return [
            room for room in self._rooms_of(index) if (room / "ask").exists() and not any((room / e).exists() for e in ends)
        ]

    def _have_ended(self, index: int) -> bool:
        """Whether both servers have ended a group."""
        return all((self._rooms / f"{role}.{self._first[index]}").exists() for role in ROLES)

    def _wait_for_transfers(self, index: int) -> bool:
        """Wait until both servers have begun the group and a transfer is under way; False if it has ended, or a server has."""
        while not (index == 0 or self._have_ended(index - 1)) or not self._under_way(index):
            if self._have_ended(index):
                return False
            for role, leader in list(self._leaders.items()):
                if os.waitpid(leader, os.WNOHANG) != (0, 0):
                    self.ended.append(role)
                    del self._leaders[role]
            if self.ended:
                return False
            time.sleep(0.002)
        return True

    def _kill(self, role: str, index: int) -> None:
        """Kill it, unless it has ended the group: it may have begun the next one then, of which no request is to be in two of
        its lives."""
        leader, mark = self._leaders[role], self._rooms / f"{role}.{self._first[index]}"
        os.killpg(leader, signal.SIGSTOP)
        if mark.exists():
            os.killpg(leader, signal.SIGCONT)
            return
        count = len(self._under_way(index))
        os.killpg(leader, signal.SIGKILL)
        os.waitpid(leader, 0)
        for room in self._rooms_of(index):
            room.mkdir(exist_ok=True)
            if not (room / "last").exists():
                (room / "aborted").touch()
        mark.touch()
        self.done.append((role, self._first[index], count))
        print(f"{role} killed in the group of {self._first[index]}, {count} transfers under way", flush=True)
        self._leaders[role] = self._start(role, self._first[index + 1])
