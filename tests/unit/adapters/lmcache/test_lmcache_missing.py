"""LMCache where the package, or one that it brings, is not installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from unified_tree.controllers.adapters.lmcache import open_daemon, open_in_process
from unified_tree.controllers.testing.linked_tensors import LinkedTensors
from unified_tree.terms.errors import ConfigurationError


@pytest.mark.parametrize(
    ("opened", "missing"),
    [
        (lambda pools: open_daemon(pools, daemon="127.0.0.1:1", model="m"), "zmq"),
        (lambda pools: open_in_process(pools, model="m"), "lmcache.v1.cache_engine"),
    ],
    ids=["daemon", "in process"],
)
def test_the_error_names_the_extra(opened: Callable[[Any], object], missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigurationError, match=r"lmcache: the package cannot be imported .*'unified-tree\[lmcache\]'"):
        opened(LinkedTensors(4).linked)
