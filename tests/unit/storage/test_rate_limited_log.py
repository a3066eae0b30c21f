"""A fault that repeats is one line in a while."""

from __future__ import annotations

import logging

import pytest

from unified_tree.controllers.storage import CheckedStorage, MemoryStorage, Outcome, StoredPool
from unified_tree.controllers.storage.rate_limited_log import RateLimitedLog

KEY = bytes(32)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_line_a_kind_and_pause_and_what_was_left_out(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    limited = RateLimitedLog(60.0, clock)
    with caplog.at_level(logging.INFO, "unified_tree.storage"):
        for _ in range(3):
            limited.warning("disk", "the disk of %s fails", "here")
        limited.info("net", "the net is back")
        clock.now = 60.0
        limited.warning("disk", "the disk of %s fails", "here")
    assert caplog.messages == [
        "the disk of here fails",
        "the net is back",
        "the disk of here fails (and 2 times more since the last such line)",
    ]


def test_a_page_that_goes_bad_is_told_with_its_pool(caplog: pytest.LogCaptureFixture) -> None:
    pool = StoredPool(name="full", format_digest=bytes(32), value_bytes=128)
    store = CheckedStorage(MemoryStorage([pool]))
    store.engine.put("full", [KEY], [memoryview(bytearray(128))])
    with caplog.at_level(logging.WARNING, "unified_tree.storage"):
        assert store.get("full", [KEY], [memoryview(bytearray(128))]) == [Outcome.CORRUPT]
    assert len(caplog.messages) == 1 and "1 pages of pool 'full' that are not what was put" in caplog.text
    assert not store.engine.exists("full", [KEY]).any()
