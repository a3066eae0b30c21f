"""Keys that were walked before: what they remember of a tree changes no match, and they are compared only once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from unified_tree import Component, Key, Path, Point, Tier, Trailing, UnifiedTree
from unified_tree.lookup import matching
from unified_tree.native.chosen import agreement

PAGE = 2
KINDS = [
    Component(name="full", coverage=Path()),
    Component(name="swa", coverage=Trailing(4)),
    Component(name="m", coverage=Point()),
]


def fresh(key: Key) -> Key:
    return Key.from_elements(bytes(key.data), key.namespace, bigram=key.bigram)


def insert(tree: UnifiedTree, key: Key, numbers: Iterator[int]) -> None:
    end = key.length // PAGE * PAGE
    ids = {name: next(numbers) * 1000 + np.arange(end // PAGE) for name in ("full", "swa")}
    tree.insert(key.prefix(end), ids, {"m": {end: next(numbers)}})


@pytest.mark.parametrize("seed", range(20))
def test_a_key_that_was_walked_matches_as_a_new_one(seed: int) -> None:
    """Whatever was inserted, cut, evicted or invalidated since, and in whichever tree."""
    draw = random.Random(seed)
    numbers = iter(range(1, 1_000_000))
    trees = [UnifiedTree(KINDS, PAGE), UnifiedTree(KINDS, PAGE)]
    keys = [
        Key([draw.randrange(2) for _ in range(draw.randrange(2, 40))], draw.choice("ab"), bigram=draw.random() < 0.2)
        for _ in range(30)
    ]
    for _ in range(400):
        tree, key = draw.choice(trees), draw.choice(keys)
        step = draw.random()
        if step < 0.3 and key.length >= PAGE:
            insert(tree, key, numbers)
        elif step < 0.4:
            tree.evict({draw.choice(["full", "swa", "m"]): draw.randrange(1, 20)}, Tier.DEVICE)
        elif step < 0.42:
            tree.invalidate(draw.choice(["a", "b"]))
        else:
            limit = draw.randrange(key.length + 1)
            asked = key if draw.random() < 0.7 else key.prefix(draw.randrange(limit, key.length + 1))
            assert tree.match_prefix(asked, limit=limit, touch=False) == tree.match_prefix(
                fresh(asked), limit=limit, touch=False
            )


@pytest.mark.skipif(not hasattr(matching.walk, "__code__"), reason="compiled code does not look its helpers up")
def test_a_key_is_compared_once_however_often_it_is_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def noted(*args: Any) -> int:
        compared.append(agreement(*args))
        return compared[-1]

    tree = UnifiedTree(KINDS[:1], PAGE)
    for end in (10, 20, 30):
        tree.insert(Key(range(end)), {"full": np.arange(end // PAGE) + 100 * end})
    monkeypatch.setattr(matching, "agreement", noted)
    key = Key(range(40))
    assert tree.match_prefix(key).device.length == 30
    assert len(compared) == 3
    tree.insert(Key(range(40)), {"full": np.arange(20)})
    compared.clear()
    assert tree.match_prefix(key).device.length == 40
    assert len(compared) == 1, "only what came behind it"


def test_a_key_that_its_caller_may_change_remembers_nothing() -> None:
    tree = UnifiedTree(KINDS[:1], PAGE)
    tokens = np.arange(10)
    tree.insert(Key(tokens), {"full": np.arange(5)})
    key = Key(tokens, copy=False)
    assert tree.match_prefix(key).device.length == 10
    tokens[:] = 99
    assert tree.match_prefix(key).device.length == 0
