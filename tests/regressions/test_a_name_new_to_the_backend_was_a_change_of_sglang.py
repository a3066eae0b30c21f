"""The record of SGLang's interface held the names that the backend used when it was made. A name that the backend began to use
later was told as SGLang's addition, and the check failed against the very version that it had recorded."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "e2e" / "sglang" / "contract.py"
ALLOCATOR = """
class BaseTokenToKVPoolAllocator(ABC):
    @abstractmethod
    def clear(self):
        pass

    def available_size(self):
        pass
"""


@pytest.fixture
def contract() -> Any:
    spec = importlib.util.spec_from_file_location("sglang_contract", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sglang_contract"] = module
    spec.loader.exec_module(module)
    return module


def sources(folder: Path, allocator: str) -> str:
    memory = folder / "sglang" / "srt" / "mem_cache"
    (memory / "allocator").mkdir(parents=True, exist_ok=True)
    (memory / "base_prefix_cache.py").write_text("class BasePrefixCache(ABC):\n    pass\n")
    (memory / "allocator" / "base.py").write_text(allocator)
    return str(folder)


def test_a_name_that_the_backend_begins_to_use_is_no_change(contract: Any, tmp_path: Path) -> None:
    backend = tmp_path / "backend"
    backend.mkdir()
    interface = replace(contract.INTERFACE, record=tmp_path / "contract.json", adapter=backend)
    (backend / "pools.py").write_text("def free(pool):\n    return pool.available_size()\n")
    assert interface.main([sources(tmp_path, ALLOCATOR), "--record"]) == 0
    (backend / "rows.py").write_text("def forget(kept):\n    kept.clear()\n")
    assert interface.main([sources(tmp_path, ALLOCATOR)]) == 0


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("available_size(self)", "available_size(self, *, kind)", 1),
        ("available_size", "room", 1),
        ("clear(self)", "clear(self, *, hard)", 0),
        ("    def available", "    @abstractmethod\n    def shrink(self):\n        pass\n\n    def available", 0),
    ],
)
def test_a_change_counts_if_the_backend_uses_it(contract: Any, tmp_path: Path, old: str, new: str, code: int) -> None:
    backend = tmp_path / "backend"
    backend.mkdir()
    interface = replace(contract.INTERFACE, record=tmp_path / "contract.json", adapter=backend)
    (backend / "pools.py").write_text("def free(pool):\n    return pool.available_size()\n")
    assert interface.main([sources(tmp_path, ALLOCATOR), "--record"]) == 0
    assert interface.main([sources(tmp_path, ALLOCATOR.replace(old, new))]) == code
