"""Names the rank that does not answer, while the ranks' own threads wait for it.

A rank that is stopped holds all others up in the model's next exchange, where they wait without a word; those who wait there
send the consensus nothing more, so it does not notice either. A thread in each process therefore sends the others datagrams,
and says as an error in the log from whom none comes. It watches ranks on its own machine, over the loopback interface: no port
is open to other machines, and the kernel tells when a process is gone. Heartbeats over gloo would reach further, but a receive
there that has timed out takes its connection with it, and a receive that waits cannot be taken back.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

logger = logging.getLogger(__name__)

BEAT = Struct("<?Q")
"""A datagram: whether its sender closes, and how many messages it has sent to the consensus."""
LONGEST_PERIOD_S = 1.0
"""Between two datagrams; time-outs of less than four seconds have shorter ones."""
UNCERTAIN_BEATS = 2
"""A rank from which so many are missing may still answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a rank can be reached.

    Attributes:
        host: the machine's name.
        process: its process id.
        ports: of its sockets, one for each rank.
    """

    host: str
    process: int
    ports: tuple[int, ...]


class Peer:
    """What a watch knows of another rank.

    Args:
        rank: its number.
        process: its process id.
        link: a socket connected with one of its own.
        life: a file descriptor that can be read from when the process has ended; None where there is no such thing.
    """

    def __init__(self, rank: int, process: int, link: socket.socket, life: int | None) -> None:
        self.name = f"rank {rank} (process {process})"
        self.process = process
        self.link = link
        self.life = life
        self.sent = 0
        self.unanswered = self.behind = 0
        self.was_heard = self.is_told = False

    def close(self) -> None:
        """Forget the rank."""
        self.link.close()
        if self.life is not None:
            os.close(self.life)


def life_of(process: int) -> int | None:
    """A file descriptor that can be read from when a process has ended; None if the system has none, or no such process."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):  # Linux alone has it
        return None


class RankWatch:
    """Watches the other ranks on this machine, from a thread of its own; `close` ends it.

    The log gets an error for a rank that dies, that is silent for the time-out, or that answers but has for the time-out sent
    the consensus fewer messages than this one; a warning if it comes back. Nothing else follows: a consensus has time-outs of
    its own, and adds what the watch knows to its errors. Ranks that were never heard are not watched.

    Attributes:
        sent: messages that this rank has sent to the consensus; the consensus counts them.

    Args:
        rank: this one.
        ranks: how many there are.
        exchange: takes this rank's seat and returns those of all, in the order of ranks; every rank calls it.
        timeout_s: how long a rank may be silent: longer than any of its threads keeps Python's lock.
    """

    def __init__(self, rank: int, ranks: int, exchange: Callable[[Seat], list[Seat]], *, timeout_s: float = 30.0) -> None:
        if not 0.001 <= timeout_s <= 86_400:
            raise ConfigurationError(f"timeout_s must be from a millisecond to a day, not {repr_of(timeout_s)}")
        self.sent = 0
        self._period_s = min(LONGEST_PERIOD_S, timeout_s / 4)
        self._beats = round(timeout_s / self._period_s)
        self._is_closing = False
        links = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(ranks)]
        for link in links:
            link.bind(("127.0.0.1", 0))
            link.setblocking(False)
        ports = tuple(link.getsockname()[1] for link in links)
        own = Seat(host=socket.gethostname(), process=os.getpid(), ports=ports)
        self._peers: list[Peer] = []
        self._own = links[rank]  # connected with itself, it ends the thread's wait
        self._selector = selectors.DefaultSelector()
        for other, (seat, link) in enumerate(zip(exchange(own), links, strict=True)):
            if seat.host != own.host:
                link.close()
                continue
            link.connect(("127.0.0.1", seat.ports[rank]))
            if other == rank:
                self._selector.register(link, selectors.EVENT_READ)
                continue
            peer = Peer(other, seat.process, link, life_of(seat.process))
            self._peers.append(peer)
            for source in (link, peer.life):
                if source is not None:
                    self._selector.register(source, selectors.EVENT_READ, peer)
        self._thread = Thread(target=self._run, name="unified-tree-rank-watch", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, group: ProcessGroup, *, timeout_s: float = 30.0) -> RankWatch:
        """The watch over a process group of `torch.distributed` for CPU tensors; returns when all ranks have made theirs."""
        from torch.distributed import all_gather_object

        def exchange(own: Seat) -> list[Seat]:
            seats: list[Any] = [None] * group.size()
            all_gather_object(seats, own, group=group)
            return seats

        return cls(group.rank(), group.size(), exchange, timeout_s=timeout_s)

    def late(self) -> str:
        """What is known of ranks that have been late for some beats; empty if nothing is."""
        told = [(peer.name, self._trouble(peer, UNCERTAIN_BEATS + 1)) for peer in list(self._peers)]
        return "; ".join(f"{name} {trouble}" for name, trouble in told if trouble)

    def close(self) -> None:
        """Tell the others that this rank goes, and end the thread. Idempotent."""
        self._is_closing = True
        with suppress(OSError):  # closed before
            self._own.send(b"")
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._beat()
                self._listen()
        finally:
            for peer in self._peers:
                with suppress(OSError):
                    peer.link.send(BEAT.pack(True, self.sent))
                peer.close()
            self._own.close()
            self._selector.close()

    def _beat(self) -> None:
        """Counts the beats of this thread, not the time: who was stopped itself has missed nothing."""
        for peer in list(self._peers):
            trouble = self._trouble(peer, self._beats)
            if trouble and not peer.is_told:
                peer.is_told = True
                logger.error(
                    "%s %s. The other ranks wait for it. Start all of them anew together; or, if somebody has stopped this "
                    "one, `kill -CONT %d` lets it go on",
                    peer.name,
                    trouble,
                    peer.process,
                )
            peer.unanswered += 1
            peer.behind = peer.behind + 1 if peer.sent < self.sent else 0
            try:
                peer.link.send(BEAT.pack(False, self.sent))
            except ConnectionError:
                self._gone(peer)
            except OSError:  # a stopped process reads nothing, so that no more fits
                pass

    def _trouble(self, peer: Peer, beats: int) -> str:
        """What is wrong with a rank for so many beats; empty if nothing is."""
        if not peer.was_heard:
            return ""
        if peer.unanswered >= beats:
            return f"has not answered for {peer.unanswered * self._period_s:.1f} s: it is stopped, or hangs"
        if peer.behind >= beats and peer.unanswered <= UNCERTAIN_BEATS:
            late_s = peer.behind * self._period_s
            return f"answers, but for {late_s:.1f} s it has sent {peer.sent} messages, and this rank {self.sent}"
        return ""

    def _listen(self) -> None:
        end = monotonic() + self._period_s
        while not self._is_closing and (left := end - monotonic()) > 0:
            for ready, _ in self._selector.select(left):
                peer = ready.data
                if peer not in self._peers:  # this rank's own end, or a rank forgotten just now
                    continue
                if ready.fileobj == peer.life:
                    self._gone(peer)
                else:
                    self._hear(peer)

    def _hear(self, peer: Peer) -> None:
        try:
            is_closing, sent = BEAT.unpack(peer.link.recv(BEAT.size))
        except ConnectionError:
            self._gone(peer)
            return
        except OSError:  # nothing came after all
            return
        if is_closing:
            self._forget(peer)
            return
        if sent != peer.sent:
            peer.sent, peer.behind = sent, 0
        peer.unanswered, peer.was_heard = 0, True
        if peer.is_told and not self._trouble(peer, self._beats):
            peer.is_told = False
            logger.warning("%s answers again", peer.name)

    def _gone(self, peer: Peer) -> None:
        """The process has ended, or its port is closed. It has died, unless what came last from it says that it closes."""
        is_closing = False
        with suppress(OSError):
            while True:
                is_closing, _ = BEAT.unpack(peer.link.recv(BEAT.size))
        if peer.was_heard and not is_closing:
            logger.error("%s has died: the other ranks cannot go on without it. Start all of them anew together", peer.name)
        self._forget(peer)

    def _forget(self, peer: Peer) -> None:
        for source in (peer.link, peer.life):
            if source is not None:
                self._selector.unregister(source)
        peer.close()
        self._peers.remove(peer)
