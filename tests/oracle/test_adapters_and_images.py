"""Keys of prompts that run with a LoRA adapter, or hold images: what is not in the tokens is in the key."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from oracle.families import FAMILIES, LLAMA
from oracle.mix import EVENTS, Bench, Tiers, serve_mix
from oracle.oracle_engine import WrongLogitsError
from oracle.reference import Tally
from oracle.tiny_model import SINGLE, Family, draw_weights

from reference_engine import EngineSettings, ModelRunner, Request
from unified_tree import Key
from unified_tree.controllers import Lease, PrefixCache

ADAPTERS = {"": None, json.dumps(["", "red"]): "red", json.dumps(["", "blue"]): "blue", json.dumps(["salt", "red"]): "red"}
"""Adapters by namespace, which is a cache salt and an adapter."""
HAPPENS = {name: chance for name, chance in EVENTS.items() if name != "weights"} | {"restart": 0.1}
VOCABULARY, PATCHES, IMAGES = 96, 9, 4


def over(directory: Path) -> Tiers:
    options = {"directory": directory, "capacity_bytes": 1 << 28}
    return Tiers(paths=3.0, windows=3.0, states=10, storage={"name": "file", "options": options})


@torch.no_grad()
def adapted(model: Any, name: str | None) -> Any:
    """A model with a LoRA of rank 2 in its queries and values, merged; the model itself without a name."""
    if name is None:
        return model
    found, generator = copy.deepcopy(model), torch.Generator().manual_seed(sum(name.encode()))
    layers = [layer for path, layer in found.named_modules() if path.endswith(("q_proj", "v_proj"))]
    assert layers
    for layer in layers:
        up, down = (torch.randn(size, 2, generator=generator) for size in layer.weight.shape)
        layer.weight.add_(0.2 * (up @ down.T))
    return found


def serve_adapters(family: Family, seed: int, directory: Path) -> Tally:
    """Requests with two adapters, with one and a salt, and with none ask for the same prompts."""
    bench = Bench(family, SINGLE, over(directory), Random(seed))
    model = bench.engine.runners[""].model
    bench.engine.runners = {space: ModelRunner(adapted(model, name), bench.composition) for space, name in ADAPTERS.items()}
    return serve_mix(bench, 24, HAPPENS, list(ADAPTERS))


@pytest.mark.parametrize("name", ["Llama", "GPT-OSS", "Falcon-H1"])
def test_adapters_are_namespaces(name: str, tmp_path: Path, record_property: Any) -> None:
    in_store = in_memory = runs = 0
    for seed in range(3, 11):  # what a restart finds in the store is a matter of time
        tally = serve_adapters(FAMILIES[name], seed, tmp_path / str(seed))
        runs += tally.runs
        in_store += tally.hits["store"]
        in_memory += tally.hits["device"] + tally.hits["host"]
        if in_store and in_memory:
            break
    record_property("operations", runs)
    assert min(in_store, in_memory) > 0


def test_a_key_without_the_adapter_is_seen(tmp_path: Path, monkeypatch: Any) -> None:
    def salted(self: Request) -> Key:
        return Key(self.tokens, json.loads(self.namespace)[0] if self.namespace else "")

    monkeypatch.setattr(Request, "key", salted)
    with pytest.raises(WrongLogitsError):
        serve_adapters(LLAMA, 3, tmp_path)


class Seeing(torch.nn.Module):
    """LLaVA of `transformers`, a vision tower before a Llama. An id behind the vocabulary is a patch of an image.

    Args:
        seed: of the pictures.
    """

    patches: torch.Tensor

    def __init__(self, seed: int) -> None:
        from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

        super().__init__()
        eyes = CLIPVisionConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=12, patch_size=4
        )
        fields = {name: value for name, value in LLAMA.config.items() if name != "model_type"}
        config = LlavaConfig(vision_config=eyes, text_config=LlamaConfig(**fields), image_token_index=VOCABULARY - 1)
        config._attn_implementation = "eager"
        torch.manual_seed(seed)
        make: Any = LlavaForConditionalGeneration
        self.model = make(config)
        draw_weights(self.model)
        self.model.eval()
        self.config = self.model.config.get_text_config()
        with torch.no_grad():
            seen: Any = self.model.model.get_image_features(pixel_values=torch.randn(IMAGES, 3, 12, 12))
        seen = getattr(seen, "pooler_output", seen)
        patches = torch.cat(list(seen)).reshape(IMAGES * PATCHES, -1)
        self.register_buffer("patches", 4 * patches / patches.std())

    def forward(self, input_ids: torch.Tensor, **given: Any) -> Any:
        """Run the language model over the words and patches."""
        words = self.model.get_input_embeddings()(input_ids.clamp(max=VOCABULARY - 1))
        is_patch = input_ids >= VOCABULARY
        words[is_patch] = self.patches[input_ids[is_patch] - VOCABULARY]
        return self.model(inputs_embeds=words, **given)


def serve_images(seed: int, directory: Path) -> tuple[Tally, int]:
    """Prompts with images among equal words; also how many hits ended within an image."""
    random = Random(seed)
    bench = Bench(LLAMA, SINGLE, over(directory), random, settings=EngineSettings(chunk_tokens=16))
    bench.engine.runners = {"": ModelRunner(Seeing(seed), bench.composition)}
    lead, within = [random.randrange(VOCABULARY) for _ in range(40)], 0
    for number in range(24):
        before = random.choice([5, 10, 18])
        first = VOCABULARY + random.randrange(IMAGES) * PATCHES
        asked = random.choice([lead[20:34], lead[22:30], [random.randrange(VOCABULARY) for _ in range(7)]])
        hits = bench.cache.stats().hit_tokens
        bench.serve(Request(prompt=[*lead[:before], *range(first, first + PATCHES), *asked], new_tokens=random.choice([1, 9])))
        within += before < bench.cache.stats().hit_tokens - hits < before + PATCHES
        if number % 8 == 7:
            bench.restart()
        elif number % 3 == 2:
            bench.cache.flush()
            bench.evict()
    return bench.close(), within


def test_images_are_known_by_their_contents(tmp_path: Path, record_property: Any) -> None:
    tally, within = serve_images(4, tmp_path)
    record_property("operations", tally.runs)
    assert min(tally.hits["store"], tally.hits["device"], tally.hits["host"], within) > 0
    assert tally.deviation > 0.3


def _placeholder(_: int) -> int:
    """All patches of all images have one id."""
    return VOCABULARY


def _place_in_the_image(token: int) -> int:
    """Patches are known by where they lie in their image, not by which image that is."""
    return VOCABULARY + token % PATCHES


@pytest.mark.parametrize("named", [_placeholder, _place_in_the_image])
def test_a_key_without_the_image_is_seen(named: Callable[[int], int], tmp_path: Path, monkeypatch: Any) -> None:
    def renamed(tokens: Sequence[int]) -> list[int]:
        return [token if token < VOCABULARY else named(token - VOCABULARY) for token in tokens]

    commit = PrefixCache.commit

    def commit_renamed(self: PrefixCache, lease: Lease, tokens: Sequence[int], *args: Any, **options: Any) -> Any:
        return commit(self, lease, renamed(tokens), *args, **options)

    monkeypatch.setattr(PrefixCache, "commit", commit_renamed)
    monkeypatch.setattr(Request, "key", lambda self: Key(renamed(self.tokens), self.namespace))
    with pytest.raises(WrongLogitsError):
        serve_images(4, tmp_path)
