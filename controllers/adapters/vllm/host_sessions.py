"""The sessions of vLLM's requests on the host tier, and what requests say of them. vLLM's own cache has no sessions."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from unified_tree.controllers.cache.engine_turns import EngineTurns
from unified_tree.controllers.cache.held_hints import FIELD, VERSION, RequestHints
from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import LeaseError

if TYPE_CHECKING:
    from unified_tree.controllers.adapters.vllm.engine_request import TrackedRequest
    from unified_tree.controllers.adapters.vllm.host_index import HostIndex
    from unified_tree.terms.results import Boundary

LOG = logging.getLogger("vllm.unified_tree")
NOT_UNDERSTOOD: Final = "hints not understood"


def said_of(request: Any) -> tuple[str | None, object]:
    """The name of the session that vLLM knows a request by, and what the request says to this cache; None for nothing.

    A client says it under `unified_tree` in `kv_transfer_params`, an orchestrator in an action of `kv_hints`.
    """
    parameters, envelope = request.kv_transfer_params, request.kv_hints
    if isinstance(parameters, Mapping) and FIELD in parameters:
        return request.session_id, parameters[FIELD]
    for action in () if envelope is None else envelope.actions:
        if action.action_type == FIELD and action.action_version == VERSION:
            return request.session_id, action.payload
    return request.session_id, None


def tenant_of(namespace: str) -> str:
    """By what groups name a namespace: the cache salt of its requests."""
    return str(json.loads(namespace)[0] or "") if namespace else ""


class HostSessions:
    """The sessions whose texts are on host.

    Args:
        index: what the host tier holds.
        infers: whether a request without a session supersedes the states that it resumed from, as a session's next turn does.

    Attributes:
        turns: the sessions and hints that are open.
    """

    def __init__(self, index: HostIndex, *, infers: bool = False) -> None:
        self._index = index
        self.turns = EngineTurns(index.tree, index.counters, infers=infers)
        self._told: dict[str, int] = {}
        tenants = index.tree.state.tenants
        named = () if tenants is None else tenants.names[: tenants.reported_groups + 1]
        self._groups = tuple([printable(name) for name in named])

    def close(self) -> None:
        """The engine ends: hints that are open end, and have their outcome. Idempotent."""
        self.turns.hints.close()

    def begin(self, tracked: TrackedRequest, name: str | None, given: object) -> None:
        """A request arrives; see `said_of`. Hints that cannot be read are left out."""
        sessions = self.turns.sessions
        try:
            tracked.hints = None if given is None else RequestHints.of(given)
            tracked.session = (tracked.hints or RequestHints()).open(sessions, name or None)
        except LeaseError as error:
            counters = self._index.counters
            if NOT_UNDERSTOOD not in counters.drops:
                LOG.warning("a request's hints are left out: %s. This is said once.", error)
            counters.count_drop(NOT_UNDERSTOOD)
            tracked.hints, tracked.session = None, sessions.open(name) if name else None

    def scheduled(self, tracked: TrackedRequest) -> None:
        """A request is about to compute what it has not; the first time counts."""
        if tracked.turn is None:
            resumed = max(tracked.local_tokens, tracked.loaded_tokens)
            tracked.turn = self.turns.begin(tracked.session, tracked.hints, resumed, tracked.prompt_tokens)

    def published(self, tracked: TrackedRequest, at: Boundary) -> None:
        """The host tier has a request's text up to a boundary."""
        tracked.reach = at
        if tracked.turn is not None:
            self.turns.published(tracked.turn, at)

    def ended(self, tracked: TrackedRequest) -> None:
        """Nothing more of a request will come into the tree. Cost: O(1), or a match if it has saved nothing."""
        turn, reach = tracked.turn, tracked.reach
        if turn is None:
            return
        tracked.turn = None
        if reach is None:
            key = tracked.key(tracked.prompt_tokens)
            reach = self._index.path_end(key, key.length)
        self.turns.ended(turn, reach, is_over=True)

    def take_counters(self) -> dict[str, int]:
        """How many sessions and hints have ended since the last call: labels of a counter stand behind a `/`."""
        counters = self._index.counters
        totals = {"ended_sessions": counters.ended_sessions}
        for (verb, outcome), count in counters.hints.items():
            totals[f"hints/{verb}/{outcome}"] = count
        for group, name in enumerate(self._groups):
            for (verb, outcome), count in counters.tenant_hints.get(group, {}).items():
                totals[f"tenant_hints/{verb}/{outcome}/{name}"] = count
        new = {name: total - self._told.get(name, 0) for name, total in totals.items()}
        self._told = totals
        return new
