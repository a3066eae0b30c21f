"""What a worker's store fails at is counted, whatever kind of fault it is, and the misses that it caused have their cause."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from vllm_engine_model import MODELS, PAGE, EngineModel, Request

from unified_tree.controllers.storage_tier.store_settings import StoreSettings

PROMPT = [number * 7 % 3 for number in range(6 * PAGE + 1)]


def life(model: str, path: Path) -> EngineModel:
    settings = {"engine": "file", "directory": str(path), "capacity_bytes": 1 << 25}
    return EngineModel(model, 0, host_bytes=100_000, store=StoreSettings.of(settings))


def ask(engine: EngineModel) -> int:
    """Serve the prompt; how many tokens were a hit."""
    engine.add(Request("a", "", PROMPT.copy(), 1))
    engine.settle()
    return engine.hit_tokens


def spoil(path: Path, kind: str) -> None:
    """Flip a bit of each page of every table, or cut the pages off."""
    for table in path.glob("*.pages"):
        if kind == "cut":
            os.truncate(table, 0)
            continue
        with table.open("r+b") as opened:
            for at in range(0, table.stat().st_size, 512):
                opened.seek(at)
                byte = opened.read(1)
                opened.seek(at)
                opened.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["corrupt", "cut"])
def test_pages_that_are_not_what_was_put(model: str, kind: str, tmp_path: Path) -> None:
    first = life(model, tmp_path)
    ask(first)
    first.close()
    spoil(tmp_path, kind)
    engine = life(model, tmp_path)
    try:
        assert ask(engine) == 0
        counted: dict[str, float] = dict(engine.side.take_counters())
        for worker in engine.workers:
            for name, count in worker.take_counters().items():
                counted[name] = counted.get(name, 0) + count
        assert counted["store_errors"] >= 1
        assert counted["miss_tokens/store_failed"] > 0
        assert counted["prompt_tokens"] == sum(n for name, n in counted.items() if name.startswith("miss_tokens/"))
        assert "miss_tokens/never_seen" not in counted
    finally:
        engine.close()
