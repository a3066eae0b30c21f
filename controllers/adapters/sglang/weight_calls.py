"""The calls of SGLang's that change the weights of a model which is being served.

No cache is told of them, so they are hooked. They run in the scheduler, between two steps, on all ranks alike.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
"""SGLang's class with these calls."""
IN_SESSIONS = ("update_weights_from_distributed", "update_weights_from_tensor")
"""Refused by SGLang outside `begin_weight_update` and `end_weight_update`."""
UPDATES = ("update_weights_from_disk", "update_weights_from_ipc", *IN_SESSIONS)
DRAFT = "draft"
"""The selector of calls that leave the weights of the model itself alone. Old state of a draft on host guesses worse, and the
answers are the same."""
WEIGHTS = "weights"
"""The tag of the model's weights, where memory is given back."""
Call = Callable[[Any, Any], Any]
"""SGLang's method, which takes the manager and a request."""


def watch_weights() -> None:
    """Have the cache of this process told when the weights of its model change."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks: dict[str, Callable[[Call, Any, Any], Any]] = {
        **{name: _update for name in UPDATES if name not in IN_SESSIONS},
        **dict.fromkeys(IN_SESSIONS, _update_in_session),
        "begin_weight_update": _begin,
        "end_weight_update": _end,
        "release_memory_occupation": _release_memory,
        "check_weights": _check,
    }
    for name, hook in hooks.items():
        HookRegistry.register(f"{MANAGER}.{name}", hook, HookType.AROUND)
    HookRegistry.apply_hooks()


def _update(call: Call, manager: Any, request: Any) -> Any:
    """New weights are loaded, and the cache is emptied if the request says so."""
    if getattr(request, "selector", None) == DRAFT:
        return call(manager, request)
    cache = manager.scheduler.tree_cache
    cache.weights_changed(request.weight_version)
    result = call(manager, request)
    if not result.success:
        cache.weights_failed()
    return result


def _update_in_session(call: Call, manager: Any, request: Any) -> Any:
    return call(manager, request) if manager._session is None else _update(call, manager, request)


def _begin(call: Call, manager: Any, request: Any) -> Any:
    """A session of updates begins, unless one is open."""
    result = call(manager, request)
    if result.success:
        manager.scheduler.tree_cache.weights_update_began()
    return result


def _end(call: Call, manager: Any, request: Any) -> Any:
    """A session ends. One without updates is of a trainer that has written the weights from outside, at some time in it."""
    session, cache = manager._session, manager.scheduler.tree_cache
    if session is not None and not session.loaded_weights and session.selector != DRAFT:
        cache.weights_changed(None)
    result = call(manager, request)
    if result.success:
        cache.weights_update_ended()
    return result


def _release_memory(call: Call, manager: Any, request: Any) -> Any:
    """The device's memory is given back: copies from it end before, and weights without a copy on host are lost."""
    cache, arguments = manager.scheduler.tree_cache, manager.scheduler.server_args
    cache.finish_copies()
    is_lost = arguments.enable_memory_saver and not arguments.enable_weights_cpu_backup
    if is_lost and WEIGHTS in (request.tags or (WEIGHTS,)):
        cache.weights_changed(None)
    return call(manager, request)


def _check(call: Call, manager: Any, request: Any) -> Any:
    """A check may overwrite the weights."""
    if request.action == "reset_tensors" and request.selector != DRAFT:
        manager.scheduler.tree_cache.weights_changed(None)
    return call(manager, request)
