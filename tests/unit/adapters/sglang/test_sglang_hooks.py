"""The cache hears of each call that changes the weights, over stand-ins for SGLang's classes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from unified_tree.controllers.adapters.sglang.hooks import watch_weights

TOLD = ("weights_changed", "weights_failed", "weights_update_began", "weights_update_ended", "finish_copies")


class Registry:
    """`HookRegistry`, for hooks around methods."""

    hooks: dict[str, Callable[..., Any]]

    @classmethod
    def register(cls, target: str, hook: Callable[..., Any], kind: str) -> None:
        assert kind == "around"
        assert target.startswith("sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager.")
        cls.hooks[target.rpartition(".")[2]] = hook

    @classmethod
    def apply_hooks(cls) -> None:
        pass


class Manager:
    """SGLang's manager of updates, whose calls are hooked; `told` is what happened, in order."""

    def __init__(self, *, memory_saver: bool = False, cpu_backup: bool = False) -> None:
        self._session: Any = None
        self.told: list[Any] = []
        self.succeeds = True
        cache = SimpleNamespace(**{name: partial(self._tell, name) for name in TOLD})
        arguments = SimpleNamespace(enable_memory_saver=memory_saver, enable_weights_cpu_backup=cpu_backup)
        self.scheduler = SimpleNamespace(tree_cache=cache, server_args=arguments)

    def _tell(self, what: str, *label: Any) -> None:
        self.told.append((what, *label))

    def call(self, name: str, **request: Any) -> Any:
        def original(manager: Manager, request: Any) -> Any:
            self.told.append(name)
            success = manager.succeeds
            if name == "begin_weight_update":
                success = success and manager._session is None
                if success:
                    manager._session = SimpleNamespace(selector=request.selector, loaded_weights=False)
            elif name == "end_weight_update":
                success, manager._session = manager._session is not None, None
            elif name.startswith("update") and manager._session is not None:
                manager._session.loaded_weights = success
            return SimpleNamespace(success=success)

        return Registry.hooks[name](original, self, SimpleNamespace(**request))


@pytest.fixture(autouse=True)
def hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("sglang.srt.plugins.hook_registry")
    Registry.hooks = {}
    module.HookRegistry, module.HookType = Registry, SimpleNamespace(AROUND="around")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    watch_weights()


@pytest.mark.parametrize("name", ["update_weights_from_disk", "update_weights_from_ipc"])
def test_an_update_is_told_before_it_empties_the_cache(name: str) -> None:
    manager = Manager()
    assert manager.call(name, weight_version="5").success
    assert manager.told == [("weights_changed", "5"), name]


def test_an_update_that_fails_names_nothing() -> None:
    manager = Manager()
    manager.succeeds = False
    assert not manager.call("update_weights_from_disk", weight_version="5").success
    assert manager.told[-1] == ("weights_failed",)


@pytest.mark.parametrize("name", ["update_weights_from_tensor", "update_weights_from_distributed"])
def test_updates_in_sessions(name: str) -> None:
    manager = Manager()
    manager.call(name, selector="all", weight_version=None)
    assert manager.told == [name], "refused without a session"
    manager.call("begin_weight_update", selector="all")
    manager.call("begin_weight_update", selector="all")
    manager.call(name, selector="draft", weight_version=None)
    manager.call(name, selector="target", weight_version="6")
    manager.call("end_weight_update")
    manager.call("end_weight_update")
    told = [each for each in manager.told if isinstance(each, tuple)]
    assert told == [("weights_update_began",), ("weights_changed", "6"), ("weights_update_ended",)]


@pytest.mark.parametrize(("selector", "changes"), [("all", 1), ("target", 1), ("draft", 0)])
def test_weights_that_were_written_from_outside(selector: str, changes: int) -> None:
    manager = Manager()
    manager.call("begin_weight_update", selector=selector)
    manager.call("end_weight_update")
    assert manager.told.count(("weights_changed", None)) == changes
    assert manager.told[-1] == ("weights_update_ended",)


@pytest.mark.parametrize(
    ("saver", "backup", "tags", "lost"),
    [
        (True, False, None, True),
        (True, False, ["weights"], True),
        (True, False, ["kv_cache"], False),
        (True, True, None, False),
        (False, False, None, False),
    ],
)
def test_copies_end_before_memory_is_given_back(saver: bool, backup: bool, tags: list[str] | None, lost: bool) -> None:
    manager = Manager(memory_saver=saver, cpu_backup=backup)
    manager.call("release_memory_occupation", tags=tags)
    assert manager.told == [("finish_copies",), *([("weights_changed", None)] if lost else []), "release_memory_occupation"]


@pytest.mark.parametrize(
    ("action", "selector", "changes"), [("reset_tensors", "all", 1), ("reset_tensors", "draft", 0), ("checksum", "all", 0)]
)
def test_a_check_that_overwrites_weights(action: str, selector: str, changes: int) -> None:
    manager = Manager()
    manager.call("check_weights", action=action, selector=selector)
    assert manager.told.count(("weights_changed", None)) == changes
