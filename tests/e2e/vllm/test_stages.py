"""Two pipeline stages of a real vLLM, in two processes: each keeps its own layers on host and in files.

Run as test_served_models.py; REQUESTS is the number of a mix. Each model starts two engines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import vllm_tiny_models as tiny_models
from vllm_served_mix import Engine, ended, host_and_files, mix, small_host
from vllm_stage_room import OPTIONS

from unified_tree.controllers.adapters.vllm.block_group import NO_LAYER_BYTES

pytest.importorskip("vllm", reason="the engine's python runs these")
MODELS = os.environ.get("MODELS", ",".join(tiny_models.MODELS)).split(",")
REQUESTS = int(os.environ.get("REQUESTS", "40"))
HOST_PAGES = 24
"""Of every group, so that the host tier evicts."""


@contextmanager
def common_layouts() -> Iterator[None]:
    """vLLM demands that all workers report the same layouts, and a stage of recurrent states alone reports more of them."""
    from vllm.v1.engine import core

    resolve = core.resolve_kv_cache_layout

    def resolved(config: Any, layouts: list[list[str]], *more: Any) -> Any:
        common = [name for name in layouts[0] if all(name in each for each in layouts)]
        return resolve(config, [common] * len(layouts), *more)

    with mock.patch.object(core, "resolve_kv_cache_layout", resolved):
        yield


@contextmanager
def life(model: str, path: Path, directory: Path) -> Iterator[Engine]:
    """An engine of two stages with a small host tier and a file store."""
    with (
        small_host(HOST_PAGES),
        common_layouts(),
        mock.patch.dict(os.environ, VLLM_CPU_OMP_THREADS_BIND="nobind"),
        ended(Engine(model, path, settings=host_and_files(directory), **OPTIONS)) as engine,
    ):
        assert engine.llm.collective_rpc("make_room") == [False, True]
        yield engine


@pytest.mark.parametrize("model", MODELS)
def test_stages_resume_on_host_pages_and_after_a_restart_on_files(model: str, tmp_path: Path) -> None:
    path, directory = tmp_path / "model", tmp_path / "store"
    tiny_models.MODELS[model](path)
    with life(model, path, directory) as engine:
        held = engine.llm.collective_rpc("held_bytes")
        if model == "qwen3_next":  # its first stage has two groups of states, the second the third and full attention
            assert [[size == NO_LAYER_BYTES for size in sizes] for sizes in held] == [
                [False, False, True, True], [True, True, False, False],
            ]  # fmt: skip
        served = mix(engine, 5, REQUESTS)
        counters = engine.counters()
        print(f"{model}, {held} bytes a block, {REQUESTS} requests, {len(served)} not aborted, {counters}")
        assert counters["loaded_tokens"] > 5 * engine.page
        assert counters["stored_pages"] > 10
        assert "failed_loads" not in counters
        right = engine.right((tokens, salt) for tokens, salt, _ in served)
    assert [output for *_, output in served] == right
    with life(model, path, directory) as engine:
        names = []
        for number, (tokens, salt, _) in enumerate(served[::-1]):
            names.append(engine.add(tokens, salt=salt))
            engine.step()
            if number % 3 == 2:
                engine.run()
                engine.forget()
        engine.run()
        counters = engine.counters()
        print(f"{model}, after the restart: {len(names)} requests, {sum(engine.hits.values())} tokens were hits, {counters}")
        assert counters["fetched_tokens"] > 5 * engine.page
        assert "failed_loads" not in counters
    assert [engine.outputs[name] for name in names] == right[::-1]
