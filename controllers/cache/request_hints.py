"""What a request of an engine says of its session: an object of JSON that comes with it.

It is said before the request runs, and is about what its session needs afterwards. So all but the session's parent is done when
the request has ended, and the tree has its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from unified_tree.controllers.cache.sessions import session_name
from unified_tree.inputs.arguments import flag, number
from unified_tree.terms.errors import LeaseError

if TYPE_CHECKING:
    from unified_tree.controllers.cache.held_hints import HeldHints
    from unified_tree.controllers.cache.sessions import Session, Sessions

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
            raise LeaseError(f"{FIELD} must be a mapping, not {given!r}")
        known = [each.name for each in fields(cls)]
        unknown = [name for name in given if name not in known]
        if unknown:
            raise LeaseError(f"{FIELD}: there is no {unknown[0]!r}; there are {', '.join(known)}")
        checked: dict[str, Any] = {}
        for name, value in given.items():
            if name in ("session", "parent"):
                if value is not None and not (isinstance(value, str) and 0 < len(value) <= LONGEST_NAME):
                    raise LeaseError(f"{FIELD}: {name} must be a string of 1 to {LONGEST_NAME} characters, not {value!r}")
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
