"""The check of SGLang's interface, on a small tree of sources that stands for SGLang's."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "e2e" / "sglang" / "contract.py"
BASE = """
class BasePrefixCache(ABC):
    kv_events: Optional[Any] = None

    @abstractmethod
    def evict(self, params: EvictParams) -> EvictResult:
        pass

    def touch_prefix(self, key) -> None:
        pass

    def pretty_print(self):
        pass

class MatchResult(NamedTuple):
    device_prefix_len: int
    host_hit_length: int = 0

class EvictResult:
    num_tokens_evicted: int = 0
"""
EVENTS = """
class KVCacheEventRecorder:
    def __init__(self, *, enabled: bool):
        self.lora_names = {}
"""


@pytest.fixture
def contract() -> Any:
    spec = importlib.util.spec_from_file_location("sglang_contract", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sglang_contract"] = module
    spec.loader.exec_module(module)
    return module


def sources(folder: Path, base: str = BASE, events: str = EVENTS) -> Path:
    memory = folder / "sglang" / "srt" / "mem_cache"
    memory.mkdir(parents=True, exist_ok=True)
    (memory / "base_prefix_cache.py").write_text(base)
    (memory / "events.py").write_text(events)
    (folder / "sglang-9.9.9.dist-info").mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize(
    ("old", "new", "line", "code"),
    [
        ("", "", "0 changes, 0 of which", 0),
        (
            "    def touch",
            "    @abstractmethod\n    def warm(self):\n        pass\n\n    def touch",
            "! added: BasePrefixCache.warm",
            1,
        ),
        ("    def touch", "    def warm(self):\n        pass\n\n    def touch", "  added: BasePrefixCache.warm", 0),
        ("evict(self, params: EvictParams)", "evict(self, params: EvictParams, *, now)", "! changed: BasePrefixCache.evict", 1),
        ("    def touch", "    @abstractmethod\n    def touch", "! changed: BasePrefixCache.touch_prefix", 1),
        ("    host_hit_length: int = 0\n", "", "! removed: MatchResult.host_hit_length", 1),
        ("num_tokens_evicted: int", "tokens_evicted: int", "! removed: EvictResult.num_tokens_evicted", 1),
        ("kv_events: Optional[Any] = None", "events: Optional[Any] = None", "! removed: BasePrefixCache.kv_events", 1),
    ],
)
def test_each_change_is_seen(
    contract: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
    line: str,
    code: int,
) -> None:
    interface = replace(contract.INTERFACE, record=tmp_path / "contract.json")
    assert interface.main([str(sources(tmp_path)), "--record"]) == 0
    changed = BASE.replace(old, new) if old else BASE
    assert (changed == BASE) == (not old)
    assert interface.main([str(sources(tmp_path, changed))]) == code
    said = capsys.readouterr().out
    assert line in said
    assert "SGLang 9.9.9 against 9.9.9" in said


def test_what_is_set_by_a_constructor_is_compared(contract: Any, tmp_path: Path) -> None:
    used = contract.INTERFACE.used()
    before = contract.INTERFACE.read(sources(tmp_path))
    after = contract.INTERFACE.read(sources(tmp_path, events=EVENTS.replace("self.lora_names", "self.names")))
    changes = contract.INTERFACE.compare(before, after, used)
    assert [(c.what, c.owner, c.name, c.matters) for c in changes] == [
        ("removed", "KVCacheEventRecorder", "lora_names", True),
        ("added", "KVCacheEventRecorder", "names", False),
    ]


def test_a_folder_without_sglang_is_refused(contract: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        contract.INTERFACE.main([str(tmp_path)])
    assert ended.value.code == 2
    assert "there is no sglang/srt/mem_cache/base_prefix_cache.py" in capsys.readouterr().err


def test_the_record_is_of_a_tested_version_and_has_what_the_backend_defines(contract: Any) -> None:
    from unified_tree.controllers.adapters.sglang.plugin import TESTED_VERSIONS

    [(version, record)] = contract.INTERFACE.recorded().items()
    assert version in TESTED_VERSIONS
    used = contract.INTERFACE.used()
    base = record["BasePrefixCache"]
    assert {name for name, text in base.items() if text.startswith("abstract ")} <= used


def test_the_record_has_all_that_is_compared(contract: Any) -> None:
    [record] = contract.INTERFACE.recorded().values()
    assert (
        record.keys()
        == {name for names in contract.INTERFACE.classes.values() for name in names} | contract.INTERFACE.functions.keys()
    )
    assert {name for file in contract.INTERFACE.functions for name in record[file]} == {
        name for names in contract.INTERFACE.functions.values() for name in names
    }


def test_the_removal_of_any_name_that_the_backend_uses_is_seen(contract: Any) -> None:
    [record], used = contract.INTERFACE.recorded().values(), contract.INTERFACE.used()
    found = 0
    for owner, members in record.items():
        for name in members:
            less = {**record, owner: {kept: text for kept, text in members.items() if kept != name}}
            other = {**record, owner: {**members, name: "(self, what_it_never_had)"}}
            matters = name in used or owner in contract.INTERFACE.positional | contract.INTERFACE.listed
            for after, what in ((less, "removed"), (other, "changed")):
                told = [(c.what, c.owner, c.name) for c in contract.INTERFACE.compare(record, after, used) if c.matters]
                assert told == ([(what, owner, name)] if matters else [])
            found += matters
    assert found > 100, "of them"
