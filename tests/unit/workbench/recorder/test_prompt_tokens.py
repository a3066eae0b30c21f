"""Prompts as tokens: by a model's tokenizer and template, or by an estimate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from unified_tree.controllers.workbench.recorder.prompt_tokens import PromptTokens, chat_ml
from unified_tree.terms.errors import ConfigurationError

WORDS = ["[UNK]", "<s>", "one", "two", "user", "assistant", ":"]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }} : {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant :{% endif %}"
)
ASKED = {"messages": [{"role": "user", "content": "one two"}]}


def ids(tokens: bytes) -> list[int]:
    found: list[int] = np.frombuffer(tokens, np.int64).tolist()
    return found


def words(tokens: bytes) -> list[str]:
    return [WORDS[each] for each in ids(tokens)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_text_begins_with_the_special_tokens_of_its_model(model: Path) -> None:
    for path in (model, model / "tokenizer.json"):
        prompts = PromptTokens.open(path)
        assert prompts.is_exact
        assert words(prompts.of_text("one two")) == ["<s>", "one", "two"]
        assert words(prompts.of_text("one \ud800")) == ["<s>", "one", "[UNK]"]


@pytest.mark.parametrize("place", ["jinja", "config", "named", "given"])
def test_a_conversation_is_rendered_by_the_template_of_its_model(model: Path, place: str) -> None:
    settings: dict[str, Any] = {"bos_token": {"content": "<s>"}}
    if place == "config":
        settings["chat_template"] = TEMPLATE
    elif place == "named":
        settings["chat_template"] = [{"name": "tools", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    else:
        (model / ("chat_template.jinja" if place == "jinja" else "other.jinja")).write_text(TEMPLATE)
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    prompts = PromptTokens.open(model, model / "other.jinja" if place == "given" else None)
    assert words(prompts.of_chat(ASKED)) == ["user", ":", "one", "two", "assistant", ":"]
    more = {**ASKED, "add_generation_prompt": False, "chat_template_kwargs": {"x": 1}}
    assert words(prompts.of_chat(more)) == ["user", ":", "one", "two"]


def test_arguments_of_calls_are_objects_and_templates_cannot_reach_out(model: Path) -> None:
    (model / "chat_template.jinja").write_text(
        "{{ messages[0].tool_calls[0].function.arguments.city }}{{ messages[0].content }}"
    )
    call = {"function": {"name": "f", "arguments": '{"city": "one"}'}}
    prompts = PromptTokens.open(model)
    assert words(prompts.of_chat({"messages": [{"content": " two", "tool_calls": [call]}]})) == ["one", "two"]
    for text in ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "{{ raise_exception('no') }}"):
        (model / "chat_template.jinja").write_text(text)
        with pytest.raises(Exception, match=r"unsafe|no"):
            PromptTokens.open(model).of_chat(ASKED)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff"])
def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json"):
        PromptTokens.open(tmp_path)


def test_a_template_that_is_none_is_refused(model: Path) -> None:
    (model / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ConfigurationError, match="chat template"):
        PromptTokens.open(model)
    with pytest.raises(ConfigurationError, match="needs the tokenizer"):
        PromptTokens.open(None, model / "chat_template.jinja")


def test_without_a_tokenizer_four_bytes_are_a_token() -> None:
    prompts = PromptTokens()
    assert not prompts.is_exact
    one, two = ids(prompts.of_text("abcdefgh")), ids(prompts.of_text("abcdefghij"))
    assert (len(one), len(two)) == (2, 3) and one == two[:2]
    assert min(ids(prompts.of_text("\U0010ffff" * 9))) >= 0
    assert prompts.of_text("") == b""


def test_tools_come_before_the_conversation() -> None:
    plain = chat_ml(ASKED)
    assert chat_ml({**ASKED, "tools": [{"name": "f"}]}) == '<|im_start|>tools\n[{"name": "f"}]<|im_end|>\n' + plain
