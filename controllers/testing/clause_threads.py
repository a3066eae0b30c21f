"""Threads in which a clause is checked, and where in whose code one raised or hangs."""

from __future__ import annotations

import linecache
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from random import Random
from types import FrameType, TracebackType
from typing import Any

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
