"""Conversations by SGLang's sessions: a request names the one that it continues, and sends the rest of its prompt alone."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from mix import Request


@dataclass(slots=True)
class Session:
    """An open session: by number each of its requests, with SGLang's name, the length of its text, and its parent."""

    name: str
    names: dict[int, str] = field(default_factory=dict)
    parents: dict[int, int | None] = field(default_factory=dict)

    def forget_after(self, number: int) -> None:
        """Forget what continued a request, as SGLang does where it is replaced."""
        for child in [each for each, parent in self.parents.items() if parent == number]:
            self.forget_after(child)
            del self.names[child], self.parents[child]


class Sessions:
    """The sessions of one mix. They fork where two requests continue one, replace what continued it, and close at any time.

    Args:
        manager: SGLang's `TokenizerManager`.
        name: of the mix, and the seed of the draws.
    """

    def __init__(self, manager: Any, name: str) -> None:
        self._manager = manager
        self._name = name
        self._draw = random.Random(name)
        self._open: dict[str, Session] = {}
        self.done: Counter[str] = Counter()

    async def asked(self, requests: list[Request], names: list[str], lengths: dict[int, int]) -> list[dict[str, Any]]:
        """How each request of a wave is asked for: its tokens, and the parameters of its session if it has one.

        Args:
            names: SGLang's, of these requests.
            lengths: of what the requests before have asked and were answered, by number.
        """
        used: set[str] = set()
        return [await self._asked(request, name, lengths, used) for request, name in zip(requests, names, strict=True)]

    async def _asked(self, request: Request, name: str, lengths: dict[int, int], used: set[str]) -> dict[str, Any]:
        whole: dict[str, Any] = {"input_ids": list(request.prompt)}
        if self._draw.random() < 0.1:
            return whole
        session = next((each for each in self._open.values() if request.source in each.names), None)
        if session is None or request.source is None:
            session = await self._opened()
            session.names[request.number], session.parents[request.number] = name, None
            used.add(session.name)
            return {**whole, "session_params": {"id": session.name}}
        parameters: dict[str, Any] = {"id": session.name, "rid": session.names[request.source]}
        if self._draw.random() < 0.2 and session.name not in used:
            session.forget_after(request.source)
            parameters["replace"] = True
            self.done["replaced"] += 1
        if request.kept < lengths[request.source]:
            parameters["offset"] = request.kept
            self.done["cut"] += 1
        used.add(session.name)
        self.done["continued"] += 1
        session.names[request.number], session.parents[request.number] = name, request.source
        return {"input_ids": list(request.prompt[request.kept :]), "session_params": parameters}

    async def _opened(self, *, is_told: bool = True) -> Session:
        from sglang.srt.managers.io_struct import OpenSessionReqInput

        self.done["opened"] += 1
        session = Session(f"{self._name}s{self.done['opened']}")
        if is_told:
            await self._manager.open_session(OpenSessionReqInput(capacity_of_str_len=1 << 20, session_id=session.name))
        self._open[session.name] = session
        return session

    async def close_some(self, chance: float) -> None:
        """Close open sessions by chance, whether or not their requests run."""
        from sglang.srt.managers.io_struct import CloseSessionReqInput

        for name in [each for each in self._open if self._draw.random() < chance]:
            del self._open[name]
            self.done["closed"] += 1
            await self._manager.close_session(CloseSessionReqInput(session_id=name))


class NamedSessions(Sessions):
    """Sessions by `session_id` alone, with `--enable-session-radix-cache`: requests send their whole prompts. Some have KV
    hints of what is to become of their session.
    """

    async def _asked(self, request: Request, name: str, lengths: dict[int, int], used: set[str]) -> dict[str, Any]:
        del lengths, used
        asked: dict[str, Any] = {"input_ids": list(request.prompt)}
        if self._draw.random() < 0.1:
            return asked
        session = next((each for each in self._open.values() if request.source in each.names), None)
        if session is None:
            session = await self._opened(is_told=self._draw.random() < 0.5)
        else:
            self.done["continued"] += 1
        session.names[request.number] = name
        asked["session_id"] = session.name
        if self._draw.random() < 0.3:
            self.done["hinted"] += 1
            payload = self._draw.choice(
                ({"retain": True}, {"retain": 2}, {"pin": True}, {"share": True}, {"demote": True}, {"unpin": True}, {"no": 1})
            )
            action = {"action_id": "1", "action_type": "unified_tree", "action_version": "1", "payload": payload}
            asked["kv_hints"] = {"protocol_version": "1", "message_id": name, "actions": [action]}
        return asked
