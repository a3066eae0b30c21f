"""Serves random mixes by one SGLang engine: `python serve_mixes.py SPEC.json`, run by the engine's python.

The spec names the model, the engine's settings, the seeds and the result's path. Each wave reaches the scheduler as a whole,
so that a run depends on its seed alone, aborts of running requests aside. Every other mix has aborts. The cache is emptied
between two mixes, unless it has a store, which that would close. The models have no end token, so each answer has the length
asked for; `ignore_eos` is not set, as SGLang then expects full length and never takes a running request back.

Where arithmetic depends on the batch, two engines may choose differently between two tokens that are as good as equally
likely. So a spec may ask for the `margins` of the chosen tokens, and name the result of another engine as `answers`:
conversations go on with these, and one such choice leaves the later requests alike. A spec with a `turn_file` serves while it
holds that file.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mix import Mix, MixSettings, Request


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

    A request names the one that it continues, and sends the rest of its prompt alone.

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


class Client:
    """One engine, asked in process; its scheduler runs in a child process."""

    def __init__(self, engine: Any, *, wants_margins: bool = False) -> None:
        self._engine = engine
        self._manager = engine.tokenizer_manager
        self._sent = 0
        self._asks_more = {"return_logprob": True, "top_logprobs_num": 2} if wants_margins else {}

    async def mix(
        self, seed: int, settings: MixSettings, *, is_apart: bool, known: dict[int, list[int]] | None = None
    ) -> dict[str, object]:
        """What one mix gave, request by request. One that runs apart shares no prefix with the mixes before it.

        Args:
            known: answers by request, with which conversations go on instead of those of this engine.
        """
        mix = Mix(seed, settings)
        kind = Sessions if settings.sessions else NamedSessions if settings.session_ids else None
        sessions = None if kind is None else kind(self._manager, f"{seed}/")
        lengths: dict[int, int] = {}
        rows: list[dict[str, object]] = []
        start = time.perf_counter()
        while wave := mix.wave():
            answers = await self._wave(wave, f"{seed}/" if is_apart else "", sessions, lengths)
            for request, answer in zip(wave, answers, strict=True):
                lengths[request.number] = len(request.prompt) + len(answer["output_ids"])
                mix.answered(request, (known or {}).get(request.number, answer["output_ids"]))
                rows.append(_row(request, answer))
        if sessions is not None:
            await sessions.close_some(1.0)
        done = {} if sessions is None else sessions.done
        return {"seed": seed, "seconds": time.perf_counter() - start, "requests": rows, "sessions": done}

    async def empty(self) -> None:
        """Forget all cached prefixes."""
        for _ in range(50):
            if (await self._manager.flush_cache()).success:
                return
            await asyncio.sleep(0.1)
        raise RuntimeError("the engine does not come to rest: its cache cannot be emptied")

    async def _wave(
        self, wave: list[Request], apart: str, sessions: Sessions | None, lengths: dict[int, int]
    ) -> list[dict[str, Any]]:
        from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

        names = [f"r{self._sent + i}-" for i in range(len(wave))]
        self._sent += len(wave)
        asked: list[dict[str, Any]] = [{"input_ids": list(request.prompt)} for request in wave]
        if sessions is not None:
            asked = await sessions.asked(wave, names, lengths)
        await self._manager._async_dispatch_to_scheduler(PauseGenerationReqInput(mode="in_place"))
        tasks = [asyncio.create_task(self._ask(*each, apart)) for each in zip(names, wave, asked, strict=True)]
        while not all(name in self._manager.rid_to_state for name in names):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.002)
        for name, request in zip(names, wave, strict=True):
            if request.abort == "waiting":
                self._manager.abort_request(rid=name)
        await self._manager._async_dispatch_to_scheduler(ContinueGenerationReqInput())
        if sessions is not None:
            await asyncio.sleep(0.02)
            await sessions.close_some(0.04)
        return list(await asyncio.gather(*tasks))

    async def _ask(self, name: str, request: Request, given: dict[str, Any], apart: str) -> dict[str, Any]:
        from sglang.srt.managers.io_struct import GenerateReqInput

        asked = GenerateReqInput(
            **given,
            **self._asks_more,
            sampling_params={"temperature": 0, "max_new_tokens": request.new_tokens},
            rid=name,
            extra_key=apart + (request.namespace[0] or "") or None,
            cache_salt=request.namespace[1],
            lora_path=request.namespace[2],
            stream=request.abort == "running",
        )
        answer: dict[str, Any] = {"output_ids": [], "meta_info": {}}
        spoken: list[int] = []
        async for chunk in self._manager.generate_request(asked, None):
            answer = chunk
            spoken = list(chunk["output_ids"]) if len(chunk["output_ids"]) >= len(spoken) else spoken + chunk["output_ids"]
            if request.abort == "running" and len(spoken) >= 4:
                self._manager.abort_request(rid=name)
        return {**answer, "output_ids": spoken}


def _row(request: Request, answer: dict[str, Any]) -> dict[str, object]:
    told = answer["meta_info"]
    return {
        "number": request.number,
        "adapter": request.namespace[2],
        "prompt_tokens": told["prompt_tokens"] if request.abort == "no" else len(request.prompt),
        "known_tokens": request.known_tokens,
        "cached_tokens": told.get("cached_tokens", 0),
        "retractions": told.get("num_retractions", 0),
        "verifications": told.get("spec_verify_ct", 0),
        "abort": request.abort,
        "finish": (told.get("finish_reason") or {}).get("type"),
        "output": answer["output_ids"],
        "margins": [best[0] - second[0] for best, second in told.get("output_top_logprobs") or ()],
    }


@contextmanager
def turn(path: str | None) -> Iterator[None]:
    """Hold a file that several engines name, so that one of them serves at a time."""
    if path is None:
        yield
        return
    with open(path, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def answers(path: str | None) -> dict[int, dict[int, list[int]]]:
    """The answers in the result of another engine, by seed and request."""
    if path is None:
        return {}
    mixes = json.loads(Path(path).read_text())["mixes"]
    return {mix["seed"]: {row["number"]: row["output"] for row in mix["requests"]} for mix in mixes}


def serve(path: Path) -> None:
    """Start the engine of a spec, serve the mixes, write what they gave."""
    import sglang

    spec = json.loads(path.read_text())
    engine = sglang.Engine(**spec["engine"])
    client = Client(engine, wants_margins=spec.get("margins", False))
    known = answers(spec.get("answers"))
    settings = MixSettings(**spec["mix"])

    async def mixes_of_all() -> list[dict[str, object]]:
        mixes = []
        for seed in spec["seeds"]:
            own = replace(settings, aborts=settings.aborts and seed % 2 == 1)
            if spec["empties"]:
                await client.empty()
            mixes.append(await client.mix(seed, own, is_apart=not spec["empties"], known=known.get(seed)))
            done = mixes[-1]
            print(f"seed {seed}: {len(done['requests'])} requests in {done['seconds']:.1f} s", flush=True)  # type: ignore[arg-type]
        await client.empty()
        return mixes

    try:
        with turn(spec.get("turn_file")):
            mixes = engine.loop.run_until_complete(mixes_of_all())
        Path(spec["result"]).write_text(json.dumps({"mix": asdict(settings), "mixes": mixes}))
    finally:
        engine.shutdown()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
