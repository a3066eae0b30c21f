"""The store of a server over flushes and changes of the weights, over plain tensors."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from sglang_tiers import KINDS, TOKENS, Served

from unified_tree import Key
from unified_tree.controllers.adapters.sglang.kept_store import ServedWeights


def closed(served: Served) -> None:
    served.check_nothing_is_lost()
    served.tiers.close(keeps_engine=True)
    served.store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_goes_on_after_flushes(kind: str, tmp_path: Path) -> None:
    served = Served(kind, tmp_path).stored()
    wanted = served.prompt_bytes()
    for _ in range(3):
        served = served.flushed()
        assert served.tree.match_prefix(Key(TOKENS)).reachable.length == 0
        assert served.found() == len(TOKENS)
        lock = served.loaded()
        served.check_bytes(wanted)
        lock.release()
        served.check_nothing_is_lost()
    closed(served)


@pytest.mark.parametrize("kind", KINDS)
def test_other_weights_find_nothing_and_store_for_themselves(kind: str, tmp_path: Path) -> None:
    served = Served(kind, tmp_path).stored()
    served.store.changed(None)
    assert not served.uses_store(), "until it is flushed"
    assert "set aside" in served.store.state
    assert served.found() == 0
    served = served.flushed()
    assert served.found() == 0, "of other weights"
    served = served.stored().flushed()
    assert served.found() == len(TOKENS), "of these weights"
    closed(served)


def test_nothing_that_other_weights_computed_is_stored(tmp_path: Path) -> None:
    served = Served("full", tmp_path)
    served.compute()
    served.store.changed("step-1")
    served.publish()
    served.polled()
    served = served.flushed()
    assert served.found() == 0
    closed(served)


@pytest.mark.parametrize(("weights", "tokens"), [("run", len(TOKENS)), (None, 0)])
def test_labels_name_weights_where_the_settings_vouch_for_them(tmp_path: Path, weights: str | None, tokens: int) -> None:
    served = Served("full", tmp_path, weights=weights)
    served.store.changed("step-1")
    served = served.flushed().stored()
    served.store.changed("step-2")
    served = served.flushed()
    assert served.found() == 0
    served.store.changed("step-1")
    served = served.flushed()
    assert served.found() == tokens
    served.store.changed("step-1")
    served.store.weights.failed()
    served = served.flushed()
    assert served.found() == 0
    closed(served)


def test_a_session_of_updates_ends_before_the_store_goes_on(tmp_path: Path) -> None:
    served = Served("full", tmp_path).stored()
    store = served.store
    store.begin_update()
    assert not served.uses_store()
    store.changed("step-1")
    served = served.flushed()  # by the update itself
    assert not served.uses_store()
    store.end_update(is_empty=True)
    assert served.uses_store()
    assert served.found() == 0
    served.stored()
    closed(served)
    served = Served("full", tmp_path, weights="1 step-1")
    assert served.found() == len(TOKENS)
    store = served.store
    store.begin_update()
    store.changed("step-2")
    served = served.flushed()
    served.publish()
    store.end_update(is_empty=False)
    assert not served.uses_store(), "what was computed may be of weights between"
    served = served.flushed()
    assert served.uses_store()
    assert served.found() == 0
    closed(served)


def test_a_session_that_changes_nothing_takes_nothing_away(tmp_path: Path) -> None:
    """That of a draft, of which no update counts."""
    served = Served("full", tmp_path).stored()
    served.store.begin_update()
    assert not served.uses_store()
    served.store.end_update(is_empty=False)
    assert served.uses_store()
    served = served.flushed()
    assert served.found() == len(TOKENS)
    closed(served)


def test_a_store_is_closed_and_opened_again_while_the_cache_goes_on(tmp_path: Path) -> None:
    served = Served("full", tmp_path).stored()
    assert served.store.close()
    assert not served.store.close()
    assert served.store.state == "none"
    assert not served.store.clear()
    assert served.found() == 0
    served.publish()
    served = Served("full", tmp_path, before=served)
    assert served.store.state == "file"
    assert served.found() == len(TOKENS)
    served.store.changed(None)
    assert served.store.clear(), "set aside, and cleared"
    assert served.store.close()
    served.store.go_on()
    assert not served.uses_store()
    closed(served)


@pytest.mark.parametrize("seed", range(20))
def test_no_two_weights_have_one_name(seed: int) -> None:
    """Random changes: a name comes back with a label alone, and where the settings vouch for it."""
    draw, weights = random.Random(seed), ServedWeights("life")
    named: dict[str, object] = {weights.name("run", is_given=True): 0}
    unvouched: set[str] = {weights.name("run", is_given=False)}
    for change in range(1, 200):
        label = draw.choice((None, "a", "b", ""))
        weights.changed(label)
        if has_failed := draw.random() < 0.3:
            weights.failed()
        before = weights.may_store
        weights.emptied()
        assert (before, weights.may_store) == (False, True)
        identity = label if label and not has_failed else change
        assert named.setdefault(weights.name("run", is_given=True), identity) == identity
        assert weights.name("run", is_given=False) not in unvouched
        unvouched.add(weights.name("run", is_given=False))
