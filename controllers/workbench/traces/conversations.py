"""Conversations turn by turn: every record holds one, and each answer in it is a request whose prompt is all that came before.

ShareGPT's files, SGLang's custom sets and its agents' turns, vLLM's multi-turn sets, LMSYS's and WildChat's logs have the
answers; aiperf's multi-turn files and Spec-Bench have what the user says alone. There an answer is as long as the file says, or
empty, of tokens that no text has, and the next prompt repeats it.

Claude Code's session logs have one message a line, each with a `uuid` and that of its parent, and a `timestamp` (a date). A
call of the model is the lines of one answer, which share their message's `id`. Its prompt is all messages on the way from the
root to there; it is sent when the last of them is written. System prompt and tools are not in the logs, so prompts are that
much shorter than they were, and sessions share nothing at their beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.traces.text_requests import (
    ASSISTANT,
    Message,
    TextRequests,
    message_of,
    messages_of,
    said_in,
    text_of,
)
from unified_tree.controllers.workbench.traces.trace_records import Clock, Record, Starts, TraceFormat, time_field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from unified_tree.controllers.workbench.traces.trace_records import Record, TraceOptions
    from unified_tree.controllers.workbench.traces.workload import Workload


TURN_LISTS = ("conversations", "conversation", "messages")
TEXTS = ("text", "texts", "content", "prompt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The messages before an answer, and the answer.

    Attributes:
        place: the record that it is from.
        messages: what is new.
        answer: what was said; None if that is not known.
        output_tokens: how long the answer is, if it is not known.
    """

    place: Record
    messages: list[Message]
    answer: str | None = None
    output_tokens: int = 0


def _told(record: Record) -> Iterator[list[Turn]]:
    """Conversations with answers: one, or those of SGLang's agents."""
    name = next((name for name in TURN_LISTS if name in record.fields), TURN_LISTS[0])
    said = record.items(name)
    if said and isinstance(said[0], list):
        for i, each in enumerate(said):
            asked = Record({"turns": each}, record.where, f"{name}[{i}]").records("turns")
            yield [Turn(place=turn, messages=messages_of(turn), output_tokens=_output_tokens(turn)) for turn in asked]
        return
    turns: list[Turn] = []
    before: list[Message] = []
    for line in record.records(name):
        message = message_of(line)
        if message.role == ASSISTANT and before:
            turns.append(Turn(place=line, messages=before, answer=said_in(line)))
            before = []
        else:
            before.append(message)
    if before and before[-1].role != "system":
        turns.append(Turn(place=record, messages=before))
    yield turns


def _asked(record: Record) -> Iterator[list[Turn]]:
    """A conversation of which the user's side is known alone."""
    turns = []
    for i, item in enumerate(record.items("turns")):
        turn = Record({"text": item} if isinstance(item, str) else item, record.where, f"turns[{i}]")
        if "messages" in turn.fields:
            messages = messages_of(turn)
        else:
            name = next((name for name in TEXTS if name in turn.fields), None)
            if name is None:
                raise turn.error("has no text", list(turn.fields))
            role = turn.fields.get("role")
            messages = [Message(role if isinstance(role, str) else "user", text_of(turn, name))]
        turns.append(Turn(place=turn, messages=messages, output_tokens=_output_tokens(turn)))
    yield turns


def _output_tokens(turn: Record) -> int:
    return next((turn.integer(name) for name in ("output_length", "max_tokens") if name in turn.fields), 0)


def _add(requests: TextRequests, turns: Sequence[Turn], begin_s: float, chain: int, clock: Clock) -> set[str]:
    """Add the requests of a conversation; the fields of which times were taken."""
    history: list[Message] = []
    at_s, used = begin_s, set()
    for turn in turns:
        if len(requests) == requests.options.max_requests:
            break
        if "delay" in turn.place.fields:
            at_s += clock.duration(turn.place, "delay")
            used.add("delay")
        elif "timestamp" in turn.place.fields:
            at_s = clock.seconds(turn.place, "timestamp")
            used.add("timestamp")
        history += turn.messages
        answer = requests.spoken(turn.answer) if turn.answer is not None else requests.unknown(turn.output_tokens)
        requests.add(turn.place, requests.prompt(history), answer, arrival_s=at_s, chain=chain)
        history.append(Message(ASSISTANT, turn.answer if turn.answer is not None else answer))
    return used


def _format(
    name: str,
    fields: tuple[str, ...],
    clock_text: str,
    matches: Callable[[Record], bool],
    conversations: Callable[[Record], Iterator[list[Turn]]],
) -> TraceFormat:
    def read(file: str, records: Iterable[Record], options: TraceOptions) -> Workload:
        requests, starts, clock = TextRequests(options), Starts(options), Clock(options.clock_unit, "ms")
        begins = Clock(options.clock_unit, "s")
        used: set[str] = set()
        chain = 0
        for record in records:
            time = time_field(record)
            for turns in conversations(record):
                if len(requests) != options.max_requests:
                    begin_s = starts.next() if time is None else begins.seconds(record, time)
                    if time is None:
                        begins.untimed(record, "timestamp")
                    used |= _add(requests, turns, begin_s, chain, clock)
                    chain += 1
        notes = [clock.note(f"as {name} have it", field) for field in sorted(used)]
        if "timestamp" not in used:
            notes.append(begins.note(f"as {name} have it") if begins.was_read else starts.note)
        return requests.workload(file, notes)

    return TraceFormat(name=name, fields=fields, clock=clock_text, matches=lambda records: matches(records[0]), read=read)


def _has_answers(record: Record) -> bool:
    """Whether it is a conversation. Messages that end with an answer are one, those that end otherwise are a prompt, and those
    with a time a call.
    """
    fields = record.fields
    if any(isinstance(fields.get(name), list) for name in TURN_LISTS[:2]):
        return True
    if "response" in fields or time_field(record) is not None:
        return False
    messages = fields.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return isinstance(last, dict) and last.get("role") == ASSISTANT


SHARE_GPT = _format("conversations (ShareGPT)", ("conversations",), "none", _has_answers, _told)
MULTI_TURNS = _format(
    "aiperf multi-turn conversations",
    ("turns",),
    "timestamp or delay, milliseconds",
    lambda record: isinstance(record.fields.get("turns"), list),
    _asked,
)


KINDS = ("user", ASSISTANT)


@dataclass(slots=True, eq=False)
class _Line:
    """A line of the log that has a place in a conversation."""

    record: Record
    parent: _Line | None
    at_s: float
    message: Message | None = None
    answer: object = None
    """The fields that the lines of one answer have in common."""


def _read_claude_code(name: str, records: Iterable[Record], options: TraceOptions) -> Workload:
    clock, lines = Clock(options.clock_unit, "ms"), dict[object, _Line]()
    answers: dict[object, list[_Line]] = {}
    left_out = 0
    for record in records:
        fields = record.fields
        if "uuid" not in fields:
            left_out += 1
            continue
        line = _Line(record, lines.get(_text_or_none(record, "parentUuid")), clock.seconds(record, "timestamp"))
        lines[_text_or_none(record, "uuid")] = line
        if fields.get("type") in KINDS and "message" in fields:
            message = record.record("message")
            line.message = message_of(message)
            if line.message.role == ASSISTANT:
                line.answer = _text_or_none(message, "id") if "id" in message.fields else line
                if line.answer not in answers and len(answers) == options.max_requests:
                    break
                answers.setdefault(line.answer, []).append(line)
    requests, chains = TextRequests(options), dict[object, int]()
    for spoken in answers.values():
        _add_answer(requests, spoken, chains)
    notes = [
        clock.note("as Claude Code's logs have it"),
        f"conversations: {len(chains)}; system prompt and tools are not in such logs, and so in no prompt here",
    ]
    if left_out:
        notes.append(f"lines that are no messages, left out: {left_out}")
    return requests.workload(name, notes)


def _text_or_none(record: Record, name: str) -> object:
    value = record.fields.get(name)
    if value is not None and not isinstance(value, str):
        raise record.inner(name).error("must be a string", value)
    return value


def _add_answer(requests: TextRequests, spoken: Sequence[_Line], chains: dict[object, int]) -> None:
    """The request that these lines are the answer to."""
    history, line = [], spoken[0].parent
    sent_s, root = spoken[0].at_s, spoken[0]
    if line is not None:
        sent_s = min(sent_s, line.at_s)
    while line is not None:
        history.append(line)
        root, line = line, line.parent
    texts = [str(line.message.text) for line in spoken if line.message is not None]
    requests.add(
        spoken[0].record,
        requests.prompt(_joined(history[::-1])),
        requests.spoken("\n".join(texts)),
        arrival_s=sent_s,
        chain=chains.setdefault(id(root), len(chains)),
    )


def _joined(lines: Sequence[_Line]) -> list[Message]:
    """The messages of lines, in which those of one answer are one."""
    messages: list[Message] = []
    last: object = None
    for line in lines:
        if line.message is None:
            continue
        if line.answer is not None and line.answer == last:
            messages[-1] = Message(ASSISTANT, f"{messages[-1].text}\n{line.message.text}")
        else:
            messages.append(line.message)
        last = line.answer
    return messages


CLAUDE_CODE = TraceFormat(
    name="Claude Code session logs",
    fields=("type", "uuid", "timestamp", "message"),
    clock="timestamp, a date",
    matches=lambda records: any(record.fields.get("type") in KINDS and record.has("uuid", "message") for record in records),
    read=_read_claude_code,
)
