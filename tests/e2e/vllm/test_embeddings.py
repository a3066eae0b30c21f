"""Prompts of embeddings in a real vLLM, beside prompts of tokens. Run as test_served_models.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm_tiny_models as tiny_models
from vllm_served_mix import SETTINGS, Engine, keys_of_tokens_alone, wrong_outputs

pytest.importorskip("vllm", reason="the engine's python runs these")
REQUESTS = int(os.environ.get("REQUESTS", "40"))
TOKENS = [3 + number * 7 % 500 for number in range(4 * 32 + 5)]


class EmbeddedEngine(Engine):
    """An engine of Llama that is given rows of a table for tokens, where other requests name a salt."""

    salts = (None, "one table", "another")

    def __init__(self, path: Path, hidden: int) -> None:
        made = torch.Generator().manual_seed(1)
        self._tables = {name: torch.randn(1_000, hidden, generator=made) for name in self.salts if name}
        super().__init__("llama", path, settings=SETTINGS, enable_prompt_embeds=True)

    def add(self, tokens: list[int], *, output_tokens: int = 8, salt: str | None = None, **more: Any) -> str:
        """A request of tokens, or of rows of a table."""
        if salt is None:
            return super().add(tokens, output_tokens=output_tokens, **more)
        from vllm import SamplingParams

        name = f"request-{next(self.names)}"
        sampling = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True, detokenize=False)
        self.llm.llm_engine.add_request(name, {"prompt_embeds": self._tables[salt][tokens]}, sampling, **more)
        return name


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEngine]:
    path = tmp_path_factory.mktemp("embedded")
    tiny_models.save_llama(path)
    from transformers import AutoConfig

    made = EmbeddedEngine(path, AutoConfig.from_pretrained(path).hidden_size)
    yield made
    made.core.shutdown()


@pytest.fixture(autouse=True)
def empty(engine: EmbeddedEngine) -> None:
    engine.forget(host=True)
    engine.counters()


def test_every_output_equals_no_cache(engine: EmbeddedEngine) -> None:
    wrong, counters = wrong_outputs(engine, 1, REQUESTS)
    assert counters["loaded_tokens"] > 5 * engine.page
    assert wrong == 0


def test_the_same_embeddings_are_hit_on_host_and_others_are_not(engine: EmbeddedEngine) -> None:
    found = []
    for table in ("one table", "another", "one table"):
        engine.forget()
        name = engine.add(TOKENS, salt=table)
        engine.run()
        found.append((engine.hits[name], engine.outputs[name]))
    assert [hits for hits, _ in found] == [0, 0, 128]
    assert found[0][1] == found[2][1] != found[1][1]


def test_keys_of_tokens_alone_are_seen(engine: EmbeddedEngine) -> None:
    with keys_of_tokens_alone():
        wrong, _ = wrong_outputs(engine, 3, 20, aborts=0)
    assert wrong
