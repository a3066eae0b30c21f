"""Matching: a match is always a boundary, never just a length, and changes nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from grove import Grove
from kinds import FULL, MAMBA, swa

from unified_tree import (
    NOWHERE,
    Boundary,
    Component,
    Key,
    Path,
    Point,
    StaleBoundaryError,
    Tier,
    Trailing,
    UnifiedTree,
    UnifiedTreeError,
)
from unified_tree.lookup import matching
from unified_tree.lookup.matching import path_boundary
from unified_tree.native.chosen import agreement


def test_a_match_changes_no_structure() -> None:
    grove = Grove([FULL, MAMBA])
    grove.put("abcdef", [4])
    before = grove.tree.dump()
    grove.match("abcdxx")
    grove.match("abxx", touch=False)
    grove.match("zz", "new")
    assert grove.tree.dump() == before
    grove.check()


@pytest.mark.parametrize(("used", "window"), [("ab", None), ("abcd", None), ("abcdef", None), ("abcdef", 3)])
def test_a_touch_is_a_match_that_ends_there(used: str, window: int | None) -> None:
    groves = [Grove([FULL, MAMBA, *([] if window is None else [swa(window)])]) for _ in range(2)]
    for grove in groves:
        grove.put("abcdef", [2, 4, 6])
        grove.put("xy", [2])
    groves[0].match(used)
    groves[1].tree.touch(groves[1].match(used, touch=False).device)
    names = ["mamba", "full", "mamba", *([] if window is None else ["swa"]), "full", "mamba"]
    matched, touched = ([grove.evict(1, name) for name in names] for grove in groves)
    assert touched == matched


def test_a_boundary_that_is_gone_cannot_be_touched() -> None:
    grove = Grove([FULL]).having("abcd")
    gone = grove.match("abcd").device
    grove.evict(2)
    with pytest.raises(StaleBoundaryError, match="match again"):
        grove.tree.touch(gone)
    grove.tree.touch(NOWHERE)


def test_a_path_ends_where_its_pages_do_whatever_windows_and_states_there_are() -> None:
    grove = Grove([FULL, MAMBA, swa(3)])
    grove.put("abcdef", [4], window=0)
    for text, length in {"abcdefg": 6, "abcdxx": 4, "abxx": 2, "zz": 0}.items():
        match = grove.match(text)
        found = path_boundary(grove.tree.state, match.known)
        assert (match.device, found.length) == (NOWHERE, length)
        grove.tree.lock(found, components=("full",)).release()
    known = grove.match("abcdef").known
    grove.evict(2)
    assert path_boundary(grove.tree.state, known) == NOWHERE, "its node is gone"
    assert path_boundary(grove.tree.state, grove.match("abcdef").known).length == 2
    grove.check()


def test_a_rebuild_is_no_use_near_a_plain_boundary() -> None:
    grove = Grove([FULL, swa(3, rebuild_tokens=4)]).having("abcd")
    grove.put("abcdefgh", window=0)
    match = grove.match("abcdefgh")
    assert match.rebuild == match.device
    assert (match.device.length, match.rebuild_tokens) == (4, 0)
    grove.put("abcdefghijkl", window=0)
    match = grove.match("abcdefghijkl")
    assert (match.device.length, match.rebuild.length, match.rebuild_tokens) == (4, 12, 6)


def test_pages_of_a_boundary_that_is_gone() -> None:
    grove = Grove([FULL])
    boundary = grove.put("abcd").boundary
    grove.evict(2)
    with pytest.raises(StaleBoundaryError, match="match again"):
        grove.tree.pages(boundary, "full")
    for nonsense in (Boundary(boundary.node, 3), Boundary(boundary.node, 6), Boundary(boundary.node, -2)):
        with pytest.raises(StaleBoundaryError):
            grove.tree.pages(nonsense, "full")


def test_pages_of_a_component_that_does_not_exist() -> None:
    grove = Grove([FULL])
    with pytest.raises(UnifiedTreeError, match="no component 'swa'"):
        grove.tree.pages(NOWHERE, "swa")


def test_pages_cannot_be_written_to() -> None:
    grove = Grove([FULL])
    pages = grove.tree.pages(grove.put("abcd").boundary, "full")
    assert not pages.flags.writeable


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
