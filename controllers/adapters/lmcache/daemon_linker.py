"""A prefix linker over an LMCache daemon on this machine, which maps the device pools and copies on its own.

A lookup locks chunks at the daemon; a retrieve consumes the locks of what it reads, and `release` frees the others. A heartbeat
thread checks the daemon. While it does not answer, no requests are sent, and running transfers stay RUNNING: the daemon may be
frozen, and write later. If the connection breaks, the daemon has ended, and running transfers have failed. The pools are
registered anew with the next daemon at the same address.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.adapters.lmcache.daemon_session import DaemonSession, DaemonWatch, no_answer
from unified_tree.controllers.adapters.lmcache.lmcache_settings import LmcacheSettings
from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool
from unified_tree.controllers.prefix_linker.prefix_linker import Progress, Span, check_span
from unified_tree.controllers.storage.engine_settings import load_settings
from unified_tree.terms.errors import LinkError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def open_daemon(pools: Sequence[LinkedPool], *, config_file: str | FilePath | None = None, **settings: Any) -> DaemonLinker:
    """A linker with the settings of `LmcacheSettings`, from here, a file, or the environment (`load_settings`).

    Raises as `DaemonLinker`, and ConfigurationError for settings. What killed clients have left in shared memory stays there
    until the program calls `remove_leftovers`.
    """
    return DaemonLinker(pools, load_settings(LmcacheSettings, "lmcache", settings, file=config_file))


class DaemonLinker:
    """A PrefixLinker over one daemon.

    Args:
        pools: the device pools, all of one page size; those of a CPU moved by `share_pools` before.
        settings: where, and how long to wait.

    Attributes:
        last_error: why the last attempt to reconnect to the daemon failed; "" if none did.

    Raises ConfigurationError for pools or a daemon that do not fit, or without the package; LinkError where none answers.
    """

    def __init__(self, pools: Sequence[LinkedPool], settings: LmcacheSettings) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._page_tokens = pools[0].page_tokens
        self._paths_only = all(pool.coverage.is_path for pool in pools)
        self._settings = settings
        self._tag = secrets.token_hex(8)
        self._lookups: dict[str, _Lookup] = {}
        self._leaving: list[_Lookup] = []
        self._transfers: dict[str, _Transfer] = {}
        self._lost: list[DaemonSession] = []
        self._watch = DaemonWatch(settings.daemon)
        try:
            self._session = self._open()
        except BaseException:
            self._watch.close()
            raise
        self._chunk_tokens = self._session.chunk_tokens
        self._answers = True
        self.last_error = ""
        self._is_closed = False
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="lmcache-heartbeat", daemon=True)
        self._heart.start()

    @property
    def chunk_tokens(self) -> int:
        """See PrefixLinker.chunk_tokens."""
        return self._chunk_tokens

    @property
    def is_healthy(self) -> bool:
        """See PrefixLinker.is_healthy; as of the last heartbeat, or of the connection's break."""
        return self._is_there(self._session)

    def lookup(self, request: str, tokens: NDArray[np.int64], salt: str) -> None:
        """See PrefixLinker.lookup."""
        self._check_open()
        assert request not in self._lookups, f"{request!r} was used before"
        self._sweep()
        end = _hashable(tokens) // self._chunk_tokens * self._chunk_tokens
        name = f"{self._tag}-{request}"
        session = self._session
        lookup = self._lookups[request] = _Lookup(name, tuple(tokens[:end].tolist()), salt, session, time.monotonic())
        if not end or not self._is_there(session):
            lookup.found = 0
            return
        lookup.asked = session.client.lookup(lookup.key(0, end), 1)

    def found(self, request: str) -> int | None:
        """See PrefixLinker.found; 0 also where the daemon takes longer than `answer_timeout_s`; its locks go later."""
        self._check_open()
        lookup = self._lookups[request]
        late = time.monotonic() - lookup.since > self._settings.answer_timeout_s
        if lookup.found is None and (late or not self._is_there(lookup.session)):
            lookup.is_abandoned = True
            lookup.found = 0
        if lookup.found is None:
            lookup.found = lookup.answer(self._chunk_tokens)
        return lookup.found

    def retrieve(self, request: str, span: Span) -> None:
        """See PrefixLinker.retrieve."""
        self._check_open()
        check_span(span, self._chunk_tokens, self._page_tokens, self._pools)
        lookup = self._lookups[request]
        assert lookup.found is not None and span.end <= lookup.found and lookup.taken is None, "not found, or taken before"
        assert span.end == lookup.found or self._paths_only, "a window or a state was found at its length alone"
        if not self._is_there(lookup.session):
            self._transfers[request] = _Transfer(lookup.session, None)
            return
        lookup.taken = (span.first_token(self._chunk_tokens), span.end)
        self._transfers[request] = _Transfer(lookup.session, lookup.session.retrieve(lookup.name, span))

    def store(self, name: str, span: Span) -> None:
        """See PrefixLinker.store."""
        self._check_open()
        check_span(span, self._chunk_tokens, self._page_tokens, self._pools)
        assert span.begin % self._chunk_tokens == 0 and name not in self._transfers
        session = self._session
        is_sent = self._is_there(session) and _hashable(span.tokens) >= span.end
        future = session.store(f"{self._tag}-{name}", span) if is_sent else None
        self._transfers[name] = _Transfer(session, future)

    def progress(self, name: str) -> Progress:
        """See PrefixLinker.progress."""
        self._check_open()
        return self._progress(self._transfers[name])

    def release(self, name: str) -> None:
        """See PrefixLinker.release."""
        transfer = self._transfers.get(name)
        if transfer is not None and self._progress(transfer) is Progress.RUNNING:
            raise LinkError(f"lmcache: the transfer of {name!r} runs, so it cannot be released")
        self._transfers.pop(name, None)
        lookup = self._lookups.pop(name, None)
        if lookup is not None:
            self._leaving.append(lookup)
        self._sweep()

    def close(self) -> None:
        """See PrefixLinker.close."""
        if self._is_closed:
            return
        deadline = time.monotonic() + self._settings.drain_timeout_s
        while self._running() and time.monotonic() < deadline:
            time.sleep(0.005)
        running = self._running()
        self._leaving += self._lookups.values()
        self._lookups.clear()
        self._sweep()
        self._is_closed = True
        self._stop.set()
        self._heart.join()
        self._close_lost()  # the last beat may have met another daemon
        self._session.close(is_lost=self._is_lost(self._session) or not self._answers)
        self._watch.close()
        if running:
            raise LinkError(f"lmcache: transfers of {running} have not ended; the daemon may still use their pages")

    def _running(self) -> list[str]:
        return [name for name, transfer in self._transfers.items() if self._progress(transfer) is Progress.RUNNING]

    def _progress(self, transfer: _Transfer) -> Progress:
        if transfer.progress is Progress.RUNNING:
            transfer.progress = transfer.answer(is_lost=self._is_lost(transfer.session))
        return transfer.progress

    def _is_there(self, session: DaemonSession) -> bool:
        return self._answers and not self._is_lost(session)

    def _is_lost(self, session: DaemonSession) -> bool:
        return self._is_closed or self._watch.losses != session.losses

    def _sweep(self) -> None:
        """Release the locks of requests that have gone, once it is known which; and close what was lost."""
        self._close_lost()
        still: list[_Lookup] = []
        for lookup in self._leaving:
            if self._is_lost(lookup.session) or lookup.asked is None:
                continue  # the locks went with the daemon, or there never were any
            if lookup.found is None or lookup.is_abandoned:
                found = lookup.answer(self._chunk_tokens)
                if found is None:
                    still.append(lookup)
                    continue
                lookup.found, lookup.is_abandoned = found, False
            lookup.release()
        self._leaving = still

    def _close_lost(self) -> None:
        while self._lost:
            self._lost.pop().close(is_lost=True)

    def _check_open(self) -> None:
        if self._is_closed:
            raise LinkError("the lmcache linker was closed")

    def _beat(self) -> None:
        while not self._stop.wait(self._settings.heartbeat_s):
            try:
                if self._is_lost(self._session):
                    self._answers = False
                    self._meet_again()
                elif not self._session.ping():
                    self._answers = False
                elif not self._answers:
                    self._session.register()
                    self._answers = True
            except Exception as error:  # the thread's edge: asked again at the next beat
                self._answers = False
                self.last_error = str(error)

    def _open(self) -> DaemonSession:
        """Register with a daemon whose end the watch would see. Raises as DaemonSession. Blocks."""
        if not self._watch.wait(self._settings.answer_timeout_s):
            raise no_answer(self._settings)
        return DaemonSession(self._settings, list(self._pools.values()), self._watch.losses)

    def _meet_again(self) -> None:
        """Register with the daemon that has taken the place of the one that ended. Raises LinkError where there is none."""
        session = self._open()
        if session.chunk_tokens != self._chunk_tokens:
            session.close(is_lost=False)
            raise LinkError(f"lmcache: the new daemon's chunks are of {session.chunk_tokens} tokens, not {self._chunk_tokens}")
        self._lost.append(self._session)  # closed by the thread that calls, which may be using it
        self._session = session
        self._answers = True


def _hashable(tokens: NDArray[np.int64]) -> int:
    """How many tokens the daemon can hash, which takes 32 bits each; what is asked with another one it never answers."""
    beyond = np.flatnonzero((tokens < 0) | (tokens >= 1 << 32))
    return int(beyond[0]) if beyond.size else tokens.size


@dataclass
class _Lookup:
    """A lookup and what is known of it.

    Attributes:
        asked, status: futures of the question and of the last question for its result.
        taken: the tokens whose locks went with a retrieve.
        is_abandoned: nobody waits for the result any more, but the locks it may hold must be released.
    """

    name: str
    tokens: tuple[int, ...]
    salt: str
    session: DaemonSession
    since: float
    asked: Any = None
    status: Any = None
    found: int | None = None
    taken: tuple[int, int] | None = None
    is_abandoned: bool = False

    def key(self, begin: int, end: int) -> Any:
        return self.session.key(self.name, self.tokens, self.salt, begin, end, worker=None)

    def answer(self, chunk_tokens: int) -> int | None:
        """How many tokens were found; None while the daemon has not said. It is not asked before it knows of the lookup."""
        if self.status is None:
            if not self.asked.query():
                return None
            self.status = self.session.client.query_prefetch_status(self.name)
        if not self.status.query():
            return None
        chunks, self.status = self.status.result(timeout=0), None
        return None if chunks is None else min(int(chunks) * chunk_tokens, len(self.tokens))

    def release(self) -> None:
        assert self.found is not None
        begin, end = self.taken or (0, 0)
        for first, last in ((0, begin), (end, self.found)):
            if first < last:
                self.session.client.free_lookup_locks(self.key(first, last), 1)
        self.session.client.end_session(self.name)


@dataclass
class _Transfer:
    """A retrieve or a store; without a future it was never begun."""

    session: DaemonSession
    future: Any
    progress: Progress = Progress.RUNNING

    def answer(self, *, is_lost: bool) -> Progress:
        if self.future is None:
            return Progress.FAILED
        try:
            if self.future.query():
                return Progress.DONE if self.future.result(timeout=0) else Progress.FAILED
        except (RuntimeError, ValueError, ConnectionError, TimeoutError):
            return Progress.FAILED
        return Progress.FAILED if is_lost else Progress.RUNNING
