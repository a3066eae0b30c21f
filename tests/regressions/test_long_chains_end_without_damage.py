"""The compiled core lost requests of a replay, seldom: where what ends lay more than fifty objects deep, eight bytes before it
were overwritten, whosever they were. Python's debugging allocator looks at those; a shallow C stack at the recursion."""

from __future__ import annotations

import subprocess
import sys

import pytest
from waiting import PROGRAM_S

CHAIN = """
from unified_tree.policies.density.turns import Turn
before = first = Turn(0, 0, 10, None)
for at in range({length}):
    before.by = Turn(at, 0, 10 + at, before)
    before = before.by
del before
del first
"""

NESTED = """
from unified_tree.policies.density.turns import Turn
held = Turn(0, 0, 10, None)
for depth in range({length}):
    held = [held]
del held
"""

TREE = """
from unified_tree import Component, Key, Path, UnifiedTree
tree = UnifiedTree([Component(name="full", coverage=Path())], 1)
for at in range({length}):
    tree.insert(Key([7] * at + [8]), {{"full": range(2 * at, 2 * at + (2 if at else 1))}})
assert tree.node_count >= {length}
del tree
"""


@pytest.mark.parametrize(
    ("what_ends", "length"),
    [(CHAIN, 60), (CHAIN, 300_000), (NESTED, 48), (NESTED, 49), (NESTED, 50), (NESTED, 60), (TREE, 200)],
)
def test_what_lies_before_an_object_stays_as_it_was(what_ends: str, length: int) -> None:
    code = f"import resource; resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))\n{what_ends.format(length=length)}"
    done = subprocess.run(
        [sys.executable, "-P", "-X", "dev", "-c", code], capture_output=True, text=True, timeout=PROGRAM_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
