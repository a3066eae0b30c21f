"""A call that is interrupted at any of its lines loses no page and keeps no lock: see `interrupted`.

The default run tries some lines of every call, over two sets of kinds; the deep one each line, over all sets and many worlds.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from interrupted import Line, Stop, World
from kinds import SETS

from unified_tree.controllers.cache import lease

CALLS = {
    "of a lease": ("acquire", "acquire with room", "acquire to fill", "allocate", "give up", "advance", "truncate", "release"),
    "that publish": ("commit", "preempt", "evict"),
    "of a batch": ("batch allocate", "batch advance", "batch truncate", "batch add", "batch remove", "batch release"),
    "of transfers": ("poll", "drain", "flush", "close", "invalidate"),
}


def interrupt_each(
    names: Iterable[str], kinds: str, seeds: Iterable[int], tried: set[tuple[str, Line]], most: int | None = None
) -> int:
    """Interrupt these calls at each line that was not tried yet, or at so many of each call, drawn at random; returns how many
    tries that were.
    """
    before = len(tried)
    for seed in seeds:
        of = f"{kinds} {seed}"
        for name in names:
            world = World(SETS[kinds], of)
            if name not in world.calls:
                continue
            whole = Stop()
            whole.run(world.calls[name])
            assert not world.wrongs(), (of, name)
            lines = list(whole.lines)
            for line in lines if most is None else Random(f"{of} {name}").sample(lines, min(most, len(lines))):
                if (name, line) not in tried:
                    tried.add((name, line))
                    world = World(SETS[kinds], of)
                    Stop(line).run(world.calls[name])
                    wrong = world.wrongs()
                    assert not wrong, (of, name, line, wrong)
    return len(tried) - before


@pytest.mark.skipif(not lease.__file__.endswith(".py"), reason="compiled modules have no lines to interrupt")
@pytest.mark.parametrize("calls", CALLS)
def test_an_interrupted_call_loses_no_page_and_keeps_no_lock(calls: str, record_property: Any) -> None:
    tried: set[tuple[str, Line]] = set()
    for kinds in ("window and mamba", "full", "drafts of their own"):
        interrupt_each(CALLS[calls], kinds, range(1), tried, most=200)
    record_property("interrupts", len(tried))
    assert len(tried) > 300


@pytest.mark.deep
@pytest.mark.skipif(not lease.__file__.endswith(".py"), reason="compiled modules have no lines to interrupt")
@pytest.mark.parametrize("kinds", SETS)
def test_no_interrupted_call_loses_a_page_or_keeps_a_lock(kinds: str, record_property: Any) -> None:
    interrupts = 0
    for seed in range(6):  # in each world anew, for what a line does depends on what there is
        tried: set[tuple[str, Line]] = set()
        for calls in CALLS.values():
            interrupts += interrupt_each(calls, kinds, [seed], tried)
    record_property("interrupts", interrupts)
