"""What SGLang says of sessions, with `--enable-session-radix-cache`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.adapters.sglang.request_sessions import RequestSessions
from unified_tree.controllers.cache.engine_turns import EngineTurns

if TYPE_CHECKING:
    from unified_tree.controllers.adapters.sglang.observation import Observation
    from unified_tree.controllers.cache.sessions import Session
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.tree import UnifiedTree


class SessionAnswers:
    """The answers of a cache.

    Attributes:
        enable_session_radix_cache: SGLang's flag, which it asks a cache for.
        has_one_clock: whether no other rank has to decide alike.
        sessions: those of the requests; None without the flag, unless requests without sessions are to be followed, too.
    """

    enable_session_radix_cache: bool
    has_one_clock: bool
    sessions: RequestSessions | None = None
    observation: Observation
    _infers: bool
    _grid_tokens: int

    def _begin_sessions(self, tree: UnifiedTree, counters: CacheCounters) -> RequestSessions | None:
        """The sessions of an empty tree; None if they are turned off."""
        if not (self.enable_session_radix_cache or self._infers):
            return None
        turns = EngineTurns(
            tree,
            counters,
            self._grid_tokens,
            infers=self._infers,
            prefers=self.enable_session_radix_cache,
            has_one_clock=self.has_one_clock,
        )
        if self.sessions is None:
            self.sessions = RequestSessions(turns, counters)
        else:
            self._end_hints()  # those about the tree before
            self.sessions.turns = turns
        self.observation.sessions = self.sessions
        return self.sessions

    def _poll_hints(self) -> None:
        """End hints whose time is over."""
        if self.sessions is not None:
            self.sessions.turns.hints.poll()

    def _end_hints(self) -> None:
        """End all hints, each with its outcome, and refuse those that come. Idempotent."""
        if self.sessions is not None:
            self.sessions.turns.hints.close()

    def open_radix_session(self, session_id: str) -> Session | None:
        """`POST /open_session`. Returns what SGLang keeps with the requests of the session that arrive."""
        return None if self.sessions is None else self.sessions.opened(session_id)

    ensure_session_generation = open_radix_session

    def release_radix_session(self, session_id: str) -> None:
        """`POST /close_session`: what only this session could go on from is evicted first. No effect for an unknown one."""
        if self.sessions is not None:
            self.sessions.ended(session_id)
