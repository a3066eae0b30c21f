"""The needs of a test of SGLang's own code before it imports that: the engine's python, an environment, paths, and silence."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent
HERE = SUPPORT.parent / "e2e" / "sglang"


@contextmanager
def imports() -> Iterator[None]:
    """Skip the module where there is no SGLang. Else let it import SGLang, and what lies beside the tests."""
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("the engine's python runs these", allow_module_level=True)
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    sys.path[:0] = [str(HERE), str(HERE / "standins"), str(SUPPORT)]
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
