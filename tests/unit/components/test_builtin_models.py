"""The built-in models, against published totals and hand calculations."""

from __future__ import annotations

from typing import Any

import pytest

from unified_tree.components import composition_for, model_names
from unified_tree.terms.errors import ConfigurationError

REQUIRED = {
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "gemma-3-27b",
    "gpt-oss-120b",
    "gpt-oss-20b",
    "kimi-linear-48b-a3b",
    "llama-3.1-8b",
    "nemotron-h-8b",
    "qwen3-32b",
    "qwen3-next-80b-a3b",
}


def test_the_names_people_ask_for_are_there() -> None:
    assert REQUIRED.issubset(model_names())
    with pytest.raises(ConfigurationError, match=r"unknown model 'gpt-5'; there are deepseek-r1, deepseek-v3\.2"):
        composition_for("gpt-5")


@pytest.mark.parametrize(
    ("name", "per_token", "per_state"),
    [
        ("llama-3.1-8b", {"full": 32 * 8 * 256 * 2}, {}),
        ("qwen3-32b", {"full": 64 * 8 * 256 * 2}, {}),
        ("gpt-oss-20b", {"full": 12 * 8 * 128 * 2, "swa": 12 * 8 * 128 * 2}, {}),
        ("gpt-oss-120b", {"full": 18 * 8 * 128 * 2, "swa": 18 * 8 * 128 * 2}, {}),
        ("gemma-3-27b", {"full": 10 * 16 * 256 * 2, "swa": 52 * 16 * 256 * 2}, {}),
        ("qwen3-next-80b-a3b", {"full": 12 * 2 * 512 * 2}, {"mamba": 36 * (8192 * 3 * 2 + 32 * 128 * 128 * 4)}),
        ("nemotron-h-8b", {"full": 4 * 8 * 256 * 2}, {"mamba": 24 * (10240 * 3 * 2 + 128 * 64 * 128 * 4)}),
        ("kimi-linear-48b-a3b", {"full": 7 * 576 * 2}, {"mamba": 20 * (3 * 4096 * 3 * 2 + 32 * 128 * 128 * 4)}),
        ("deepseek-v3.2", {"full": 61 * 576 * 2, "indexer": 61 * 132}, {}),
        ("glm-5", {"full": 78 * 576 * 2, "indexer": 78 * 132}, {}),
        ("mimo-v2-flash", {"full": 9 * 4 * 320 * 2, "swa": 39 * 8 * 320 * 2}, {}),
        (
            "deepseek-v4-flash",
            {"c4": 21 * 256, "c128": 20 * 8, "indexer": 21 * 64, "swa": 43 * 1024, "overlap": 21 * 160},
            {},
        ),
    ],
)
def test_bytes(name: Any, per_token: Any, per_state: Any) -> None:
    model = composition_for(name)
    assert (model.name, model.bytes_per_token(), model.bytes_per_state()) == (name, per_token, per_state)


@pytest.mark.parametrize(
    ("name", "embeddings", "published_billions"),
    [
        ("llama-3.1-8b", 2 * 128256 * 4096, 8.03),
        ("qwen3-32b", 0, 31.2),
        ("gpt-oss-20b", 201088 * 2880, 3.61),
        ("gpt-oss-120b", 201088 * 2880, 5.13),
        ("gemma-3-27b", 262208 * 5376, 27.0),
        ("nemotron-h-8b", 2 * 131072 * 4096, 8.1),
        ("deepseek-v3.2", 129280 * 7168, 37.5),
        ("deepseek-v4-flash", 129280 * 4096, 13.3),
    ],
)
def test_weights_add_up_to_the_published_active_size(name: Any, embeddings: Any, published_billions: Any) -> None:
    flops = sum(component.flops_per_token for component in composition_for(name).components)
    assert (flops / 2 + embeddings) / 1e9 == pytest.approx(published_billions, rel=0.005)


@pytest.mark.parametrize("name", model_names())
def test_every_option_is_passed_on(name: Any) -> None:
    model = composition_for(name, page_size=256, tensor_parallel=2, kv_dtype="fp8", draft=1)
    assert model.page_size == 256
    assert "draft" in model.bytes_per_token()
    before = composition_for(name)
    unchanged = {"overlap"} if name == "deepseek-v4-flash" else {"overlap", "indexer"}  # fp8 in any case
    assert all(model.bytes_per_token()[k] <= v / 2 for k, v in before.bytes_per_token().items() if k not in unchanged)
