"""A model described in a file: what it says, and what is wrong with it in one line."""

from __future__ import annotations

import json
from pathlib import Path as FilePath
from typing import Any

import pytest
from click.testing import CliRunner

from unified_tree import Key
from unified_tree.components import composition_for
from unified_tree.components.models import MODEL_FACTS
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cli.commands import app
from unified_tree.declare.coverage import Chunked, Point, Trailing
from unified_tree.terms.errors import ConfigurationError

KV = {"k": ["kv", 8, 128], "v": ["kv", 8, 128]}
MINE: dict[str, Any] = {
    "name": "mine",
    "page_size": 32,
    "components": [
        {"name": "full", "coverage": "path", "layers": "3-47:4", "parts": KV},
        {"name": "swa", "coverage": {"window": 511}, "layers": [1, 5], "parts": KV},
        {"name": "chunked", "coverage": {"chunk": 8192}, "layers": 9, "parts": KV},
        {"name": "mamba", "coverage": "state", "layers": "0,2,4", "parts": {"ssm": ["state", 32, 128]}},
    ],
}


def written(folder: FilePath, values: Any) -> str:
    file = folder / "mine.json"
    file.write_text(json.dumps(values))
    return str(file)


def test_a_described_model_is_one_like_any_other(tmp_path: FilePath) -> None:
    model = composition_for(written(tmp_path, MINE), kv_dtype="fp8", state_dtype="bf16")
    assert (model.name, model.page_size) == ("mine", 32)
    assert model.bytes_per_token() == {"full": 12 * 2048, "swa": 2 * 2048, "chunked": 2048}
    assert model.bytes_per_state() == {"mamba": 3 * 32 * 128 * 2}
    assert [c.coverage for c in model.components[1:]] == [Trailing(511), Chunked(8192), Point()]
    assert model.components[3].save_grid_tokens == 32
    without = {**MINE, "components": MINE["components"][1:]}
    assert composition_for(written(tmp_path, without)).components[0].name == "tokens"


def test_yaml_says_the_same(tmp_path: FilePath) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\npage_size: 32\ncomponents:\n"
        '  - {name: full, coverage: path, layers: "3-47:4", parts: {k: [kv, 8, 128], v: [kv, 8, 128]}}\n'
    )
    only = {**MINE, "components": MINE["components"][:1]}
    assert composition_for(str(file)) == composition_for(written(tmp_path, only))


def test_a_config_is_taken_by_the_same_option(tmp_path: FilePath) -> None:
    facts = {**MODEL_FACTS["llama-3.1-8b"], "attention_sink_size": 4}
    model = composition_for(written(tmp_path, facts), ignore=["attention_sink_size"])
    assert model.bytes_per_token() == composition_for("llama-3.1-8b").bytes_per_token()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"components": []}, "components must be a list"),
        ({"page_size": 0}, "page_size must be a positive integer"),
        ({"name": 3}, "name must be a string"),
        ({"layers": 3}, '"layers" is none of'),
        ({"tensor_parallel": 2}, "describes one rank of 2"),
        ({"components": ["full"]}, "component 1: must be an object"),
        ({"components": [{"name": "full"}]}, "component 1: coverage is missing"),
        ({"components": [{**MINE["components"][0], "coverage": "all"}]}, "coverage must be path, state"),
        ({"components": [{**MINE["components"][0], "layers": "x"}]}, "layers must be such as"),
        ({"components": [{**MINE["components"][0], "parts": {"k": [8, 128]}}]}, "must be a dtype and a shape"),
        ({"components": [{**MINE["components"][0], "parts": {"k": ["int3", 8]}}]}, "int3"),
        ({"components": [{**MINE["components"][0], "tokens_per_slot": 5}]}, "tokens_per_slot must divide"),
        ({"components": [{**MINE["components"][0], "sinks": 5}]}, '"sinks" is none of'),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], problem: str, tmp_path: FilePath) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        composition_for(written(tmp_path, {**MINE, **change}))


def test_a_model_is_drawn(tmp_path: FilePath) -> None:
    shown = CliRunner().invoke(app, ["models", written(tmp_path, MINE)])
    assert shown.exit_code == 0
    assert "mine: 48 layers: " in shown.output and "A prompt resumes where a state was saved" in shown.output
    gemma = CliRunner().invoke(app, ["models", "gemma-3-27b"])
    assert "62 layers: 10 x (5 swa, 1 full), 2 swa" in gemma.output and "53,196" in gemma.output


def test_sinks_beside_a_window_are_a_state_of_their_rows(tmp_path: FilePath) -> None:
    """A prompt resumes where the sinks' rows were saved and the window is there, and a boundary keeps those alone."""
    rows = {"k": ["kv", 4, 2, 16], "v": ["kv", 4, 2, 16]}
    tokens = {"k": ["kv", 2, 16], "v": ["kv", 2, 16]}
    components = [
        {"name": "swa", "coverage": {"window": 60}, "layers": "0-7", "parts": tokens},
        {"name": "sinks", "coverage": "state", "layers": "0-7", "parts": rows},
    ]
    model = composition_for(written(tmp_path, {"name": "streaming", "page_size": 16, "components": components}))
    assert model.bytes_per_state()["sinks"] == 4 * model.bytes_per_token()["swa"]
    cache = PrefixCache(model.components, 16, model.split_budget(8 << 20))
    prompt = list(range(400))
    with cache.acquire(Key(prompt), checkpoints=(160,)) as lease:
        end = lease.next_stop(0)
        assert end == 160
        cache.allocate(lease, end)
        cache.commit(lease, end, {end: lease.save_pages[end]})
        cache.allocate(lease, len(prompt))
        cache.commit(lease, len(prompt))
    with cache.acquire(Key([*prompt[:200], 7])) as lease:
        assert lease.cached_tokens == 160
        assert [copy.component for copy in lease.state_copies] == ["sinks"]
        assert (lease.pages("swa", 6)[:4] >= 0).all()
    assert cache.tree.check() == []
    cache.close()
