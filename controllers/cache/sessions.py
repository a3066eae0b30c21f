"""Sessions: agents and conversations whose life the cache knows.

A session is a name that requests carry. It may be part of another, as a subagent is. When it ends, so do its parts, and what
only they could go on from is evicted first. A session's next turn does the same to the windows and states that it supersedes.
The tree holds what this means for its values (`state.claims`); here are the names, and the turns that are under way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final

from unified_tree.inputs.arguments import is_hashable
from unified_tree.inputs.printable import repr_of
from unified_tree.nodes.claim import Claimant, Tip
from unified_tree.state import claims
from unified_tree.terms.errors import LeaseError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.nodes.node import Node
    from unified_tree.state.tree_state import TreeState
    from unified_tree.terms.tier import NodeId


TEXT_SLACK: Final = 16
"""A prompt goes on from another if it has all of it but this part, where no length is saved that says it exactly: of a page or
a block that is not full, nothing is known to be shared."""


class Session(Claimant):
    """One open session.

    Attributes:
        name: as it was given.
        parts: the sessions that are part of it and open.
        turns: its turns that are under way.
        namespace: that of its last request; None before the first one.
        last: the node up to which a turn published last; None for none. `least`: see Tip, of that turn.
        is_open: it has not ended.
    """

    __slots__ = ("is_open", "last", "least", "name", "namespace", "parts", "turns")

    def __init__(self, name: Hashable, parent: Session | None, *, is_open: bool = True) -> None:
        super().__init__(parent)
        self.name = name
        self.namespace: str | None = None
        self.parts: dict[Session, None] = {}
        self.turns: dict[Turn, None] = {}
        self.last: NodeId | None = None
        self.least = 0
        self.is_open = is_open


class Turn:
    """One request, as the sessions see it.

    Args:
        session: whose turn it is; None for a request without a session.
        resumed: the length from which it runs.
        least: how much of its text a prompt has that goes on from it.
        supersedes: whether it does, or else everything stays.
    """

    __slots__ = ("_least", "_resumed", "_state", "_supersedes", "_tip", "session")

    def __init__(self, state: TreeState, session: Session | None, resumed: int, least: int, *, supersedes: bool) -> None:
        self._state = state
        self.session = session
        self._resumed = resumed
        self._least = least
        self._supersedes = supersedes
        self._tip: Tip | None = None
        if session is not None and session.is_open:
            session.turns[self] = None

    @property
    def is_followed(self) -> bool:
        """Whether it matters to any session where it ends."""
        return self.session is not None or self._supersedes or self._state.has_claims

    def published(self, node: Node, length: int, saved: int) -> None:
        """It has published up to a node, of its prompt `length` tokens or more, and saved a window or state at most at `saved`.

        Cost: O(nodes since the last time), and what `claims` says.
        """
        state, session = self._state, self.session
        if session is None or not session.is_open:
            claims.pass_by(state, node, session)
        else:
            tip = self._tip
            if tip is None:
                tip = self._tip = Tip(self._least)
            claims.move_tip(state, tip, node, session)
            session.last, session.least = node.id, self._least
            if self in session.turns and length >= self._least:  # what it goes on from is known
                del session.turns[self]
                claims.add_tip(state, session, tip, node)
        if self._supersedes and length >= self._least and saved > self._resumed:
            self._supersedes = False
            claims.supersede_above(state, node, self._resumed, saved, has_windows=session is not None and session.is_open)

    def ended(self, node: Node | None) -> None:
        """Its lease ends. If the rest of its prompt never came, the published part is a text of its own. Idempotent."""
        session, tip = self.session, self._tip
        if node is not None and (session is None or not session.is_open):
            claims.pass_by(self._state, node, session)
        if session is not None and self in session.turns:
            del session.turns[self]
            if tip is not None and node is not None:
                claims.add_tip(self._state, session, tip, node)
            elif tip is not None:
                claims.drop_tip(self._state, tip)

    def leave(self) -> None:
        """Its session ends before it."""
        if self._tip is not None:
            claims.drop_tip(self._state, self._tip)


class Sessions:
    """The open sessions of one cache, by name, the one that was used last at the end.

    Args:
        state: of the tree.
        counters: count the ended ones.
        max_open: how many may be open; beyond, the one unused for longest ends.
        infers: whether a request without a session supersedes what it resumed from, too.

    Attributes:
        watcher: is called with each session that ends; None where nothing listens.
    """

    __slots__ = ("_by_name", "_counters", "_infers", "_max_open", "_state", "watcher")

    def __init__(self, state: TreeState, counters: CacheCounters, max_open: int, *, infers: bool) -> None:
        self._state = state
        self._counters = counters
        self._max_open = max_open
        self._infers = infers
        self._by_name: dict[Hashable, Session] = {}
        self.watcher: Callable[[Session], None] | None = None

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_name.values())

    def find(self, name: Hashable) -> Session | None:
        """The open session of a name; None if there is none."""
        return self._by_name.get(name)

    def open(self, name: object, parent: object = None) -> Session:
        """See PrefixCache.open_session."""
        checked = session_name(name)
        above = None if parent is None else session_name(parent)
        session = self._by_name.get(checked)
        if session is None:
            if above in {checked}:  # a comparison of names need not give a bool, as of numpy's integers
                raise LeaseError(f"the session {repr_of(checked)} cannot be part of itself")
            opened = None if above is None else self.open(above)
            session = self._by_name[checked] = Session(checked, opened)
            self._state.claimants.add(session)
            if opened is not None:
                opened.parts[session] = None
            self._use(session)
            while len(self._by_name) > self._max_open:
                self.end(next(iter(self._by_name)))
            return session
        holder = session.parent
        if above is not None and (not isinstance(holder, Session) or above not in {holder.name}):
            was = f"part of {repr_of(holder.name)}" if isinstance(holder, Session) else "part of no other"
            raise LeaseError(f"the session {repr_of(checked)} is {was}; it cannot become part of {repr_of(above)}")
        self._use(session)
        return session

    def _use(self, session: Session) -> None:
        """Move a session to the end, with those that it is part of. Cost: O(depth)."""
        at: Claimant | None = session
        while isinstance(at, Session):
            del self._by_name[at.name]
            self._by_name[at.name] = at
            at = at.parent

    def begin(self, session: Session | None, resumed: int, least: int, *, has_saves: bool) -> Turn:
        """A request was admitted, as `Turn`."""
        goes_on = self._infers or (session is not None and session.is_open)
        return Turn(self._state, session, resumed, least, supersedes=has_saves and goes_on)

    def end(self, name: Hashable) -> None:
        """See PrefixCache.end_session."""
        ending = [] if (session := self._by_name.get(name)) is None else [session]
        for each in ending:  # grows; parts end after those that they are part of, whose claims they may stand below
            ending.extend(each.parts)
        for each in reversed(ending):
            each.is_open = False
            for turn in each.turns:
                turn.leave()
            claims.leave_all(self._state, each)
            each.turns, each.parts = {}, {}
            del self._by_name[each.name]
            self._state.claimants.discard(each)
            self._counters.ended_sessions += 1
            if self.watcher is not None:
                self.watcher(each)
        if session is not None and isinstance(session.parent, Session):
            session.parent.parts.pop(session, None)


def shared_text(prompt_tokens: int, grid_tokens: int) -> int:
    """The tokens of a prompt that the next prompt of its session must share, in whole steps of a grid."""
    return (prompt_tokens - prompt_tokens // TEXT_SLACK) // grid_tokens * grid_tokens


def session_name(name: object) -> Hashable:
    """A session's name, checked. Raises LeaseError."""
    if name is None or not is_hashable(name):
        raise LeaseError(f"a session's name must be hashable and not None, not {repr_of(name)}")
    return name
