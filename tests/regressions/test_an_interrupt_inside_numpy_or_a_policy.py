"""A Ctrl-C during a change of the tree is raised after it: where numpy runs Python, and inside a custom policy.

Interpreted, the change itself would be interrupted at any line; so the first test is of the compiled build.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from random import Random
from types import FrameType
from typing import Any

import pytest

from unified_tree import Component, EvictionPolicy, Key, Path, TreeSettings, is_compiled
from unified_tree.controllers import PrefixCache

FULL = Component(name="full", coverage=Path())


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Stop:
    """Raises KeyboardInterrupt at one of the calls into numpy's Python; at none for 0."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and "numpy" in frame.f_code.co_filename:
            self.count += 1
            if self.count == self.at:
                sys.settrace(None)
                raise KeyboardInterrupt


def serve(cache: PrefixCache, requests: int) -> None:
    random = Random(1)
    for _ in range(requests):
        prompt = [random.randrange(6)] * 3 + [random.randrange(3) for _ in range(random.randrange(12))]
        with cache.acquire(Key(prompt)) as lease:
            cache.allocate(lease, len(prompt))
            cache.commit(lease, prompt)


def check(cache: PrefixCache) -> None:
    """Nothing has leaked, nothing is in two hands, and the cache goes on."""
    for lease in cache.leases:
        cache.release(lease)
    cache.drain()
    assert cache.stats().pools["full"].leased == 0 and cache.tree.check() == []
    serve(cache, 40)
    assert cache.stats().pools["full"].leased == 0 and cache.tree.check() == []


def learned(at: int) -> tuple[PrefixCache, int]:
    """A cache that has learned, and was interrupted at a call into numpy; how many such calls there were."""
    settings = TreeSettings(revise_every=16, remembered_turns=64)
    cache, stop, before = PrefixCache([FULL], 1, {"full": 60}, settings=settings), Stop(at), sys.gettrace()
    sys.settrace(stop)
    try:
        serve(cache, 150)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return cache, stop.count


@pytest.mark.skipif(not is_compiled, reason="interpreted, the library's own lines are interrupted")
def test_an_interrupt_while_numpy_runs_python_comes_after_the_change() -> None:
    cache, calls = learned(0)
    check(cache)
    assert calls > 200, "nothing was learned"
    for at in range(1, calls + 1, calls // 60):
        check(learned(at)[0])


class Interrupted(EvictionPolicy):
    """By last use; one method raises once."""

    method = ""

    def _met(self, name: str) -> None:
        if Interrupted.method == name:
            Interrupted.method = ""
            raise KeyboardInterrupt

    def rank(self, value: Any) -> float:
        self._met("rank")
        return float(value.touched)

    def touched(self, value: Any) -> None:  # noqa: ARG002
        self._met("touched")

    def placed(self, value: Any) -> None:  # noqa: ARG002
        self._met("placed")

    def went(self, value: Any, *, is_whole: bool) -> None:  # noqa: ARG002
        self._met("went")

    def grew(self, *_: Any) -> None:
        self._met("grew")


@pytest.mark.skipif(not is_compiled, reason="interpreted, the interrupt is raised at the library's next line")
@pytest.mark.parametrize("method", ["rank", "touched", "placed", "went", "grew"])
def test_an_interrupt_inside_a_policy_comes_after_the_change(method: str) -> None:
    cache = PrefixCache([FULL], 1, {"full": 60}, policy=lambda _: Interrupted())
    serve(cache, 30)
    Interrupted.method = method
    with pytest.raises(KeyboardInterrupt):
        serve(cache, 30)
    assert not Interrupted.method
    check(cache)
    assert cache.stats().policy.failures == 0
