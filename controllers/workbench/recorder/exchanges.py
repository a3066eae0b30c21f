"""Requests to a server and its answers, as HTTP carried them: what of them goes into a trace.

Understood are `POST …/chat/completions` and `…/completions` of the OpenAI API, with the additions of vLLM and SGLang, and
SGLang's `/generate`; answers as one JSON object, a list of them, or server-sent events. Everything in them is what a client or
a server happened to send, so a field of an unexpected type is as good as none.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.workbench.recorder.block_hashes import TOKEN_BYTES, token_bytes
from unified_tree.controllers.workbench.recorder.recorder import UnrecordedError
from unified_tree.controllers.workbench.recorder.trace_writer import MAX_TOKENS, RecordedRequest
from unified_tree.inputs.given_files import NotJsonError, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from unified_tree.controllers.workbench.recorder.prompt_tokens import PromptTokens


class Kind(Enum):
    """The kinds of requests that are recorded."""

    CHAT = "/chat/completions"
    COMPLETION = "/completions"
    GENERATE = "/generate"


def kind_of(method: str, path: str) -> Kind | None:
    """The kind of a request, by its path without the query; None for a path that is not recorded."""
    if method != "POST":
        return None
    return next((kind for kind in Kind if path.rstrip("/").endswith(kind.value)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request that was answered.

    Attributes:
        time_ms: when it came, since 1970.
        body, answer: as they were sent; an answer may have been broken off, or be empty.
        is_stream: whether the answer is a stream of events.
    """

    time_ms: int
    kind: Kind
    body: bytes
    answer: bytes
    is_stream: bool


@dataclass(slots=True)
class Answered:
    """The answer to one prompt."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    prompt: list[Any] | None = None
    output: list[Any] = field(default_factory=list)
    pieces: int = 0

    def read_counts(self, counts: Mapping[str, Any]) -> None:
        """Read the lengths that are told by their names at an engine."""
        self.prompt_tokens = _count(counts.get("prompt_tokens"), self.prompt_tokens)
        self.output_tokens = _count(counts.get("completion_tokens"), self.output_tokens)
        self.cached_tokens = _count(counts.get("cached_tokens"), self.cached_tokens)

    def recorded(self, time_ms: int, tokens: bytes, *, is_exact: bool, namespace: str) -> RecordedRequest:
        """The request with this prompt, whose tokens are the engine's own or an estimate."""
        count, told, cached = len(tokens) // TOKEN_BYTES, self.prompt_tokens, self.cached_tokens
        if not is_exact and told and cached is not None:  # in tokens of the same estimate
            cached = round(cached * count / told)
        answer = b""
        if is_exact and told in (None, count):
            with suppress(TypeError, ValueError, OverflowError):
                answer = token_bytes(self.output)
        return RecordedRequest(
            time_ms=time_ms,
            tokens=tokens,
            namespace=namespace,
            prompt_tokens=told if is_exact and told else count,
            output_tokens=self.pieces if self.output_tokens is None else self.output_tokens,
            cached_tokens=cached,
            answer=answer,
        )


def namespace_of(extra_key: Any = None, cache_salt: Any = None, adapter: Any = None) -> str:
    """The namespace that keeps equal prompts apart, as one name.

    >>> namespace_of(), namespace_of(cache_salt="a"), namespace_of(adapter="b")
    ('', "(None, 'a')", "(None, None, 'b')")
    """
    parts = tuple(each if isinstance(each, str) and each else None for each in (extra_key, cache_salt, adapter))
    if parts == (None, None, None):
        return ""
    return repr(parts if parts[2] is not None else parts[:2])


class ExchangeReader:
    """Reads exchanges.

    Args:
        prompts: makes tokens of texts.
        base_model: the name under which clients ask for the model itself; prompts to any other are kept apart, as an adapter's.
            Without it each name is a namespace.
    """

    def __init__(self, prompts: PromptTokens, base_model: str | None = None) -> None:
        self._prompts = prompts
        self._base_model = base_model

    def read(self, exchange: Exchange) -> Iterator[RecordedRequest]:
        """The requests of an exchange, one for each prompt. Raises UnrecordedError for a body without a prompt.

        Cost: parsing both, and tokenising a text.
        """
        try:
            fields = parse_json(exchange.body)
        except NotJsonError as error:
            raise UnrecordedError("the body is no JSON") from error
        if not isinstance(fields, dict):
            raise UnrecordedError("the body is no JSON object")
        answers = read_answers(exchange)
        given = self._given(exchange.kind, fields, answers)
        alone = len(given) == 1
        for at, (tokens, is_exact) in enumerate(given):
            found = answers.get(at, Answered()) if alone or exchange.kind is Kind.GENERATE else Answered()
            yield found.recorded(exchange.time_ms, tokens, is_exact=is_exact, namespace=self._namespace(fields, at))

    def _namespace(self, fields: Mapping[str, Any], at: int) -> str:
        def own(name: str) -> Any:
            value = fields.get(name)
            if isinstance(value, list):
                return value[at] if at < len(value) else None
            return value

        model = own("model")
        return namespace_of(
            own("extra_key"), own("cache_salt"), own("lora_path") or (None if model == self._base_model else model)
        )

    def _given(self, kind: Kind, fields: Mapping[str, Any], answers: Mapping[int, Answered]) -> list[tuple[bytes, bool]]:
        """The tokens of each prompt, and whether they are the engine's own or as many."""
        told = answers[0].prompt if 0 in answers else None
        try:
            if kind is Kind.CHAT:
                ids = told or fields.get("input_ids")
                if isinstance(ids, list):
                    return [(token_bytes(ids), True)]
                return [(self._prompts.of_chat(fields), self._prompts.is_exact)]
            if kind is Kind.GENERATE:
                asked = fields.get("input_ids")
                asked = fields.get("text") if asked is None else asked
            else:
                asked = fields.get("prompt")
            of_text, is_exact = self._prompts.of_text, self._prompts.is_exact
            return [
                (of_text(each), is_exact) if isinstance(each, str) else (token_bytes(each), True) for each in prompts_in(asked)
            ]
        except (TypeError, ValueError, OverflowError) as error:
            raise UnrecordedError("no prompt in the body") from error


def prompts_in(asked: Any) -> list[str | list[int]]:
    """The prompts of a field that holds one or several, each a text or token ids. Raises TypeError for anything else.

    >>> prompts_in("a"), prompts_in([1, 2]), prompts_in(["a", [1, 2]])
    (['a'], [[1, 2]], ['a', [1, 2]])
    """
    if isinstance(asked, str):
        return [asked]
    if not isinstance(asked, list) or not asked:
        raise TypeError("a prompt must be a text or a list")
    if all(type(each) is int for each in asked):
        return [asked]
    if not all(isinstance(each, str) or (isinstance(each, list) and all(type(i) is int for i in each)) for each in asked):
        raise TypeError("a prompt must be a text or token ids")
    return asked


def read_answers(exchange: Exchange) -> dict[int, Answered]:
    """The answers, by the prompt's place; empty for a body that is no answer. Cost: parsing it."""
    found: dict[int, Answered] = {}
    for at, message in _messages(exchange):
        if exchange.kind is Kind.GENERATE:
            index = message.get("index", at)
            answered = found.setdefault(index if type(index) is int else at, Answered())
            _read_generated(message, answered, is_stream=exchange.is_stream)
        else:
            _read_completed(message, found.setdefault(0, Answered()))
    return found


def _messages(exchange: Exchange) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of an answer, with their places in a list."""
    if exchange.is_stream:
        for line in exchange.answer.splitlines():
            if line.startswith(b"data:"):
                message = _object(line[5:].strip())
                if isinstance(message, dict):
                    yield 0, message
        return
    message = _object(exchange.answer)
    for at, each in enumerate(message if isinstance(message, list) else [message]):
        if isinstance(each, dict):
            yield at, each


def _object(text: bytes) -> Any:
    try:
        return parse_json(text)
    except NotJsonError:  # broken off, or `[DONE]`
        return None


def _read_completed(message: dict[str, Any], answered: Answered) -> None:
    """Read an object of the OpenAI API: a whole answer, or a piece of it."""
    usage = message.get("usage")
    if isinstance(usage, dict):
        answered.read_counts(usage)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            answered.cached_tokens = _count(details.get("cached_tokens"), answered.cached_tokens)
    choices = message.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if not isinstance(choice, dict):
            continue
        piece = choice.get("delta", choice)
        answered.pieces += isinstance(piece, dict) and any(
            piece.get(name) for name in ("content", "text", "reasoning_content", "reasoning", "tool_calls", "message")
        )
        if choice.get("index", 0) == 0 and isinstance(choice.get("token_ids"), list):
            answered.output += choice["token_ids"]
        for holder in (choice, message):
            if answered.prompt is None and isinstance(holder.get("prompt_token_ids"), list):
                answered.prompt = holder["prompt_token_ids"]


def _read_generated(message: dict[str, Any], answered: Answered, *, is_stream: bool) -> None:
    """Read an object of SGLang's own API. Each piece of a stream has the counts up to there."""
    meta = message.get("meta_info")
    if isinstance(meta, dict):
        answered.read_counts(meta)
    output = message.get("output_ids")
    if isinstance(output, list):  # a stream's are all up to there, or, with --incremental-streaming-output, the new ones
        is_new = is_stream and len(output) < (answered.output_tokens or 0)
        answered.output = [*answered.output, *output] if is_new else output


def _count(value: Any, default: int | None) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else default
