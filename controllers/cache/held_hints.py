"""Hints about values that are in the tree: which to keep longer than others, and which to evict before them.

A request of an engine may bring them along, in an object of JSON (`RequestHints`). It is said before the request runs, and is
about what its session needs afterwards. So all but the session's parent is done when the request has ended, and the tree has
its text.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from unified_tree.controllers.cache.sessions import Session, Sessions, session_name
from unified_tree.declare.keys import Key
from unified_tree.inputs.arguments import flag, number
from unified_tree.inputs.printable import repr_of
from unified_tree.lookup.matching import match
from unified_tree.nodes.claim import Hold
from unified_tree.state import claims
from unified_tree.terms.errors import LeaseError

if TYPE_CHECKING:
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.host.open_transfers import Load
    from unified_tree.nodes.node import Node
    from unified_tree.state.tree_state import TreeState

ENDED_A_CALL: Final = 4
"""A call ends so many hints whose time is over, so that no call pays for all of them."""


class Verb(Enum):
    """The kinds of hints."""

    RETAIN = "retain"
    PIN = "pin"
    DEMOTE = "demote"
    PREFETCH = "prefetch"
    SHARE = "share"


class Outcome(Enum):
    """How a hint ended. `USED`: what it was about was used. `VAIN`: it was not. `EXPIRED`: nor before the time was over.
    `TAKEN`: a pool in need took some of it before. `REFUSED`: there was nothing to do, or no room for it.
    """

    USED = "used"
    VAIN = "vain"
    EXPIRED = "expired"
    TAKEN = "taken"
    REFUSED = "refused"


class Hint:
    """One hint that has not ended.

    Attributes:
        hold: what it is about.
        since: the tree's clock when it was given.
        until: when it ends, on the cache's clock; None for no such time.
        group: of the namespaces whose session or prompt it is about, by index.
        load: what it brings back; None once that has landed.
    """

    __slots__ = ("group", "hold", "load", "number", "since", "target", "until", "verb")

    def __init__(self, number: int, verb: Verb, target: object, group: int, since: int, until: float | None) -> None:
        self.number = number
        self.verb = verb
        self.target = target
        self.group = group
        self.hold = Hold(keeps=verb is Verb.RETAIN or verb is Verb.PIN)
        self.since = since
        self.until = until
        self.load: Load | None = None


class HeldHints:
    """The hints of one tree that bring nothing back. Each is about a session, by its name, or about a prompt, a `Key`.

    Of a session it is about what its next turn resumes from; of a prompt, about the longest prefix that is cached. A second
    hint of a kind about the same replaces the first. `CacheStats.hints` counts how they ended.

    Args:
        state: of the tree.
        counters: count how hints end.
        sessions: of the tree.
        time_s: the clock of their times.
        max_hints: how many may be open; beyond, the oldest one expires.
        has_one_clock: whether a hint may have a time: the clocks of several ranks differ. Also an attribute.
    """

    def __init__(
        self,
        state: TreeState,
        counters: CacheCounters,
        sessions: Sessions,
        time_s: Callable[[], float],
        max_hints: int,
        *,
        has_one_clock: bool = True,
    ) -> None:
        self._state = state
        self._counters = counters
        self._sessions = sessions
        self._time_s = time_s
        self._max_hints = max_hints
        self.has_one_clock = has_one_clock
        self._open: dict[tuple[Verb, object], Hint] = {}
        self._by_session: dict[Session, dict[Verb, Hint]] = {}
        self._due: list[tuple[float, int, Hint]] = []
        self._count = 0
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._open)

    def retain(self, target: Hashable | Key, seconds: float | None = None) -> bool:
        """Keep what a session's next turn resumes from until then (until its tool returns), or for a time at most. Of a
        prompt, for a time. It goes after all others, and still goes if a pool needs it.

        Returns whether there was anything to keep. Raises LeaseError for a prompt without a time, and for a time beside several
        ranks, whose clocks differ. Cost: O(nodes since its last prompt, and of a window), or a match.
        """
        if seconds is None and isinstance(target, Key):
            raise LeaseError("a prompt is retained for a time; `pin` keeps it without one")
        return self._give(Verb.RETAIN, target, seconds)

    def pin(self, target: Hashable | Key) -> bool:
        """As `retain`, until `unpin` or the session's end, whoever uses it meanwhile."""
        return self._give(Verb.PIN, target, None)

    def unpin(self, target: Hashable | Key) -> None:
        """End the hints to pin and to share of a session or a prompt. No effect without one."""
        named = self._named(target)
        for verb in (Verb.PIN, Verb.SHARE):
            self._end(self._open.get((verb, named)), Outcome.VAIN)

    def demote(self, target: Hashable | Key) -> bool:
        """Let what only a session could go on from go first, until its next turn; of a prompt, the end of what is cached."""
        return self._give(Verb.DEMOTE, target, None)

    def share(self, target: Hashable | Key) -> bool:
        """Keep a session's text, or a prompt, from ending with the sessions that use it, and from being superseded: others
        will branch from it. `unpin` ends that.
        """
        return self._give(Verb.SHARE, target, None)

    def _named(self, target: Any) -> object:
        if isinstance(target, Key):
            return (target.namespace, target.bigram, bytes(target.data))
        return self._sessions.find(session_name(target))

    def _give(self, verb: Verb, target: Any, seconds: Any) -> bool:
        until = None
        if seconds is not None:
            seconds = number(seconds, "seconds", LeaseError, positive=True)
            if not self.has_one_clock:
                raise LeaseError("several ranks have several clocks: retain without a time")
            until = self._time_s() + seconds
        named, state = self._named(target), self._state
        self._end(self._open.get((verb, named)), Outcome.VAIN)
        group = self._group_of(target.namespace if isinstance(target, Key) else named)
        target = self._in_tree(target)
        nodes = self._nodes_of(named if isinstance(named, Session) else target if isinstance(target, Key) else None)
        self._count += 1
        hint = Hint(self._count, verb, named, group, state.clock, until)
        if self._is_closed or not self._begins(hint, target, nodes):
            self._note(hint, Outcome.REFUSED)
            return False
        self._open[verb, named] = hint
        if isinstance(named, Session):
            self._by_session.setdefault(named, {})[verb] = hint
        if until is not None:
            self._expect_end(until, hint)
        for node in nodes:
            claims.hold_boundary(state, hint.hold, node)
        if verb is Verb.DEMOTE:
            for node in nodes:
                claims.demote_boundary(state, node)
            if isinstance(named, Session):
                claims.leave_all(state, named)
        elif verb is Verb.SHARE:
            claims.pass_by(state, nodes[0], None)
        if len(self._open) > self._max_hints:
            self._end(next(iter(self._open.values())), Outcome.EXPIRED)
        return True

    def _group_of(self, whose: object) -> int:
        """The group of a namespace, or of a session's: 0 for a session that has had no request. Cost: O(1)."""
        namespace = whose.namespace if isinstance(whose, Session) else whose
        return self._state.group_of(namespace) if isinstance(namespace, str) else 0

    def _in_tree(self, target: object) -> object:
        """The target of a hint, as the tree has it."""
        return target

    def _begins(self, hint: Hint, target: object, nodes: list[Node]) -> bool:
        """Whether there is anything that a hint is about."""
        del hint, target
        return bool(nodes)

    def _nodes_of(self, target: Session | Key | None) -> list[Node]:
        """The nodes at whose ends it is resumed, the deepest first."""
        state = self._state
        if isinstance(target, Key):
            found = match(state, target, target.length, touch=False).reachable
            node = state.nodes.get(found.node) if found.length else None
            return [] if node is None else [node]
        if target is None:
            return []
        nodes: dict[Node, None] = {}
        if target.last is not None:
            self._add_ends(nodes, state.nodes.get(target.last), target.least)
        for tip in reversed(target.tips):
            if tip.turns > 1:  # a text of one turn is hardly gone on with behind others
                self._add_ends(nodes, claims.tip_node(tip), tip.least)
        return list(nodes)

    def _add_ends(self, nodes: dict[Node, None], at: Node | None, least: int) -> None:
        """The boundaries of a text from its end up to where its last prompt ended: the next turn resumes at one of them."""
        state = self._state
        is_gated = state.layout.is_gated
        if at is not None and state.nodes.is_retired(at):
            return  # invalidated
        while at is not None and at.parent is not None:
            if at.resumable or not is_gated:
                nodes[at] = None
                if at.end <= least or not is_gated:
                    return
            at = at.parent

    # -- how they end

    def poll(self) -> None:
        """End some whose time is over. Cost: O(1), and O(values) for each that ends."""
        if self._due:
            now = self._time_s()
            for _ in range(ENDED_A_CALL):
                if not self._due or self._due[0][0] > now:
                    break
                hint = heappop(self._due)[2]
                if self._open.get((hint.verb, hint.target)) is hint:
                    self._end(hint, Outcome.EXPIRED)

    def _expect_end(self, until: float, hint: Hint) -> None:
        """Remember when a hint ends, and forget those that ended before their time once they are most. Cost: O(log hints)."""
        heappush(self._due, (until, hint.number, hint))
        if len(self._due) > 2 * (self._max_hints + 1):
            self._due = [each for each in self._due if self._open.get((each[2].verb, each[2].target)) is each[2]]
            heapify(self._due)

    def returned(self, session: Session) -> None:
        """A session's next turn was admitted."""
        given = self._by_session.get(session)
        if given:
            for verb in (Verb.RETAIN, Verb.DEMOTE, Verb.PREFETCH):
                self._end(given.get(verb), Outcome.VAIN)

    def ended(self, session: Session) -> None:
        """A session has ended."""
        for hint in list(self._by_session.get(session, {}).values()):
            self._end(hint, Outcome.VAIN)

    def _end(self, hint: Hint | None, outcome: Outcome) -> None:
        if hint is None:
            return
        del self._open[hint.verb, hint.target]
        if isinstance(hint.target, Session):
            given = self._by_session[hint.target]
            del given[hint.verb]
            if not given:
                del self._by_session[hint.target]
        self._stops(hint)
        if any(value.touched > hint.since for value in hint.hold.values):
            outcome = Outcome.USED
        elif hint.hold.was_taken:
            outcome = Outcome.TAKEN
        self._note(hint, outcome)
        claims.end_hold(self._state, hint.hold)

    def close(self) -> None:
        """End all hints, and refuse those that come. Idempotent. Cost: O(values) for each."""
        self._is_closed = True
        for hint in list(self._open.values()):
            self._end(hint, Outcome.VAIN)

    def _stops(self, hint: Hint) -> None:
        """A hint ends: give up what is under way for it."""

    def _note(self, hint: Hint, outcome: Outcome) -> None:
        ended = (hint.verb.value, outcome.value)
        self._counters.hints[ended] = self._counters.hints.get(ended, 0) + 1
        if self._state.tenants is not None:
            of_group = self._counters.tenant_hints.setdefault(hint.group, {})
            of_group[ended] = of_group.get(ended, 0) + 1


FIELD: Final = "unified_tree"
"""The name of the object where a request carries objects for several readers."""
VERSION: Final = "1"
"""The version of its names."""
LONGEST_NAME: Final = 512
"""Of a session, in characters: a client chooses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHints:
    """One such object, checked.

    Attributes:
        session: the session's name; None for the one that the engine itself knows of.
        parent: the session that it is a part of, if it is not open yet; None for none.
        retain: keep what its next turn resumes from until then; a number of seconds, for so long at most.
        pin, share, demote: hints of those names; see `HeldHints`.
        unpin: end the hints to pin and to share.
        end: the session ends with this request.
    """

    session: str | None = None
    parent: str | None = None
    retain: bool | float = False
    pin: bool = False
    unpin: bool = False
    share: bool = False
    demote: bool = False
    end: bool = False

    @classmethod
    def of(cls, given: object) -> RequestHints:
        """The hints of a mapping. Raises LeaseError for a name or a value that does not exist or fit.

        >>> RequestHints.of({"session": "explorer", "parent": "agent", "retain": 60}).retain
        60
        """
        if not isinstance(given, Mapping):
            raise LeaseError(f"{FIELD} must be a mapping, not {repr_of(given)}")
        known = [each.name for each in fields(cls)]
        unknown = [name for name in given if name not in known]
        if unknown:
            raise LeaseError(f"{FIELD}: there is no {repr_of(unknown[0])}; there are {', '.join(known)}")
        checked: dict[str, Any] = {}
        for name, value in given.items():
            if name in ("session", "parent"):
                if value is not None and not (isinstance(value, str) and 0 < len(value) <= LONGEST_NAME):
                    raise LeaseError(
                        f"{FIELD}: {name} must be a string of 1 to {LONGEST_NAME} characters, not {repr_of(value)}"
                    )
            elif name != "retain" or isinstance(value, bool):
                flag(value, f"{FIELD}: {name}", LeaseError)
            else:
                number(value, f"{FIELD}: {name}", LeaseError, positive=True)
            checked[name] = value
        return cls(**checked)

    def open(self, sessions: Sessions, name: str | None) -> Session | None:
        """The session of the request, which is opened; None for none.

        Args:
            name: that the engine knows of, which the request's own precedes.

        Raises LeaseError for another parent than the session has.
        """
        own = self.session or name
        return None if own is None else sessions.open(session_name(own), self.parent)

    def give(self, hints: HeldHints, sessions: Sessions, session: Session) -> None:
        """The request of an open session has ended. A time is left out where hints have none. Raises nothing."""
        name = session.name
        if self.unpin:
            hints.unpin(name)
        if self.share:
            hints.share(name)
        if self.pin:
            hints.pin(name)
        if self.retain:
            hints.retain(name, None if self.retain is True or not hints.has_one_clock else self.retain)
        if self.demote:
            hints.demote(name)
        if self.end:
            sessions.end(name)
