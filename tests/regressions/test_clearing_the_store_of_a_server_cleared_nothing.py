"""`POST /hicache/storage-backend/clear` of an SGLang with this cache answered "cleared", and the store kept all of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from sglang_tiers import KINDS, TOKENS, Served
from watchdog import until

from unified_tree import Key
from unified_tree.terms.errors import StorageError

LONGER = Key([*TOKENS, 0])
"""A prefetch leaves out the last token of its key."""


def stored(kind: str, files: Path) -> Served:
    """A cache whose prompt is in the store."""
    served = Served(kind, files)
    served.publish()
    until(lambda: not served.polled().is_busy, "the store has it")
    return served


def found(kind: str, files: Path) -> int:
    """How many tokens the next life of a server gets from the store."""
    served = Served(kind, files)
    served.tiers.prefetch("request", LONGER)
    until(lambda: served.polled().is_prefetched("request"), "the prefetch ends")
    tokens = served.tiers.end_prefetch("request")
    served.check_nothing_is_lost()
    served.tiers.close()
    return tokens


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_found_in_a_store_that_was_cleared(kind: str, tmp_path: Path) -> None:
    served = stored(kind, tmp_path)
    assert served.tiers.clear_store()
    served.tiers.close()
    assert found(kind, tmp_path) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_copied_after_that_is_stored_again(kind: str, tmp_path: Path) -> None:
    served = stored(kind, tmp_path)
    assert served.tiers.clear_store()
    assert served.tiers.storage is not None
    served.tiers.storage.flush()
    served.tiers.close()
    assert found(kind, tmp_path) == len(TOKENS)


def test_a_store_that_fails_to_clear_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = stored("full", tmp_path)
    assert served.tiers.storage is not None

    def clear() -> None:
        raise StorageError("the disk is gone")

    monkeypatch.setattr(served.tiers.storage.tier.engine, "clear", clear)
    with caplog.at_level(logging.ERROR):
        assert not served.tiers.clear_store()
    assert "the store was not cleared: the disk is gone" in caplog.text
    monkeypatch.undo()
    served.tiers.close()
    assert found("full", tmp_path) == len(TOKENS)
