"""Claude Code's session logs: one message a line, each with a `uuid` and that of its parent, and a `timestamp` (a date).

A call of the model is the lines of one answer, which share their message's `id`. Its prompt is all messages on the way from the
root to there; it is sent when the last of them is written. System prompt and tools are not in the logs, so prompts are that
much shorter than they were, and sessions share nothing at their beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.traces.clock import Clock
from unified_tree.controllers.workbench.traces.text_requests import ASSISTANT, Message, TextRequests, message_of
from unified_tree.controllers.workbench.traces.trace_records import TraceFormat

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unified_tree.controllers.workbench.traces.trace_records import Record, TraceOptions
    from unified_tree.controllers.workbench.traces.workload import Workload

KINDS = ("user", ASSISTANT)


class _Line:
    """A line of the log that has a place in a conversation."""

    __slots__ = ("answer", "at_s", "message", "parent", "record")

    def __init__(self, record: Record, parent: _Line | None, at_s: float) -> None:
        self.record = record
        self.parent = parent
        self.at_s = at_s
        self.message: Message | None = None
        self.answer: object = None
        """The fields that the lines of one answer have in common."""


def _matches(records: Sequence[Record]) -> bool:
    return any(record.fields.get("type") in KINDS and record.has("uuid", "message") for record in records)


def _read(name: str, records: Iterable[Record], options: TraceOptions) -> Workload:
    clock, lines = Clock(options.clock_unit, "ms"), dict[object, _Line]()
    answers: dict[object, list[_Line]] = {}
    left_out = 0
    for record in records:
        fields = record.fields
        if "uuid" not in fields:
            left_out += 1
            continue
        line = _Line(record, lines.get(_name(record, "parentUuid")), clock.seconds(record, "timestamp"))
        lines[_name(record, "uuid")] = line
        if fields.get("type") in KINDS and "message" in fields:
            message = record.record("message")
            line.message = message_of(message)
            if line.message.role == ASSISTANT:
                line.answer = _name(message, "id") if "id" in message.fields else line
                if line.answer not in answers and len(answers) == options.max_requests:
                    break
                answers.setdefault(line.answer, []).append(line)
    requests, chains = TextRequests(options), dict[object, int]()
    for spoken in answers.values():
        _add(requests, spoken, chains)
    notes = [
        clock.note("as Claude Code's logs have it"),
        f"conversations: {len(chains)}; system prompt and tools are not in such logs, and so in no prompt here",
    ]
    if left_out:
        notes.append(f"lines that are no messages, left out: {left_out}")
    return requests.workload(name, notes)


def _name(record: Record, name: str) -> object:
    value = record.fields.get(name)
    if value is not None and not isinstance(value, str):
        raise record.inner(name).error("must be a string", value)
    return value


def _add(requests: TextRequests, spoken: Sequence[_Line], chains: dict[object, int]) -> None:
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
    matches=_matches,
    read=_read,
)
