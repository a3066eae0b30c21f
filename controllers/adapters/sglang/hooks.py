"""Calls of SGLang's that no cache is told of, or that SGLang ends otherwise than this cache needs: they are hooked.

Those that change the weights of a model which is being served run in the scheduler, between two steps, on all ranks alike.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unified_tree.controllers.adapters.sglang.request_sessions import RequestSessions

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


def call_when_idle(step: Callable[[], None]) -> None:
    """Have the scheduler of this process call a function whenever it finds nothing to run, which no cache is told."""
    _hook({"sglang.srt.managers.scheduler.Scheduler.on_idle": lambda *_: step()}, kind="AFTER")


def end_sessions_alike(sessions: RequestSessions) -> None:
    """Have the cache of each of several ranks leave sessions open that SGLang closes for their time-out: it closes them by the
    clock of each rank, and ranks must evict alike."""

    def reap(call: Callable[..., None], *given: Any, **named: Any) -> None:
        sessions.may_end = False
        try:
            call(*given, **named)
        finally:
            sessions.may_end = True

    _hook({"sglang.srt.session.session_controller.SessionController.maybe_reap": reap})


def answer_whether_cleared() -> None:
    """Have SGLang answer `POST /hicache/storage-backend/clear` with what `clear_storage_backend` returns, instead of success
    whatever that is."""
    from sglang.srt.managers.io_struct import ClearHiCacheReqOutput

    def cleared(_: Any, scheduler: Any, request: Any) -> Any:
        del request
        return ClearHiCacheReqOutput(success=scheduler.tree_cache.clear_storage_backend())

    _hook({"sglang.srt.managers.scheduler.Scheduler.clear_hicache_storage_wrapped": cleared})


def keep_drafts() -> None:
    """Have SGLang go on where a draft has KV beside the model's: it ends the start with another cache than its own then, for
    want of a host pool. The host tier has one."""
    from unified_tree.controllers.adapters.sglang.backend import UnifiedTreeCache

    def registered(register: Callable[..., None], *, tree_cache: Any, draft_plan: Any) -> None:
        if not isinstance(tree_cache, UnifiedTreeCache):
            register(tree_cache=tree_cache, draft_plan=draft_plan)

    _hook({"sglang.srt.mem_cache.kv_cache_builder.maybe_register_hicache_draft": registered})


def _hook(hooks: Mapping[str, Callable[..., Any]], *, kind: str = "AROUND") -> None:
    """Register hooks by the full name of what each is called with, for a kind of SGLang's `HookType`."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in hooks.items():
        HookRegistry.register(target, hook, getattr(HookType, kind))
    HookRegistry.apply_hooks()


def watch_weights() -> None:
    """Have the cache of this process told when the weights of its model change."""
    hooks: dict[str, Callable[[Call, Any, Any], Any]] = {
        **{name: _update for name in UPDATES if name not in IN_SESSIONS},
        **dict.fromkeys(IN_SESSIONS, _update_in_session),
        "begin_weight_update": _begin,
        "end_weight_update": _end,
        "release_memory_occupation": _release_memory,
        "check_weights": _check,
    }
    _hook({f"{MANAGER}.{name}": hook for name, hook in hooks.items()})


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
