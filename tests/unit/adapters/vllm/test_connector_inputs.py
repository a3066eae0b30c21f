"""Prompts with images and embeddings, and LoRA adapters known by their files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm_engine_model import MODELS, PAGE, EngineModel, Image, Place, Request

from unified_tree.controllers.adapters.vllm.engine_request import key_tokens
from unified_tree.controllers.adapters.vllm.weight_digests import LoraFiles

PLACEHOLDER = 0
NAMES = ("a cat", "a dog")
HIDDEN = 3


def drawn(pick: Random, name: str, heads: list[Request]) -> Request:
    """A prompt that goes on from another, with an image or embeddings of which there are two each."""
    head = pick.choice(heads)
    cut = pick.randrange(head.num_tokens + 1)
    tokens = head.all_token_ids[:cut]
    images = [image for image in head.mm_features if image.mm_position.offset + image.mm_position.length <= cut]
    for _ in range(pick.randrange(1, 3)):
        if pick.random() < 0.6:
            length = pick.randrange(1, 10)
            images.append(Image(pick.choice(NAMES), Place(len(tokens), length)))
            tokens += [PLACEHOLDER] * length
        tokens += [pick.randrange(2) for _ in range(pick.randrange(1, 4))]
    request = Request(name, pick.choice(["", "salt"]), tokens[:44], pick.randrange(1, 6))
    request.mm_features = [each for each in images if each.mm_position.offset + each.mm_position.length <= 44]
    if head.prompt_embeds is not None or pick.random() < 0.2:
        rows = [] if head.prompt_embeds is None else head.prompt_embeds[:cut].tolist()
        kinds = [] if head.prompt_is_token_ids is None else head.prompt_is_token_ids[:cut]
        for _ in range(len(rows), min(len(tokens), 44)):
            rows.append([float(pick.randrange(2))] * HIDDEN)
        kinds += [pick.random() < 0.5 for _ in range(len(rows) - len(kinds))]
        request.prompt_embeds = torch.tensor(rows).view(-1, HIDDEN).to(torch.bfloat16)
        request.prompt_is_token_ids = kinds
    return request


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_a_prompt_resumes_only_on_what_the_same_inputs_have_computed(kind: str, seed: int) -> None:
    """The model of the engine compares what each block holds."""
    engine, pick = EngineModel(kind, seed, host_bytes=20_000), Random(seed)
    heads = [Request("head", "", [PLACEHOLDER] * 6, 1)]
    for number in range(60):
        request = drawn(pick, f"r{number}", heads)
        heads.append(request)
        engine.add(request)
        for _ in range(pick.randrange(1, 6)):
            engine.step()
        while len(engine.running) + len(engine.waiting) > 3:
            engine.step()
    engine.settle()
    assert engine.hit_tokens > 100


def test_without_the_names_of_images_the_model_sees_wrong_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    def tokens_alone(request: Any, begin: int, end: int) -> Any:
        return np.array(request.all_token_ids[begin:end], np.int64)

    monkeypatch.setattr("unified_tree.controllers.adapters.vllm.engine_request.key_tokens", tokens_alone)
    with pytest.raises(AssertionError):
        test_a_prompt_resumes_only_on_what_the_same_inputs_have_computed("full", 0)


@pytest.mark.parametrize("kind", MODELS)
def test_the_same_image_at_the_same_place_is_a_hit(kind: str) -> None:
    engine, hits = EngineModel(kind, 0, host_bytes=100_000), []
    for at, name in enumerate(("a cat", "a dog", "a cat")):
        request = Request(str(at), "", [1] * PAGE + [PLACEHOLDER] * 3 * PAGE + [1] * (PAGE + 1), 1)
        request.mm_features = [Image(name, Place(PAGE, 3 * PAGE))]
        before = engine.hit_tokens
        engine.add(request)
        engine.settle()
        hits.append(engine.hit_tokens - before)
    assert hits == [0, PAGE if kind in ("full", "window") else 0, 5 * PAGE]


def test_a_key_is_made_in_parts_as_in_one_piece() -> None:
    request = Request("", "", list(range(40)), 0)
    request.mm_features = [Image("a", Place(3, 9)), Image("b", Place(12, 1)), Image("a", Place(20, 9))]
    request.prompt_embeds, request.prompt_is_token_ids = torch.arange(32.0).view(16, 2), [at % 2 == 0 for at in range(16)]
    whole = key_tokens(request, 0, 99)
    for begin in range(41):
        for end in range(begin, 42):
            assert key_tokens(request, begin, end).tolist() == whole[begin:end].tolist()
    assert whole[3:12].tolist() == whole[20:29].tolist(), "the same image is the same wherever it lies"
    assert whole[[0, 2, 14, 16, 39]].tolist() == [0, 2, 14, 16, 39], "tokens stay"
    assert len(set(whole.tolist())) == 40 - 9 and (whole[whole >= 40] > 1 << 61).all()


def test_embeddings_of_another_dtype_or_row_are_other_inputs() -> None:
    rows = torch.tensor([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]])
    request = Request("", "", [PLACEHOLDER] * 3, 0, prompt_embeds=rows)
    one, same, other = key_tokens(request, 0, 3).tolist()
    assert one == same != other
    request.prompt_embeds = rows.to(torch.float64)
    assert one not in key_tokens(request, 0, 3).tolist()
    request.prompt_embeds = rows.t().contiguous().t()
    assert key_tokens(request, 0, 3).tolist() == [one, same, other], "however they lie in memory"


# -- adapters


def adapter(path: Path | str, number: int = 1, **more: Any) -> Any:
    named = {"lora_name": "red", "lora_int_id": number, "lora_path": str(path)}
    return SimpleNamespace(**{**named, "load_inplace": False, "is_3d_lora_weight": False, **more})


def save(folder: Path, weights: bytes) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


def test_an_adapter_has_the_same_version_wherever_its_files_lie(tmp_path: Path) -> None:
    one, other = save(tmp_path / "one", b"1" * 200_000), save(tmp_path / "other", b"2" * 200_000)
    copy = Path(shutil.copytree(one, tmp_path / "copy"))
    files = LoraFiles()
    versions = [files.version(adapter(path)) for path in (one, other, copy)]
    assert versions[0] == versions[2] != versions[1] and all(versions)
    assert files.version(adapter(one, is_3d_lora_weight=True, lora_int_id=2)) != versions[0]
    assert LoraFiles().version(adapter(copy, number=7)) == versions[0], "in another process, under another id"


def test_an_adapter_whose_files_go_while_they_are_read_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler goes on."""
    path = save(tmp_path / "one", b"1")
    (path / "adapter_model.safetensors").unlink()
    (path / "adapter_model.safetensors").symlink_to(path / "gone.safetensors")
    assert LoraFiles().version(adapter(path)) is not None, "a file that is not there is none"

    def gone(*_: object) -> str:
        raise FileNotFoundError("adapter_model.safetensors")

    monkeypatch.setattr("unified_tree.controllers.adapters.vllm.weight_digests.weights_version", gone)
    assert LoraFiles().version(adapter(path)) is None


def test_an_adapter_whose_files_are_elsewhere_has_none_that_a_store_could_use() -> None:
    assert LoraFiles().version(adapter("someone/adapter")) == ""


def test_an_adapter_that_may_have_other_weights_than_its_files_is_left_alone(tmp_path: Path) -> None:
    files, path = LoraFiles(), save(tmp_path / "one", b"1")
    assert files.version(adapter(path, load_inplace=True)) is None
    first = files.version(adapter(path))
    weights = path / "adapter_model.safetensors"
    weights.write_bytes(b"2")
    os.utime(weights, ns=(1, 1))
    assert files.version(adapter(path)) is None, "vLLM may have loaded the old ones"
    assert files.version(adapter(path, number=2)) not in (None, first), "loaded anew"
