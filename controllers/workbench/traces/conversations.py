"""Conversations turn by turn: every record holds one, and each answer in it is a request whose prompt is all that came before.

ShareGPT's files, SGLang's custom sets and its agents' turns, vLLM's multi-turn sets, LMSYS's and WildChat's logs have the
answers; aiperf's multi-turn
files and Spec-Bench have what the user says alone. There an answer is as long as the file says, or empty, of tokens that no
text has, and the next prompt repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.workbench.traces.clock import Clock, Starts
from unified_tree.controllers.workbench.traces.text_requests import (
    ASSISTANT,
    Message,
    TextRequests,
    message_of,
    messages_of,
    said_in,
    text_of,
)
from unified_tree.controllers.workbench.traces.trace_records import Record, TraceFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from unified_tree.controllers.workbench.traces.trace_records import TraceOptions
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
    matches: Callable[[dict[str, Any]], bool],
    conversations: Callable[[Record], Iterator[list[Turn]]],
) -> TraceFormat:
    def read(file: str, records: Iterable[Record], options: TraceOptions) -> Workload:
        requests, starts, clock = TextRequests(options), Starts(options), Clock(options.clock_unit, "ms")
        used: set[str] = set()
        chain = 0
        for record in records:
            for turns in conversations(record):
                if len(requests) != options.max_requests:
                    begin_s = starts.next()
                    used |= _add(requests, turns, begin_s, chain, clock)
                    chain += 1
        notes = [clock.note(f"as {name} have it", field) for field in sorted(used)]
        return requests.workload(file, notes if "timestamp" in used else [*notes, starts.note])

    def is_one(records: Sequence[Record]) -> bool:
        return matches(records[0].fields)

    return TraceFormat(name=name, fields=fields, clock=clock_text, matches=is_one, read=read)


def _has_answers(fields: dict[str, Any]) -> bool:
    """Whether it is a conversation. Messages that end with an answer are one, those that end otherwise are a prompt."""
    if any(isinstance(fields.get(name), list) for name in TURN_LISTS[:2]):
        return True
    messages = fields.get("messages")
    return isinstance(messages, list) and bool(messages) and _is_answer(messages[-1]) and "response" not in fields


def _is_answer(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == ASSISTANT


SHARE_GPT = _format(
    "conversations (ShareGPT)",
    ("conversations",),
    "none",
    _has_answers,
    _told,
)
MULTI_TURNS = _format(
    "aiperf multi-turn conversations",
    ("turns",),
    "timestamp or delay, milliseconds",
    lambda fields: isinstance(fields.get("turns"), list),
    _asked,
)
