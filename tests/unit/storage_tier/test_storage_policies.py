"""Policies say what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from unified_tree import ConfigurationError
from unified_tree.controllers.storage_tier import PersistPolicy, PrefetchMode, PrefetchPolicy


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "timeout"},
        {"min_tokens": 0},
        {"batch_pages": 0},
        {"max_host_share": 0},
        {"max_host_share": 1.01},
        {"base_s": -1},
        {"per_token_s": -1},
        {"grace_s": -0.1},
        {"max_open": float("nan")},
        {"batch_pages": 1.5},
        {"min_tokens": True},
        {"base_s": float("nan")},
        {"failed_pause_s": "a"},
        {"max_host_share": None},
    ],
)
def test_prefetch_settings_that_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        PrefetchPolicy(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_waiting": 0},
        {"batch_pages": 0},
        {"known_pages": 0},
        {"bytes_per_s": 0},
        {"bytes_per_s": -1.0},
        {"max_open": float("nan")},
        {"batch_pages": 1.5},
        {"recheck_s": "a"},
        {"recheck_s": -1.0},
        {"retry_s": True},
    ],
)
def test_persist_settings_that_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        PersistPolicy(**settings)


def test_the_patience_of_each_mode() -> None:
    patience = {mode: PrefetchPolicy(mode=mode, base_s=2, per_token_s=0.5).patience_s(10) for mode in PrefetchMode}
    assert patience == {PrefetchMode.BEST_EFFORT: 0, PrefetchMode.TIMEOUT: 7, PrefetchMode.WAIT_COMPLETE: float("inf")}
    PrefetchPolicy(max_host_share=1, min_tokens=1, batch_pages=1, base_s=0, per_token_s=0, grace_s=0)
