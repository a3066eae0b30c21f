"""`python -m benches.walk`: how many modules does one acquire that hits, one commit and one evict go through?

A call enters a module when it calls a function of it, and changes module when the next function called is of another one.
Counted in the source as it runs interpreted, after six requests of 40 tokens at pages of four. Silent on: time, and calls that
miss, load or wait.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np

from benches.machine import core
from unified_tree import Component, Key, Point
from unified_tree import Path as PathCoverage
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache import Lease

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ("unified_tree", "components", "controllers")
PAGE = 4
PROMPT = 40
KINDS = {
    "full": ({"full": 64}, [Component(name="full", coverage=PathCoverage())]),
    "full + states": (
        {"full": 64, "mamba": 16},
        [Component(name="full", coverage=PathCoverage()), Component(name="mamba", coverage=Point())],
    ),
}


@dataclass
class Walk:
    """The modules that a call entered.

    Attributes:
        modules: how often a function of each was called.
        changes: how often a call was of another module than the one before.
    """

    modules: dict[str, int] = field(default_factory=dict)
    changes: int = 0

    def follow(self, call: Callable[[], object]) -> object:
        """Make a call, and note its modules."""
        last: Path | None = None

        def enter(frame: FrameType, event: str, _: object) -> None:
            nonlocal last
            file = Path(frame.f_code.co_filename)
            if event != "call" or not file.is_absolute() or not file.is_relative_to(ROOT):
                return
            module = file.resolve().relative_to(ROOT)
            if module.parts[0] in LIBRARY:
                self.modules[module.as_posix()] = self.modules.get(module.as_posix(), 0) + 1
                self.changes += module != last
                last = module

        sys.setprofile(enter)
        try:
            return call()
        finally:
            sys.setprofile(None)


def serve(cache: PrefixCache, lease: Lease, at: int, length: int) -> None:
    """Compute and publish a prompt up to a length, in chunks of 16 tokens."""
    while at < length:
        end = min(length, at + 16, lease.next_stop(at) or length)
        cache.allocate(lease, end)
        publish(cache, lease, end)
        at = end


def publish(cache: PrefixCache, lease: Lease, end: int) -> None:
    """Commit, with the state that is saved there."""
    cache.commit(lease, end, {end: lease.save_pages[end]} if end in lease.save_pages else {})


def walks(kind: str) -> dict[str, Walk]:
    """By the name of the call."""
    counts, components = KINDS[kind]
    cache = PrefixCache(components, PAGE, counts)
    for i in range(6):
        with cache.acquire(Key(np.arange(PROMPT) + 100 * i)) as lease:
            serve(cache, lease, lease.compute_from, PROMPT)
    found = {"acquire": Walk(), "commit": Walk(), "evict": Walk()}
    key = Key(np.arange(PROMPT + PAGE) + 500)
    taken = found["acquire"].follow(lambda: cache.acquire(key))
    assert isinstance(taken, Lease)
    end = taken.next_stop(taken.compute_from) or PROMPT + PAGE
    cache.allocate(taken, end)
    found["commit"].follow(lambda: publish(cache, taken, end))
    cache.release(taken)
    found["evict"].follow(lambda: cache.evict({"full": 3}))
    return found


def main() -> int:
    """Print a table, and the modules of an acquire."""
    if core() == "compiled":
        print("compiled code calls no Python functions: run this in a checkout that is not compiled", file=sys.stderr)
        return 2
    print("| cache | call | modules | changes of module |\n|---|---|---|---|")
    for kind in KINDS:
        for call, walk in walks(kind).items():
            print(f"| {kind} | {call} | {len(walk.modules)} | {walk.changes} |")
    print()
    for module, count in walks("full")["acquire"].modules.items():
        print(f"{count:4} {module}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
