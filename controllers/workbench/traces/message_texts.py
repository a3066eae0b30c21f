"""The texts of chat messages, as OpenAI's and Anthropic's interfaces write them."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.workbench.traces.text_requests import Message

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.traces.trace_records import Record

ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
"""ShareGPT's names."""
TEXTS = ("text", "thinking", "content", "value")
TEXT_KINDS = ("text", "thinking", "input_text", "output_text", "tool_result")
OTHER_KINDS = ("image", "image_url", "input_image", "input_audio", "audio", "video", "video_url", "file", "document")


def message_of(record: Record) -> Message:
    """A message: its role in `role` or `from`, and what it says. Raises TraceError."""
    role = record.text("role" if "role" in record.fields else "from")
    return Message(ROLES.get(role, role), said_in(record))


def said_in(record: Record) -> str:
    """The text of a message, in `content`, `value` or `text`, and the calls of tools in it. Raises TraceError."""
    fields = record.fields
    name = next((name for name in ("content", "value", "text") if name in fields), None)
    if name is None and "tool_calls" not in fields:
        raise record.error("has neither content nor value", list(fields))
    said = [] if name is None else [text_of(record, name)]
    said += [dumped(record, name) for name in ("tool_calls", "function_call") if fields.get(name)]
    return "\n".join(part for part in said if part)


def messages_of(record: Record, name: str = "messages") -> list[Message]:
    """The messages in a field that must be a list of them. Raises TraceError."""
    return [message_of(each) for each in record.records(name)]


def text_of(record: Record, name: str) -> str:
    """The text of a field: a text, or parts of which texts are taken as they are and others by their JSON or a digest."""
    try:
        return _said(record.field(name))
    except RecursionError as error:
        raise record.inner(name).error("is nested too deep", None) from error


def dumped(record: Record, name: str) -> str:
    """A field as JSON, the same for equal values."""
    try:
        return _dumped(record.field(name))
    except RecursionError as error:
        raise record.inner(name).error("is nested too deep", None) from error


def _said(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_said(part) for part in content)
    if isinstance(content, dict):
        kind = content.get("type")
        if kind in (None, *TEXT_KINDS):
            found = next((content[name] for name in TEXTS if name in content), None)
            if found is not None:
                return _said(found)
        if kind in OTHER_KINDS:
            return f"<{kind} {sha256(_dumped(content).encode('utf-8', 'backslashreplace')).hexdigest()[:16]}>"
        return _dumped({name: value for name, value in content.items() if name not in ("cache_control", "signature")})
    return _dumped(content)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
