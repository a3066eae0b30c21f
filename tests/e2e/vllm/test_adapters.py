"""LoRA adapters in a real vLLM: requests with two and with none ask for the same prompts. Run as test_served_models.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import vllm_tiny_models as tiny_models
from vllm_served_mix import SETTINGS, Engine, wrong_outputs

pytest.importorskip("vllm", reason="the engine's python runs these")
REQUESTS = int(os.environ.get("REQUESTS", "40"))
TOKENS = [3 + number * 7 % 500 for number in range(4 * 32 + 5)]


class AdaptedEngine(Engine):
    """An engine of Llama whose requests name an adapter where others name a salt.

    Args:
        folder: where the adapters were saved, each under its name.
    """

    salts = (None, "red", "blue")

    def __init__(self, path: Path, folder: Path) -> None:
        self._folder = folder
        super().__init__(
            "llama", path, settings=SETTINGS, enable_lora=True, max_loras=3, max_cpu_loras=8, max_lora_rank=8,
        )  # fmt: skip

    def add(self, tokens: list[int], *, output_tokens: int = 8, salt: str | None = None, **more: Any) -> str:
        """A request with the adapter of that name."""
        if salt is not None:
            more.setdefault("lora_request", self.adapter(salt, ["red", "blue"].index(salt) + 1))
        return super().add(tokens, output_tokens=output_tokens, **more)

    def adapter(self, name: str, number: int, saved_as: str = "", **more: Any) -> Any:
        """An adapter as vLLM's requests name it."""
        from vllm.lora.request import LoRARequest

        return LoRARequest(name, number, str(self._folder / (saved_as or name)), **more)

    def served(self, lora: Any = None) -> tuple[list[int], int]:
        """What the prompt gives with an adapter, and how many of its tokens were hits in the host tier."""
        self.forget()
        name = self.add(TOKENS, lora_request=lora)
        self.run()
        return self.outputs[name], self.hits[name]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdaptedEngine]:
    folder = tmp_path_factory.mktemp("adapters")
    tiny_models.save_llama(folder / "model")
    for seed, name in enumerate(("red", "blue", "green")):
        tiny_models.save_adapter(folder / name, seed)
    made = AdaptedEngine(folder / "model", folder)
    yield made
    made.core.shutdown()


@pytest.fixture(autouse=True)
def empty(engine: AdaptedEngine) -> None:
    engine.forget(host=True)
    engine.counters()


def test_every_output_equals_no_cache(engine: AdaptedEngine) -> None:
    wrong, counters = wrong_outputs(engine, 1, REQUESTS)
    assert counters["loaded_tokens"] > 5 * engine.page
    assert wrong == 0


def test_a_prompt_is_shared_within_an_adapter_alone(engine: AdaptedEngine) -> None:
    adapters = [None, engine.adapter("red", 1), engine.adapter("blue", 2)]
    first = [engine.served(adapter) for adapter in adapters]
    assert [hits for _, hits in first] == [0, 0, 0]
    assert len({tuple(output) for output, _ in first}) == 3, "an adapter changes what is computed"
    assert [engine.served(adapter) for adapter in adapters] == [(output, 128) for output, _ in first]


def test_a_name_that_comes_to_mean_other_weights_is_another_namespace(engine: AdaptedEngine) -> None:
    right, _ = engine.served(engine.adapter("green", 3))
    engine.forget(host=True)
    engine.served(engine.adapter("red", 1))
    assert engine.served(engine.adapter("red", 3, saved_as="green")) == (right, 0), "another path"
    assert engine.served(engine.adapter("red", 4))[1] == 128, "loaded anew, from the same files"


def test_an_adapter_that_was_replaced_in_place_is_left_alone(engine: AdaptedEngine) -> None:
    engine.served(engine.adapter("red", 1))
    for _ in range(2):
        assert engine.served(engine.adapter("red", 1, load_inplace=True))[1] == 0


def test_adapters_in_one_namespace_are_seen(engine: AdaptedEngine) -> None:
    with mock.patch("unified_tree.controllers.adapters.vllm.connector.namespace_of", return_value=""):
        wrong, _ = wrong_outputs(engine, 3, 20, aborts=0)
    assert wrong
