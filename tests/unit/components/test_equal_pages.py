"""vLLM's pages of attention and states, beside what its own code said (docs/lab/engine_bytes.md) and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from transformers import Mamba2Config

from unified_tree.components import composition_for, from_hf_config
from unified_tree.components.equal_pages import equal_pages
from unified_tree.controllers.cli.commands import app

PAGE = Path(__file__).parents[3] / "docs/lab/engine_bytes.md"
ROWS = [line.split(" | ") for line in PAGE.read_text().partition(": pages -->")[2].splitlines() if line.startswith("| ")][1:]


def test_the_page_has_a_row_of_each_hybrid_family() -> None:
    assert len(ROWS) == 10


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_blocks_are_those_of_vllm(row: list[str]) -> None:
    """Where the table says the same of both, and so that a changed rule is noticed."""
    from benches.studies.engine_files import file_of

    _, tokens, their_tokens, size, their_size, _ = row
    assert (tokens, size) == (their_tokens, their_size)
    models = [from_hf_config(file_of(row[0].removeprefix("| ")), state_dtype=dtype) for dtype in (None, "bfloat16")]
    made = [(f"{pages.block_tokens:,}", f"{pages.page_bytes:,}") for model in models if (pages := equal_pages(model))]
    assert (tokens, size) in made


@pytest.mark.parametrize("seed", range(8))
def test_a_page_holds_a_state_and_no_step_less_does(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    latent, shape = random.random() < 0.5, (random.randint(1, 64), random.randint(1, 128), random.randint(1, 128))
    heads = random.randint(1, 16)
    parts = {"kv": ["bfloat16", 64 * heads]} if latent else {"k": ["bfloat16", heads, 64], "v": ["bfloat16", heads, 64]}
    path = {"name": "full", "coverage": "path", "layers": [0, 2], "parts": parts}
    state = {"name": "mamba", "coverage": "state", "layers": [1, 3, 4], "parts": {"ssm": ["float32", *shape]}}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"name": "mine", "page_size": 64, "components": [path, state]}))
    pages = equal_pages(composition_for(str(file)))
    assert pages is not None
    token = pages.page_bytes // pages.block_tokens
    step = 128 if latent else 16
    assert token == (128 * heads if latent else 256 * heads)
    assert pages.page_bytes >= pages.state_bytes == 4 * shape[0] * shape[1] * shape[2]
    assert pages.block_tokens % step == 0
    assert pages.block_tokens == step or (pages.block_tokens - step) * token < pages.state_bytes
    assert pages.boundary_bytes == 3 * pages.page_bytes


def test_models_without_states_or_without_attention_have_none() -> None:
    assert equal_pages(composition_for("llama-3.1-8b")) is None
    assert equal_pages(from_hf_config(Mamba2Config().to_dict())) is None


def test_the_command_says_it() -> None:
    shown = CliRunner().invoke(app, ["models", "qwen3-next-80b-a3b"])
    assert "vLLM makes blocks of 544 tokens" in " ".join(shown.output.split())
    assert "vLLM makes" not in CliRunner().invoke(app, ["models", "gpt-oss-20b"]).output
