"""The sessions of SGLang's requests (`--enable-session-radix-cache`), and what their KV hints say of them.

When a request of a session arrives, SGLang asks for something to keep with it: a generation, by which its own cache knows the
requests that outlive their session. Here that is the session itself, which knows whether it has ended.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from unified_tree.controllers.cache.held_hints import FIELD, VERSION, RequestHints
from unified_tree.terms.errors import LeaseError

if TYPE_CHECKING:
    from unified_tree.controllers.cache.engine_turns import EngineTurn, EngineTurns
    from unified_tree.controllers.cache.sessions import Session
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.terms.results import Boundary

LOG = logging.getLogger(__name__)
TURN: Final = "unified_tree_turn"
"""The attribute of SGLang's requests that holds theirs."""
NOT_UNDERSTOOD: Final = "hints not understood"


class RequestSessions:
    """The sessions of a cache. They end with its tree; the object serves the next tree, too.

    Args:
        turns: of the first tree.
        counters: count hints that cannot be read.

    Attributes:
        turns: of the tree.
        may_end: whether `ended` ends a session. SGLang ends those that were unused for too long by the clock of each rank, and
            ranks must agree.
    """

    def __init__(self, turns: EngineTurns, counters: CacheCounters) -> None:
        self.turns = turns
        self._counters = counters
        self.may_end = True

    def opened(self, name: str) -> Session:
        """A request of a session arrives, or the session is opened. Cost: O(1)."""
        return self.turns.sessions.open(name)

    def ended(self, name: str) -> None:
        """A session is closed. No effect for an unknown one. Cost: see PrefixCache.end_session."""
        if self.may_end:
            self.turns.sessions.end(name)

    def admitted(self, req: Any) -> None:
        """A request has slots for what it is about to compute. Called for each part of a prompt; the first counts."""
        if getattr(req, TURN, None) is not None:
            return
        given = self._hints_of(req)
        session: Session | None = req.session_generation
        if session is not None and session.is_open and self.turns.sessions.find(session.name) is not session:
            session = self.opened(str(session.name))  # that one was of another tree
        if given is not None and (given.session is not None or session is None or session.is_open):
            try:
                session = given.open(self.turns.sessions, None if session is None else str(session.name))
            except LeaseError as error:
                self._misread(error)
                given = None
        tokens: int = len(req.full_untruncated_fill_ids)
        setattr(req, TURN, self.turns.begin(session, given, req.prefix_len, tokens))

    def _hints_of(self, req: Any) -> RequestHints | None:
        """The KV hints of a request for this cache; None without any. Actions for other caches are passed over."""
        envelope: Any = req.kv_hints
        for action in () if envelope is None else envelope.actions:
            if action.action_type == FIELD and action.action_version == VERSION:
                try:
                    return RequestHints.of(action.payload)
                except LeaseError as error:
                    self._misread(error)
        return None

    def _misread(self, error: LeaseError) -> None:
        if NOT_UNDERSTOOD not in self._counters.drops:
            LOG.warning("a request's hints are left out: %s. This is said once.", error)
        self._counters.count_drop(NOT_UNDERSTOOD)

    def inserting(self, req: Any) -> None:
        """New nodes belong to a request from now on; with None to no request."""
        turn: EngineTurn | None = None if req is None else getattr(req, TURN, None)
        self.turns.inserting(turn)

    def published(self, req: Any, at: Boundary) -> None:
        """The tree has a request's text up to a boundary."""
        turn: EngineTurn | None = getattr(req, TURN, None)
        if turn is not None:
            self.turns.published(turn, at)

    def released(self, req: Any, *, is_over: bool) -> None:
        """A request has given its slots back: it is over, or was aborted or taken back, and may come again."""
        turn: EngineTurn | None = getattr(req, TURN, None)
        if turn is not None:
            setattr(req, TURN, None)
            self.turns.ended(turn, req.last_node, is_over=is_over)
