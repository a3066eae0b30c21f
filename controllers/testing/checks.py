"""Checks, and the message of a broken clause.

A check is a function of a rig: its name is the clause of the contract, its docstring says the clause in full. It raises
AssertionError with the clause, what the contract wants and what was seen, also under `python -O`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from unified_tree.controllers.testing.clause_threads import OverdueError, described, within

Rig = TypeVar("Rig")
PATIENCE_S = 20.0
LIMIT_S = 30.0
"""For each clause, unless said otherwise."""


class BrokenClauseError(AssertionError):
    """A clause is broken.

    Attributes:
        cause: what broke it; clauses that one cause breaks are reported together.
    """

    def __init__(self, message: str, cause: str | None = None) -> None:
        super().__init__(message)
        self.cause = message if cause is None else cause


class Check:
    """A named clause of a contract.

    Attributes:
        name: of the clause, with underscores.
        title: the same to be read: with spaces, and in parentheses which of several cases.
        body: what checks it.
    """

    def __init__(self, body: Callable[..., None], name: str | None = None, title: str | None = None, **given: Any) -> None:
        self.body = body
        self.name = body.__name__ if name is None else name
        self.title = self.name.replace("_", " ") if title is None else title
        self.__name__ = self.name  # by which pytest names its cases
        self.__doc__ = body.__doc__
        self._given = given

    def __call__(self, rig: Any) -> None:
        """Check it. Raises AssertionError where it is broken."""
        try:
            self.body(rig, **self._given)
        except BrokenClauseError as error:
            raise BrokenClauseError(f"{self.title}: {error}", error.cause) from error
        except Exception as error:  # an engine that raises where it must not is as broken as one that answers wrongly
            raise BrokenClauseError(f"{self.title}: {described(error)}", described(error)) from error

    def __repr__(self) -> str:
        return self.name


def run_checks(checks: Iterable[Check], open_rig: Callable[[], Rig], limit_s: float = LIMIT_S) -> None:
    """Call every check with a rig of its own, each in a thread, for so many seconds at most.

    Raises one AssertionError that names all clauses that are broken, and each cause once. After a clause that does not end no
    other is checked: its thread goes on, and may hold what the others need.
    """
    causes: dict[str, list[str]] = {}
    waiting = list(checks)
    while waiting:
        check = waiting.pop(0)
        try:
            within(limit_s, f"check: {check.title}", lambda check=check: check(open_rig()))  # type: ignore[misc]
            continue
        except BrokenClauseError as error:
            cause, message = error.cause, str(error)
        except OverdueError as error:
            left = f"; the {len(waiting)} clauses after it were not checked" if waiting else ""
            cause, message = str(error), f"{check.title}: {error}{left}"
            waiting = []
        except Exception as error:  # what opens a rig is the user's
            cause = f"it cannot be opened: {described(error)}"
            message = f"{check.title}: {cause}"
        if cause in causes:
            causes[cause].append(check.title)
        else:
            causes[cause] = [message]
    if causes:
        count = sum(map(len, causes.values()))
        said = "1 clause of the contract is broken:" if count == 1 else f"{count} clauses of the contract are broken:"
        raise AssertionError("\n".join([said, *(_said(*clauses) for clauses in causes.values())]))


def _said(first: str, *others: str) -> str:
    return f"- {first}" + (f"\n  (for the same reason also: {'; '.join(others)})" if others else "")


def expect(is_kept: object, message: str, cause: str | None = None) -> None:
    """Raise AssertionError with this message unless the clause is kept. One cause is reported once, however it is said."""
    if not is_kept:
        raise BrokenClauseError(message, cause)


def expect_equal(seen: object, wanted: object, what: str) -> None:
    """Raise AssertionError unless what was seen is what the contract wants."""
    if seen != wanted:
        raise BrokenClauseError(f"{what}: the contract wants {wanted!r}, seen was {seen!r}")


@contextmanager
def refusal(error: type[Exception], words: str, what: str) -> Iterator[None]:
    """Raise AssertionError unless the block raises this error with these words (a regular expression)."""
    try:
        yield
    except error as raised:
        if not re.search(words, str(raised)):
            raise BrokenClauseError(f"{what}: the message must say {words!r}, it was {str(raised)!r}") from raised
    except Exception as raised:
        raise BrokenClauseError(f"{what}: the contract wants {error.__name__}, raised was {raised!r}") from raised
    else:
        raise BrokenClauseError(f"{what}: the contract wants {error.__name__}, nothing was raised")


def await_until(ask: Callable[[], object], what: str) -> None:
    """Return once `ask` returns True. Raises AssertionError after twenty seconds."""
    deadline = time.monotonic() + PATIENCE_S
    while not ask():
        expect(time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:g} s")
        time.sleep(0.001)
