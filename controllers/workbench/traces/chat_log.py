"""Logs of calls: every record holds a whole prompt, as messages, as a text or as token ids.

OpenAI's chat logs and batch files, SageMaker's data capture, LMCache's agent texts, aiperf's single turns and the prompt sets
of vLLM's and SGLang's benchmarks are such. Where records tell a session, its calls follow one another, and a call whose
prompt goes on from the one before it shows what that one's answer was.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.workbench.traces.text_requests import (
    ASSISTANT,
    Message,
    TextRequests,
    dumped,
    message_of,
    messages_of,
    said_in,
    text_of,
)
from unified_tree.controllers.workbench.traces.trace_records import MAX_TOKENS, Clock, Record, Starts, TraceFormat, time_field
from unified_tree.controllers.workbench.traces.workload import NO_CHAIN
from unified_tree.inputs.given_files import NotJsonError, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unified_tree.controllers.workbench.traces.text_requests import Tokens
    from unified_tree.controllers.workbench.traces.trace_records import TraceOptions
    from unified_tree.controllers.workbench.traces.workload import Workload

SESSIONS = ("session_id", "conversation_id", "thread_id")
TEXTS = ("prompt", "text", "text_input", "texts", "input")
TOKEN_IDS = ("prompt_token_ids", "input_ids", "token_ids")
LENGTHS = ("output_length", "output_tokens", "output_len", "max_completion_tokens", "max_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call, as its record tells it.

    Attributes:
        body: holds the prompt.
        response: holds the answer; None if it was not logged.
        time: the record and field of its time; None if it has none.
        wait: likewise of how long it came after the one before it of its session.
        session: what it has in common with the other calls of its session; None if it is alone.
    """

    body: Record
    response: Record | None = None
    time: tuple[Record, str] | None = None
    wait: tuple[Record, str] | None = None
    session: object = None


@dataclass(frozen=True, slots=True)
class _Prompt:
    tokens: Tokens
    messages: list[Message]


@dataclass(frozen=True, slots=True)
class _Open:
    """The last call of a session, whose answer the next one may show."""

    place: Record
    prompt: _Prompt
    output_tokens: int | None
    arrival_s: float
    order: int


class _Log:
    """State that carries over from one call to the next."""

    def __init__(self, options: TraceOptions, clock: Clock) -> None:
        self.requests = TextRequests(options)
        self.starts = Starts(options)
        self.has_starts = False
        self.has_times = False
        self.wait: str | None = None
        self._clock = clock
        self._chains: dict[object, int] = {}
        self._open: dict[int, _Open] = {}
        self.count = 0

    def add(self, call: Call) -> None:
        """One more call."""
        prompt = self._prompt(call.body)
        chain = NO_CHAIN if call.session is None else self._chains.setdefault(call.session, len(self._chains))
        before = self._open.pop(chain, None)
        arrival_s = self._arrival(call, before)
        if before is not None:
            self._end(before, chain, prompt)
        answer, output_tokens = self._answer(call)
        if chain == NO_CHAIN or answer is not None:
            self.requests.add(
                call.body, prompt.tokens, answer,
                output_tokens=output_tokens, arrival_s=arrival_s, chain=chain, order=self.count,
            )  # fmt: skip
            if chain != NO_CHAIN:
                self._open[chain] = _Open(call.body, _Prompt(prompt.tokens, []), None, arrival_s, -1)
        else:
            self._open[chain] = _Open(call.body, prompt, output_tokens, arrival_s, self.count)
        self.count += 1

    def end(self) -> None:
        """There are no more."""
        for chain, last in self._open.items():
            self._end(last, chain, None)

    def _end(self, call: _Open, chain: int, following: _Prompt | None) -> None:
        """The call's answer is what the following prompt says after it, if it goes on from it."""
        if call.order < 0:
            return
        answer = None
        tokens, count = call.prompt.tokens, len(call.prompt.messages)
        if following is not None and count and len(following.messages) > count:
            goes_on = following.tokens.size > tokens.size and np.array_equal(following.tokens[: tokens.size], tokens)
            if goes_on and following.messages[count].role == ASSISTANT:
                answer = self.requests.spoken(following.messages[count].text)
        self.requests.add(
            call.place, tokens, answer,
            output_tokens=call.output_tokens, arrival_s=call.arrival_s, chain=chain, order=call.order,
        )  # fmt: skip

    def _arrival(self, call: Call, before: _Open | None) -> float:
        if call.time is not None:
            self.has_times = True
            return self._clock.seconds(*call.time)
        if before is None:
            self._clock.untimed(call.body, "timestamp")
            self.has_starts = True
            return self.starts.next()
        if call.wait is None:
            return before.arrival_s
        self.wait = call.wait[1]
        return before.arrival_s + self._clock.duration(*call.wait)

    def _prompt(self, body: Record) -> _Prompt:
        fields, requests = body.fields, self.requests
        for name in TOKEN_IDS:
            if name in fields:
                return _Prompt(_token_ids(body, name), [])
        heads = [Message("system", text_of(body, name)) for name in ("system", "instructions") if fields.get(name)]
        if fields.get("tools"):
            heads.insert(0, Message("tools", dumped(body, "tools")))
        name = "messages" if "messages" in fields else next((name for name in TEXTS if name in fields), "messages")
        if name not in fields:
            raise body.error(
                "has no prompt (messages, prompt, text, token ids), unlike the trace's first; it has", list(fields)
            )
        value = fields[name]
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value) and name != "texts":
            messages = [*heads, *(messages_of(body, name) if name == "messages" else _turns(body, name))]
            if messages[-1].role == ASSISTANT and name == "messages":
                messages.pop()  # it is the answer
            return _Prompt(requests.prompt(messages), messages)
        if isinstance(value, list) and value and type(value[0]) is int:
            return _Prompt(_token_ids(body, name), [])
        if name == "messages" or not (isinstance(value, str) or (name == "texts" and isinstance(value, list))):
            raise body.inner(name).error("must be messages, a text or token ids", value)
        text = text_of(body, name)
        if heads:
            return _Prompt(requests.prompt([*heads, Message("user", text)]), [])
        return _Prompt(requests.tokenizer.tokens(text), [])

    def _answer(self, call: Call) -> tuple[Tokens | None, int | None]:
        """The answer that was logged, or its length."""
        text = None if call.response is None else _response_text(call.response)
        messages = call.body.fields.get("messages")
        if text is None and isinstance(messages, list) and len(messages) > 1 and isinstance(messages[-1], dict):
            last = Record(messages[-1], call.body.where, f"messages[{len(messages) - 1}]")
            text = said_in(last) if last.fields.get("role") == ASSISTANT else None
        if text is not None:
            return self.requests.spoken(text), None
        places = [call.body] if call.response is None else [call.response, call.body]
        for place in places:
            usage = place.record("usage") if isinstance(place.fields.get("usage"), dict) else place
            for name in ("completion_tokens", *LENGTHS):
                if type(usage.fields.get(name)) is int:
                    return None, usage.integer(name)
        return None, None


def _turns(body: Record, name: str) -> list[Message]:
    """Messages among which, as in OpenAI's responses interface, may be calls of tools and their results."""
    return [
        message_of(item) if "role" in item.fields else Message(str(item.fields.get("type", "item")), dumped(item, "type"))
        for item in body.records(name)
    ]


def _token_ids(body: Record, name: str) -> Tokens:
    value = body.items(name)
    for item in value:
        if type(item) is not int or not 0 <= item < 1 << 31:
            raise body.inner(name).error("must be a list of token ids, below 2**31", item)
    if len(value) > MAX_TOKENS:
        raise body.inner(name).error(f"is longer than {MAX_TOKENS} tokens", value)
    return np.array(value, np.int32)


def _response_text(response: Record) -> str | None:
    """The text of a response, in the form of OpenAI's or Anthropic's interface; None if there is none."""
    fields = response.fields
    if isinstance(fields.get("choices"), list) and fields["choices"]:
        choice = next(response.records("choices"))
        if isinstance(choice.fields.get("message"), dict):
            return said_in(Record({"content": None, **choice.fields["message"]}, response.where, "message"))
        return text_of(choice, "text") if "text" in choice.fields else None
    for name in ("content", "output_text", "output", "text", "generated_text"):
        if fields.get(name):
            return text_of(response, name)
    return None


def _time(*records: Record) -> tuple[Record, str] | None:
    return next(((record, name) for record in records if (name := time_field(record)) is not None), None)


def _session(record: Record) -> object:
    name = next((name for name in SESSIONS if name in record.fields), None)
    return None if name is None else record.key(name)


def _inner(record: Record, *names: str) -> Record | None:
    """The first of these fields that is an object."""
    return next((record.record(name) for name in names if isinstance(record.fields.get(name), dict)), None)


OWN = "as {} have it"
BODIES = ("body", "request", "payload", "obj", "inputs", "request_body")
ANSWERS = ("response", "completion", "result", "outputs", "response_body", "output")


def _logged(record: Record) -> Call:
    """A call of a log: the body itself, or one in an envelope, maybe beside its response."""
    body = _inner(record, *BODIES) or record
    response = record if isinstance(record.fields.get("choices"), list) else _inner(record, *ANSWERS)
    response = response and (_inner(response, "body") or response)
    times = _time(record, *([] if response is None else [response]))
    return Call(body=body, response=response, time=times, session=_session(record))


def _captured(record: Record) -> Call:
    """A call of SageMaker's data capture."""
    data, event = record.record("captureData"), record.record("eventMetadata")
    response = _decoded(data.record("endpointOutput")) if isinstance(data.fields.get("endpointOutput"), dict) else None
    body = _decoded(data.record("endpointInput"))
    if body is None:
        raise data.inner("endpointInput").error("is no JSON object: a chat's messages are needed", None)
    return Call(body=body, response=response, time=(event, "inferenceTime"))


def _decoded(part: Record) -> Record | None:
    """The JSON object in a part of a capture; None for anything else."""
    text = part.text("data").encode("utf-8", "replace")
    try:
        if part.fields.get("encoding", "BASE64") == "BASE64":
            text = base64.b64decode(text, validate=True)
        value = parse_json(text)
    except (NotJsonError, binascii.Error):
        return None
    return Record(value, part.where, part.path) if isinstance(value, dict) else None


def _agent(record: Record) -> Call:
    """A call of LMCache's agent texts: `pre_gap` seconds after the one before it."""
    wait = (record, "pre_gap") if "pre_gap" in record.fields else None
    return Call(body=record, wait=wait, session=record.key("session_id"))


def _turn(record: Record) -> Call:
    """A single turn of aiperf's."""
    body = _inner(record, "payload") or record
    wait = (record, "delay") if "delay" in record.fields else None
    time = (record, "timestamp") if "timestamp" in record.fields else None
    return Call(body=body, time=time, wait=wait, session=_session(record))


def _format(
    name: str,
    fields: tuple[str, ...],
    time: str,
    unit: str,
    matches: Callable[[dict[str, Any]], bool],
    call_of: Callable[[Record], Call],
) -> TraceFormat:
    def read(file: str, records: Iterable[Record], options: TraceOptions) -> Workload:
        clock = Clock(options.clock_unit, unit, time)
        log = _Log(options, clock)
        for record in records:
            if log.count == options.max_requests:
                break
            log.add(call_of(record))
        log.end()
        notes = [clock.note(OWN.format(name))] if log.has_times else []
        notes += [log.starts.note] if log.has_starts else []
        notes += [clock.note(OWN.format(name), log.wait)] if log.wait is not None else []
        return log.requests.workload(file, notes)

    return TraceFormat(
        name=name, fields=fields, clock=f"{time}, {unit}", matches=lambda records: matches(records[0].fields), read=read
    )


def _holds_prompt(fields: dict[str, Any]) -> bool:
    return isinstance(fields.get("messages"), list) or any(name in fields for name in (*TEXTS, *TOKEN_IDS))


SAGEMAKER = _format(
    "SageMaker data captures",
    ("captureData", "eventMetadata"),
    "inferenceTime",
    "s",
    lambda fields: "captureData" in fields and "eventMetadata" in fields,
    _captured,
)
BATCH = _format(
    "OpenAI batch files",
    ("custom_id", "body"),
    "none",
    "s",
    lambda fields: "custom_id" in fields and isinstance(fields.get("body"), dict),
    _logged,
)
LMCACHE = _format(
    "LMCache agent texts",
    ("session_id", "input", "output_length"),
    "pre_gap",
    "s",
    lambda fields: "session_id" in fields and isinstance(fields.get("input"), list) and "output_length" in fields,
    _agent,
)
SINGLE_TURNS = _format(
    "aiperf single turns",
    ("text",),
    "timestamp",
    "ms",
    lambda fields: (
        any(name in fields for name in ("text", "texts", "text_input"))
        or ("messages" in fields and ("delay" in fields or "output_length" in fields))
    ),
    _turn,
)
CHAT_LOG = _format(
    "OpenAI chat logs",
    ("messages",),
    "timestamp",
    "s",
    lambda fields: (
        isinstance(fields.get("messages"), list)
        or any(isinstance(fields.get(name), dict) and _holds_prompt(fields[name]) for name in BODIES)
    ),
    _logged,
)
PROMPTS = _format("prompts of vLLM's and SGLang's benchmarks", ("prompt",), "timestamp", "s", _holds_prompt, _logged)
