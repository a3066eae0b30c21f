"""The sessions of an engine that keeps its requests itself, and holds no leases: one `EngineTurn` a request that runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from unified_tree.controllers.cache.held_hints import HeldHints
from unified_tree.controllers.cache.sessions import Session, Sessions, Turn, shared_text
from unified_tree.terms.errors import StaleBoundaryError

if TYPE_CHECKING:
    from unified_tree.controllers.cache.held_hints import RequestHints
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.nodes.node import Node
    from unified_tree.terms.results import Boundary
    from unified_tree.tree import UnifiedTree

MAX_SESSIONS: Final = 65_536
MAX_HINTS: Final = 4096


class EngineTurn:
    """A request that runs.

    Attributes:
        turn: what its session knows of it.
        given: what it says of its session; None for nothing.
        has_published: whether it has told of anything.
    """

    __slots__ = ("given", "has_published", "turn")

    def __init__(self, turn: Turn, given: RequestHints | None) -> None:
        self.turn = turn
        self.given = given
        self.has_published = False


class EngineTurns:
    """The sessions and hints of one tree behind an engine.

    Args:
        tree: where the requests' texts are.
        counters: count the sessions that end, and how hints do.
        grid_tokens: states are saved at multiples of so many tokens, or of a page.
        infers: whether a request without a session supersedes the states that it resumed from, too.
        prefers: whether what requests without a session have made goes before what open sessions may go on from, until a
            session has used it.
        has_one_clock: see HeldHints.
        max_sessions: how many may be open; beyond, the one unused for longest ends.
        time_s: the clock of hints.

    Attributes:
        sessions, hints: those that are open.
    """

    def __init__(
        self,
        tree: UnifiedTree,
        counters: CacheCounters,
        grid_tokens: int = 1,
        *,
        infers: bool = False,
        prefers: bool = False,
        has_one_clock: bool = True,
        max_sessions: int = MAX_SESSIONS,
        time_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tree = tree
        self._state = tree.state
        self._grid = max(grid_tokens, tree.page_size)
        self._nobody = Session(None, None, is_open=False) if prefers else None
        self._has_saves: bool = tree.state.layout.is_gated
        self.sessions = Sessions(tree.state, counters, max_sessions, infers=infers)
        self.hints = HeldHints(tree.state, counters, self.sessions, time_s, MAX_HINTS, has_one_clock=has_one_clock)
        self.sessions.watcher = self.hints.ended

    def begin(self, session: Session | None, given: RequestHints | None, resumed: int, prompt_tokens: int) -> EngineTurn:
        """A request is about to be computed from `resumed` on.

        Args:
            session: its own, which may have ended; None for none.
            given: what it says of that session.
        """
        if session is not None and session.is_open:
            self.hints.returned(session)
        least = shared_text(prompt_tokens, self._grid)
        turn = self.sessions.begin(session or self._nobody, resumed, least, has_saves=self._has_saves)
        return EngineTurn(turn, given)

    def inserting(self, turn: EngineTurn | None) -> None:
        """New nodes belong to this request from now on; with None to no request."""
        self._state.claimant = None if turn is None else turn.turn.session

    def published(self, turn: EngineTurn, at: Boundary) -> None:
        """The tree has a request's text up to a boundary. Cost: see `Turn.published`."""
        node = self._find(at)
        if node is not None:
            turn.has_published = True
            turn.turn.published(node, at.length, node.end if node.resumable else 0)

    def ended(self, turn: EngineTurn, at: Boundary, *, is_over: bool) -> None:
        """A request does not run any more.

        Args:
            at: up to where the tree has its text.
            is_over: it has its answer, so what it says of its session is due.
        """
        if is_over and not turn.has_published:  # the tree had all of it
            self.published(turn, at)
        node = self._find(at)
        turn.turn.ended(node)
        session, given = turn.turn.session, turn.given
        if is_over and given is not None and session is not None and session.is_open:
            if node is not None and node.root is not None:
                session.namespace = node.root.name[0]
            given.give(self.hints, self.sessions, session)

    def _find(self, at: Boundary) -> Node | None:
        try:
            return self._tree.locks.find(at)[0]
        except StaleBoundaryError:
            return None
