"""The tokens of prompts that come as text or as messages.

An engine tokenises after the prompt has passed the proxy, so it is done once more, with the model's own `tokenizer.json` and
chat template. Where these are what the engine uses, the blocks are those of the engine, and else blocks of the same prefixes:
equal beginnings have equal ids in either case, and the length of the prompt is the engine's.

Without a tokenizer four bytes of UTF-8 count as a token. Lengths are then an estimate.
"""

from __future__ import annotations

import json
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.workbench.recorder.block_hashes import token_bytes
from unified_tree.inputs.given_files import parse_json, read_given
from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BYTES_A_TOKEN = 4
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
GIVEN_TO_TEMPLATES = ("tools", "documents", "add_generation_prompt", "continue_final_message")


class PromptTokens:
    """Makes tokens of prompts.

    Args:
        encode: token ids of a text, with the special tokens that a prompt begins with, or without; None for an estimate.
        render: the text of a conversation; None for ChatML.

    Attributes:
        is_exact: whether there is a tokenizer.
    """

    def __init__(
        self,
        encode: Callable[[str, bool], list[int]] | None = None,
        render: Callable[[Mapping[str, Any]], str] | None = None,
    ) -> None:
        self.is_exact = encode is not None
        self._encode = encode
        self._render = chat_ml if render is None else render

    @classmethod
    def open(cls, tokenizer: Path | None, chat_template: Path | None = None) -> PromptTokens:
        """Those of a model.

        Args:
            tokenizer: its `tokenizer.json`, or the folder with it; a chat template in that folder is used, too.
            chat_template: a Jinja file.

        Raises ConfigurationError for a file that cannot be read or used; ModuleNotFoundError without the extra `record`.
        """
        if tokenizer is None:
            if chat_template is not None:
                raise ConfigurationError("a chat template needs the tokenizer of the model, too")
            return cls()
        from tokenizers import Tokenizer

        folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
        file = folder / "tokenizer.json" if tokenizer.is_dir() else tokenizer
        content = read_given(file)
        try:
            found = Tokenizer.from_buffer(content)
        except Exception as error:  # tokenizers raises it bare
            raise ConfigurationError(f"{file}: is no tokenizer.json: {printable(str(error), 300)}") from error
        settings = _settings(folder / "tokenizer_config.json")
        text = _template_text(folder, settings, chat_template)
        special = {name: _content(settings.get(name)) for name in SPECIAL_NAMES}

        def encode(text: str, is_prompt: bool) -> list[int]:
            ids: list[int] = found.encode(text, add_special_tokens=is_prompt).ids
            return ids

        return cls(encode, None if text is None else template(text, special))

    def of_text(self, text: str, *, is_prompt: bool = True) -> bytes:
        """The tokens of a text as native int64. A lone surrogate counts as a question mark.

        Args:
            is_prompt: whether special tokens go before it.
        """
        data = text.encode("utf-8", "replace")
        if self._encode is not None:
            return token_bytes(self._encode(data.decode(), is_prompt))
        return np.frombuffer(data + bytes(-len(data) % BYTES_A_TOKEN), "<u4").astype(np.int64).tobytes()

    def of_chat(self, fields: Mapping[str, Any]) -> bytes:
        """The tokens of the conversation in a request's body. Raises ValueError for messages that are none."""
        messages = fields.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
            raise ValueError("messages must be a list of objects")
        given = {name: fields[name] for name in GIVEN_TO_TEMPLATES if fields.get(name) is not None}
        more = fields.get("chat_template_kwargs")
        given = {
            "add_generation_prompt": True,
            **given,
            **(more if isinstance(more, dict) else {}),
            "messages": [_message(each) for each in messages],
        }
        return self.of_text(self._render(given), is_prompt=False)


def chat_ml(given: Mapping[str, Any]) -> str:
    """A conversation in ChatML, its tools first.

    >>> chat_ml({"messages": [{"role": "user", "content": "Hello"}], "add_generation_prompt": True})
    '<|im_start|>user\\nHello<|im_end|>\\n<|im_start|>assistant\\n'
    """
    parts = [f"<|im_start|>tools\n{json.dumps(given['tools'])}<|im_end|>\n"] if given.get("tools") else []
    for message in given["messages"]:
        text = message.get("content") or ""
        if message.get("tool_calls"):
            text += json.dumps(message["tool_calls"])
        parts.append(f"<|im_start|>{message.get('role', '')}\n{text}<|im_end|>\n")
    if given.get("add_generation_prompt"):
        parts.append("<|im_start|>assistant\n")
    return "".join(parts)


def template(text: str, special: Mapping[str, str | None]) -> Callable[[Mapping[str, Any]], str]:
    """Renders conversations by a Jinja template, in a sandbox.

    Args:
        special: the texts of special tokens, by the names that templates use.

    Raises ConfigurationError for a template that Jinja does not take.
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise ValueError(message)

    def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        compiled = environment.from_string(text)
    except TemplateError as error:
        raise ConfigurationError(f"the chat template cannot be used: {printable(str(error), 300)}") from error
    return lambda given: compiled.render({**{name: each for name, each in special.items() if each is not None}, **given})


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A message as templates have it: its parts as one text, the arguments of calls as objects."""
    told = dict(message)
    if isinstance(told.get("content"), list):
        told["content"] = "\n".join(_part(part) for part in told["content"])
    if isinstance(told.get("tool_calls"), list):
        told["tool_calls"] = [_call(call) for call in told["tool_calls"]]
    return told


def _part(part: Any) -> str:
    """The text of a part; for an image, a sound or a file, a mark that only the same one has."""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return f"<|part {blake2b(json.dumps(part, sort_keys=True).encode(), digest_size=16).hexdigest()}|>"


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        return {**call, "function": {**function, "arguments": parse_json(function["arguments"])}}
    except ConfigurationError:
        return call


def _settings(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    found = parse_json(read_given(path))
    return found if isinstance(found, dict) else {}


def _template_text(folder: Path, settings: Mapping[str, Any], given: Path | None) -> str | None:
    path = folder / "chat_template.jinja" if given is None else given
    if given is not None or path.exists():
        try:
            return read_given(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path}: is no text: {error}") from error
    found = settings.get("chat_template")
    if isinstance(found, list):  # several by name
        found = next((each.get("template") for each in found if isinstance(each, dict) and each.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def _content(token: Any) -> str | None:
    """The text of a special token, which stands as itself or as an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
