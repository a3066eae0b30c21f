"""Checks, and the message of a broken clause.

A check is a function of a rig: its name is the clause of the contract, its docstring says the clause in full. It raises
AssertionError with the clause, what the contract wants and what was seen, also under `python -O`.
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from types import FrameType, TracebackType
from typing import Any, TypeVar

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


OWN = "unified_tree.controllers.testing"


class OverdueError(Exception):
    """A call did not return in time; the message says how long it was waited for, and where its threads hang."""


def within(limit_s: float, name: str, call: Callable[[], object]) -> None:
    """Call in a thread of this name. Raises what the call raises, OverdueError when it has not returned in time.

    A thread that hangs cannot be ended: it stays, and does not keep the process from ending.
    """
    thread = _Call(call, name)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        where = "; ".join(dict.fromkeys(_places(name)))
        raise OverdueError(f"not done after {limit_s:g} s (limit_s); it hangs {where}")
    if thread.error is not None:
        raise thread.error


def at_once(calls: Sequence[Callable[[], object]]) -> list[str]:
    """Call all in a thread each; what they raised, in words.

    Threads are switched as often as Python can, and now and then each waits between two steps of the code under check, so that
    what is done without a lock is seen in few calls. Compiled code is not made to wait.
    """
    name = f"{threading.current_thread().name} at once"
    threads = [_Switched(call, name, seed) for seed, call in enumerate(calls)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    return [described(thread.error) for thread in threads if thread.error is not None]


def described(error: BaseException) -> str:
    """Type and message of an error, and the line of the engine's, the policy's or else the check's code that raised it."""
    message = f"{type(error).__name__}: {error}" if str(error) else f"{type(error).__name__} without a message"
    if isinstance(error, StopIteration):
        message += " (`next` found nothing left: so ends, for example, an engine that evicts although it keeps nothing)"
    return f"{message}, raised {_place(_raised_in(error.__traceback__))}"


class _Call(threading.Thread):
    def __init__(self, call: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.error: BaseException | None = None
        self._call = call

    def run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # a thread's edge; raised again by who waits
            self.error = error


class _Switched(_Call):
    def __init__(self, call: Callable[[], object], name: str, seed: int) -> None:
        super().__init__(call, name)
        self._random = Random(seed)

    def run(self) -> None:
        sys.settrace(self._enter)  # of this thread
        super().run()

    def _enter(self, frame: FrameType, event: str, given: object) -> Callable[..., Any] | None:
        del event, given
        if _whose(frame) in ("stdlib", OWN):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, given: object) -> Callable[..., Any]:
        del frame, given
        if event == "opcode" and self._random.random() < 0.1:
            time.sleep(2e-5)
        return self._step


def _places(name: str) -> Iterator[str]:
    """Where the threads of a clause are. One that only waits for others in the check itself comes last."""
    frames = sys._current_frames()
    stacks = [
        [(frame, line) for frame, line in traceback.walk_stack(frames[thread.ident])][::-1]
        for thread in threading.enumerate()
        if thread.name.startswith(name) and thread.ident in frames
    ]
    for stack in sorted(stacks, key=lambda stack: _owner(stack) == OWN):
        yield _place(stack)


def _raised_in(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    return list(traceback.walk_tb(trace))


def _whose(frame: FrameType) -> str:
    """The standard library, this package of checks, the rest of unified_tree, or nobody of these: an engine's author."""
    module = str(frame.f_globals.get("__name__", ""))
    if module.partition(".")[0] in sys.stdlib_module_names:
        return "stdlib"
    return next((owner for owner in (OWN, "unified_tree") if f"{module}.".startswith(f"{owner}.")), "")


def _owner(stack: list[tuple[FrameType, int]]) -> str:
    whose = {_whose(frame) for frame, _ in stack}
    return next((owner for owner in ("", "unified_tree", OWN) if owner in whose), "stdlib")


def _place(stack: list[tuple[FrameType, int]]) -> str:
    """The innermost line of the engine's author; else of unified_tree; else of the check."""
    if not stack:
        return "nowhere that is known"
    owner = _owner(stack)
    frame, line = [(frame, line) for frame, line in stack if _whose(frame) == owner][-1]
    file = frame.f_code.co_filename
    code = linecache.getline(file, line, frame.f_globals).strip()
    return f"in {frame.f_code.co_qualname}, {file}:{line}" + (f": {code}" if code else "")
