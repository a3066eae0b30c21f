"""Prompts with images in a real vLLM: a tiny LLaVA whose images are placeholders in the prompt. Run as test_served_models.py.

An image reaches the key by vLLM's hash of it. transformers reads images by PIL, so that this needs no torchvision.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib.util
import os
import random
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import vllm_tiny_models as tiny_models
from vllm_served_mix import SETTINGS, Engine, keys_of_tokens_alone

pytest.importorskip("vllm", reason="the engine's python runs these")
REQUESTS = int(os.environ.get("REQUESTS", "40"))
SIDE = 28
NAMES = ("cat", "dog")


class SeeingEngine(Engine):
    """An engine whose prompts may have an image, named in the salts of a mix."""

    def image(self, name: str) -> Any:
        """A picture of noise, the same for each name."""
        from PIL import Image

        noise = np.random.default_rng(NAMES.index(name)).integers(0, 255, (SIDE, SIDE, 3), np.uint8)
        return Image.fromarray(noise)

    def ask(self, before: list[int], name: str | None, behind: list[int]) -> str:
        """A prompt of tokens, an image, and tokens; its name."""
        from vllm import SamplingParams

        request = f"request-{next(self.names)}"
        tokens = before + [tiny_models.IMAGE_TOKEN] * (name is not None) + behind
        prompt: dict[str, Any] = {"prompt_token_ids": tokens}
        if name is not None:
            prompt["multi_modal_data"] = {"image": self.image(name)}
        sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
        self.llm.llm_engine.add_request(request, prompt, sampling)
        return request


def without_torchvision() -> None:
    """vLLM's LLaVA imports transformers' Pixtral, whose images need torchvision. LLaVA's do not."""
    from vllm import ModelRegistry

    name = "transformers.models.pixtral.image_processing_pixtral"
    sys.modules[name] = mock.MagicMock(__spec__=None)
    try:
        from vllm.model_executor.models.llava import LlavaForConditionalGeneration as Llava
    finally:
        del sys.modules[name]
    ModelRegistry.register_model("LlavaForConditionalGeneration", Llava)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeeingEngine]:
    if importlib.util.find_spec("torchvision") is None:
        without_torchvision()
    path = tmp_path_factory.mktemp("llava")
    tiny_models.save_llava(path)
    made = SeeingEngine("llama", path, settings=SETTINGS, skip_tokenizer_init=False, limit_mm_per_prompt={"image": 1})
    yield made
    made.core.shutdown()


@pytest.fixture(autouse=True)
def empty(engine: SeeingEngine) -> None:
    engine.forget(host=True)
    engine.counters()


def drawn(pick: random.Random, page: int) -> tuple[list[int], str | None, list[int]]:
    """A prompt of one of a few heads, an image or none, and one of a few tails."""
    heads, tails = ([[4 + (number * step + seed) % 500 for number in range(length)] for seed, length in enumerate(lengths)]
                    for step, lengths in ((7, (0, page + 3, 2 * page)), (11, (5, page, 3 * page + 1))))  # fmt: skip
    return pick.choice(heads), pick.choice([*NAMES, None]), pick.choice(tails)


def served(engine: SeeingEngine) -> list[bool]:
    """Serve a mix; whether each output is that without a cache."""
    pick, asked = random.Random(3), []
    for number in range(REQUESTS):
        prompt = drawn(pick, engine.page)
        asked.append((prompt, engine.ask(*prompt)))
        engine.step()
        if number % 3 == 2:
            engine.run()
            engine.forget()
    engine.run()
    counters = engine.counters()
    print(f"images: {REQUESTS} requests, {counters}")
    assert counters["loaded_tokens"] > 5 * engine.page
    alone: dict[Any, list[int]] = {}
    for prompt, _ in asked:
        known = repr(prompt)
        if known not in alone:
            engine.forget(host=True)
            name = engine.ask(*prompt)
            engine.run()
            assert engine.hits[name] == 0
            alone[known] = engine.outputs[name]
    assert len({tuple(output) for output in alone.values()}) > len(alone) // 2, "images change outputs"
    return [engine.outputs[name] == alone[repr(prompt)] for prompt, name in asked]


def test_every_output_equals_no_cache(engine: SeeingEngine) -> None:
    assert all(served(engine))


def test_without_the_names_of_images_outputs_are_wrong(engine: SeeingEngine) -> None:
    with keys_of_tokens_alone():
        assert not all(served(engine))
