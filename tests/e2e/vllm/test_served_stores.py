"""A file store behind the host tier of a real vLLM: what one engine has written, the next one resumes on.

Run as test_served_models.py; REQUESTS is the number of a mix. Each model starts three engines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import vllm_tiny_models as tiny_models
from vllm_served_mix import Engine, ended, host_and_files, mix, small_host

pytest.importorskip("vllm", reason="the engine's python runs these")
MODELS = os.environ.get("MODELS", ",".join(tiny_models.MODELS)).split(",")
REQUESTS = int(os.environ.get("REQUESTS", "40"))
HOST_PAGES = 24
"""Of every group, so that the host tier evicts."""


@contextmanager
def life(model: str, path: Path, directory: Path, **store: Any) -> Iterator[Engine]:
    """An engine with a small host tier and a file store."""
    settings = host_and_files(directory)
    settings["store"] |= store
    with small_host(HOST_PAGES), ended(Engine(model, path, settings=settings)) as engine:
        yield engine


@pytest.mark.parametrize("model", MODELS)
def test_an_engine_resumes_on_what_another_has_stored(model: str, tmp_path: Path) -> None:
    path, directory = tmp_path / "model", tmp_path / "store"
    tiny_models.MODELS[model](path)
    with life(model, path, directory) as engine:
        served = mix(engine, 5, REQUESTS)
        counters = engine.counters()
        print(f"{model}, first life: {REQUESTS} requests, {counters}")
        assert counters["stored_pages"] > 10
        assert "failed_loads" not in counters
    with life(model, path, directory) as engine:
        asked = [(tokens, salt, output) for tokens, salt, output in served]
        Random(6).shuffle(asked)
        names = []
        for number, (tokens, salt, _) in enumerate(asked):
            names.append(engine.add(tokens, salt=salt))
            engine.step()
            if number % 3 == 2:
                engine.run()
                engine.forget()
        engine.run()
        again = [engine.outputs[name] for name in names]
        counters = engine.counters()
        print(f"{model}, second life: {len(asked)} requests, {sum(engine.hits.values())} tokens were hits, {counters}")
        assert counters["fetched_tokens"] > 5 * engine.page
        assert "failed_loads" not in counters
        right = engine.right((tokens, salt) for tokens, salt, _ in asked)
        assert [output for _, _, output in asked] == right
        assert again == right
    with life(model, path, directory, weights_version="other") as engine:
        name = engine.add(asked[0][0], salt=asked[0][1])
        engine.run()
        assert engine.hits[name] == 0
        assert engine.outputs[name] == right[0]
