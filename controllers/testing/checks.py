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

Rig = TypeVar("Rig")
PATIENCE_S = 20.0


class Check:
    """A named clause of a contract.

    Attributes:
        name: of the clause.
        body: what checks it.
    """

    def __init__(self, body: Callable[..., None], name: str | None = None, **given: Any) -> None:
        self.body = body
        self.name = body.__name__ if name is None else name
        self.__name__ = self.name  # by which pytest names its cases
        self.__doc__ = body.__doc__
        self._given = given

    def __call__(self, rig: Any) -> None:
        """Check it. Raises AssertionError where it is broken."""
        try:
            self.body(rig, **self._given)
        except AssertionError as error:
            raise AssertionError(f"{self.name.replace('_', ' ')}: {error}") from error

    def __repr__(self) -> str:
        return self.name


def run_checks(checks: Iterable[Check], open_rig: Callable[[], Rig]) -> None:
    """Call every check with a rig of its own. Raises one AssertionError that names all clauses that are broken."""
    broken = []
    for check in checks:
        try:
            check(open_rig())
        except Exception as error:  # an engine that raises where it must not is as broken as one that answers wrongly
            broken.append(str(error) if isinstance(error, AssertionError) else f"{check.name}: {type(error).__name__}: {error}")
    if broken:
        raise AssertionError(f"{len(broken)} clauses of the contract are broken:\n- " + "\n- ".join(broken))


def expect(is_kept: object, message: str) -> None:
    """Raise AssertionError with this message unless the clause is kept."""
    if not is_kept:
        raise AssertionError(message)


def expect_equal(seen: object, wanted: object, what: str) -> None:
    """Raise AssertionError unless what was seen is what the contract wants."""
    if seen != wanted:
        raise AssertionError(f"{what}: the contract wants {wanted!r}, seen was {seen!r}")


@contextmanager
def refusal(error: type[Exception], words: str, what: str) -> Iterator[None]:
    """Raise AssertionError unless the block raises this error with these words (a regular expression)."""
    try:
        yield
    except error as raised:
        if not re.search(words, str(raised)):
            raise AssertionError(f"{what}: the message must say {words!r}, it was {str(raised)!r}") from raised
    except Exception as raised:
        raise AssertionError(f"{what}: the contract wants {error.__name__}, raised was {raised!r}") from raised
    else:
        raise AssertionError(f"{what}: the contract wants {error.__name__}, nothing was raised")


def await_until(ask: Callable[[], object], what: str) -> None:
    """Return once `ask` returns True. Raises AssertionError after twenty seconds."""
    deadline = time.monotonic() + PATIENCE_S
    while not ask():
        expect(time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:g} s")
        time.sleep(0.001)
