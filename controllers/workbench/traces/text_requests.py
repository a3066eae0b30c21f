"""Requests made of texts: which prompts begin with the same tokens, and which go on from an answer.

Prompts, with the answers that are known, are cut into pieces of some tokens. A piece is known by its tokens and by the piece
before it, so equal pieces are equal prompts up to there. What is left at the end, shorter than a piece, is the request's own.

An answer that a later prompt goes on from was computed and can hit. To say so the workload has blocks of a single token,
because prompts end anywhere. That costs memory, a few bytes a token and request. So where the texts are long the blocks are the
pieces, and answers count as computed again, which the notes then say.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.workbench.traces.trace_records import MAX_TOKENS
from unified_tree.controllers.workbench.traces.workload import (
    NO_CHAIN,
    Request,
    Workload,
    cut_runs,
    in_arrival_order,
    pack_runs,
    runs_behind,
)
from unified_tree.inputs.given_files import read_given
from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import ConfigurationError, TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from unified_tree.controllers.workbench.traces.trace_records import Record, TraceOptions
    from unified_tree.controllers.workbench.traces.workload import Int64s

    Tokens = NDArray[np.int32]


KEPT_TEXTS = 4096
"""Logs say the same again and again: the tokens of so many texts are kept."""


class Tokenizer:
    """Makes tokens of texts.

    Args:
        path: a `tokenizer.json` as of Hugging Face's `tokenizers`; None for a token a byte of UTF-8.

    Raises TraceError for a file that is none, and where the package is missing.
    """

    def __init__(self, path: Path | None) -> None:
        self._encoder = None if path is None else _encoder(path)
        self._has_texts = False
        self.tokens = lru_cache(KEPT_TEXTS)(self._tokens)
        """The tokens of a text, int32; not to be changed. Cost: O(length), and next to nothing for a text lately given."""

    def _tokens(self, text: str) -> Tokens:
        self._has_texts |= bool(text)
        data = text.encode("utf-8", "backslashreplace")
        if self._encoder is None:
            return np.frombuffer(data, np.uint8).astype(np.int32)
        return np.array(self._encoder.encode(data.decode(), add_special_tokens=False).ids, np.int32)

    @property
    def notes(self) -> tuple[str, ...]:
        """The report's sentences about it; none where there was no text."""
        if not self._has_texts:
            return ()
        if self._encoder is None:
            return ("warning: a token is a byte here, so lengths are some 4 times too large; give --tokenizer tokenizer.json",)
        return (f"a tokenizer of {self._encoder.get_vocab_size():,} tokens; the model's chat template is not applied",)


def _encoder(path: Path) -> Any:
    try:
        package = import_module("tokenizers")
    except ModuleNotFoundError as error:
        raise TraceError(f"{path}: needs tokenizers; run: pip install 'unified-tree[traces]'") from error
    try:
        return package.Tokenizer.from_str(read_given(path).decode())
    except ConfigurationError as error:
        raise TraceError(str(error)) from error
    except Exception as error:  # the package raises bare ones
        raise TraceError(f"{path}: is no tokenizer.json: {printable(str(error))}") from error


PIECE_TOKENS = 16
MOST_SINGLE_TOKENS = 1 << 24
"""Up to so many tokens in all prompts and answers, answers can hit."""
ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Message:
    """The words of one side. `text` is a string, or unknown tokens that later prompts repeat."""

    role: str
    text: str | Tokens


@dataclass(frozen=True, slots=True)
class _Row:
    order: int
    arrival_s: float
    pieces: Int64s
    """Runs of the pieces of prompt and answer."""
    prompt_tokens: int
    answer_tokens: int
    """Of the answer that is known."""
    output_tokens: int
    chain: int


@dataclass(slots=True)
class TextRequests:
    """Collects requests, and makes a workload of them."""

    options: TraceOptions
    tokenizer: Tokenizer = field(init=False)
    _rows: list[_Row] = field(default_factory=list)
    _numbers: dict[tuple[int, bytes], int] = field(default_factory=dict)
    _unknown: int = 0
    _before: tuple[Tokens, list[int]] = field(default_factory=lambda: (np.empty(0, np.int32), []))

    def __post_init__(self) -> None:
        self.tokenizer = Tokenizer(self.options.tokenizer)

    def __len__(self) -> int:
        """Requests so far."""
        return len(self._rows)

    def unknown(self, count: int) -> Tokens:
        """Tokens that no text has: of an answer whose length alone is known."""
        first, self._unknown = self._unknown + 1, self._unknown + count
        return (-np.arange(first, first + count)).astype(np.int32)

    def prompt(self, messages: Sequence[Message]) -> Tokens:
        """The tokens of a conversation, up to where the assistant is to speak."""
        parts = [self.tokenizer.tokens("")]
        for message in messages:
            parts += [self.tokenizer.tokens(f"{message.role}\n"), self.spoken(message.text)]
        return np.concatenate([*parts, self.tokenizer.tokens(f"{ASSISTANT}\n")])

    def spoken(self, text: str | Tokens) -> Tokens:
        """The tokens of what was said, with the mark at its end."""
        if not isinstance(text, str):
            return text
        return np.concatenate([self.tokenizer.tokens(text), self.tokenizer.tokens("\n")])

    def add(
        self,
        place: Record,
        prompt: Tokens,
        answer: Tokens | None = None,
        *,
        output_tokens: int | None = None,
        arrival_s: float = 0.0,
        chain: int = NO_CHAIN,
        order: int | None = None,
    ) -> None:
        """One more request. `output_tokens` counts where the answer is not known. `order` is its place among those that
        arrive at the same time; None for that in which they are added.

        Raises TraceError, at `place`, for one that is too long. Cost: O(tokens).
        """
        known = answer if answer is not None else self.tokenizer.tokens("")
        output_tokens = known.size if answer is not None else output_tokens or 0
        if prompt.size > MAX_TOKENS or output_tokens > MAX_TOKENS:
            raise place.error(f"is longer than {MAX_TOKENS} tokens", max(prompt.size, output_tokens))
        size = self.options.block_tokens or PIECE_TOKENS
        tokens = np.concatenate([prompt, known]) if known.size else prompt
        pieces = pack_runs(np.array(self._path(tokens, size), np.int64))
        order = len(self._rows) if order is None else order
        self._rows.append(_Row(order, arrival_s, pieces, prompt.size, known.size, output_tokens, chain))

    def _path(self, tokens: Tokens, size: int) -> list[int]:
        """The pieces of a request. Those that the one added before begins with, too, are not looked up again."""
        before, known = self._before
        count = min(tokens.size, before.size)
        differs = np.flatnonzero(tokens[:count] != before[:count])
        path = known[: (int(differs[0]) if differs.size else count) // size]
        data, step, numbers = tokens.tobytes(), size * tokens.itemsize, self._numbers
        at = path[-1] if path else -1
        for begin in range(len(path) * step, len(data) - step + 1, step):
            at = numbers.setdefault((at, data[begin : begin + step]), len(numbers))
            path.append(at)
        self._before = tokens, path
        return path

    def workload(self, name: str, notes: Sequence[str] = ()) -> Workload:
        """The workload. Arrivals count from the first."""
        size = self.options.block_tokens or PIECE_TOKENS
        has_answers = any(row.answer_tokens for row in self._rows)
        is_single = has_answers and sum(row.prompt_tokens + row.answer_tokens for row in self._rows) <= MOST_SINGLE_TOKENS
        first_s = min((row.arrival_s for row in self._rows), default=0.0)
        rows = sorted(self._rows, key=lambda row: row.order)
        requests = in_arrival_order(_request(row, i, row.arrival_s - first_s, size, is_single) for i, row in enumerate(rows))
        said = [*self.tokenizer.notes, *notes, f"prompts are compared in pieces of {size} tokens"]
        if has_answers and not is_single:
            said.append("answers count as computed again by the prompts that go on from them, for the texts are long")
        block_count = len(self._numbers) * (size if is_single else 1)
        return Workload(name=name, requests=requests, block_count=block_count, notes=tuple(said))


def _request(row: _Row, index: int, arrival_s: float, size: int, is_single: bool) -> Request:
    runs, answer_runs = row.pieces, None
    if is_single:
        tokens = runs * size
        runs = cut_runs(tokens, row.prompt_tokens)
        answer_runs = runs_behind(tokens, row.prompt_tokens)
    else:
        runs = cut_runs(runs, row.prompt_tokens // size)
    return Request(
        index=index,
        arrival_s=arrival_s,
        runs=runs,
        block_tokens=1 if is_single else size,
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
        answer_runs=answer_runs,
        chain=row.chain,
    )


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
