"""`POST /hicache/storage-backend/clear` of an SGLang with this cache answered "cleared", and the store kept all of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from sglang_tiers import KINDS, TOKENS, Served

from unified_tree.terms.errors import StorageError


def found(kind: str, files: Path) -> int:
    """How many tokens the next life of a server gets from the store."""
    served = Served(kind, files)
    tokens = served.found()
    served.check_nothing_is_lost()
    served.tiers.close()
    return tokens


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_found_in_a_store_that_was_cleared(kind: str, tmp_path: Path) -> None:
    served = Served(kind, tmp_path).stored()
    assert served.store.clear()
    served.tiers.close()
    assert found(kind, tmp_path) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_copied_after_that_is_stored_again(kind: str, tmp_path: Path) -> None:
    served = Served(kind, tmp_path).stored()
    assert served.store.clear()
    assert served.tiers.storage is not None
    served.tiers.storage.flush()
    served.tiers.close()
    assert found(kind, tmp_path) == len(TOKENS)


def test_a_store_that_fails_to_clear_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served("full", tmp_path).stored()
    assert served.tiers.storage is not None

    def clear() -> None:
        raise StorageError("the disk is gone")

    monkeypatch.setattr(served.tiers.storage.tier.engine, "clear", clear)
    with caplog.at_level(logging.ERROR):
        assert not served.store.clear()
    assert "the store was not cleared: the disk is gone" in caplog.text
    monkeypatch.undo()
    served.tiers.close()
    assert found("full", tmp_path) == len(TOKENS)
