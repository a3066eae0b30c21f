"""Formats: their sizes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from unified_tree import Component, ConfigurationError, Path
from unified_tree.components import Composition, composition_for, full, mamba
from unified_tree.controllers.pools import (
    PageFormat,
    Part,
    formats_of,
    indexer_format,
    mha_format,
    mla_format,
    raw_format,
    state_format,
)
from unified_tree.declare.page_format import EVERY_SLOT, ITEM_BYTES, ContextShard, Shard


def test_sizes_by_hand() -> None:
    mha = mha_format("full", layer_ids=(3, 7, 11), page_size=16, kv_heads=8, head_dim=128, value_dim=64)
    assert [mha.block_bytes(part) for part in mha.parts] == [16 * 8 * 128 * 2, 16 * 8 * 64 * 2]
    assert mha.page_bytes == 3 * 16 * 8 * (128 + 64) * 2
    assert mla_format("c4", layer_ids=(0,), page_size=64, latent_dim=576, tokens_per_slot=4).page_bytes == 16 * 576 * 2
    assert indexer_format("i", layer_ids=(0, 1), page_size=64, key_dim=128).page_bytes == 2 * 64 * (128 + 4)
    assert indexer_format("i", layer_ids=(0, 1), page_size=64, key_dim=128, scale_dtype=None).page_bytes == 2 * 64 * 128
    state = state_format("m", layer_ids=(0, 1), conv_shape=(10, 3), state_shape=(2, 4, 8))
    assert (state.slots_per_page, state.page_bytes) == (1, 2 * (10 * 3 * 2 + 2 * 4 * 8 * 4))


@pytest.mark.parametrize(
    ("dtype", "shape", "word"), [("uint8", (3,), 1), ("bfloat16", (3, 5), 2), ("float32", (1,), 4), ("int8", (48,), 8)]
)
def test_the_widest_word_divides_a_row(dtype: str, shape: tuple[int, ...], word: int) -> None:
    assert Part("x", dtype, shape).word_bytes == word


def test_every_dtype_is_one_of_torchs_with_that_size() -> None:
    torch = pytest.importorskip("torch")
    assert all(getattr(torch, name).itemsize == size for name, size in ITEM_BYTES.items())


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [("", "int8", (1,)), (None, "int8", (1,)), ("k", "bf16", (1,)), ("k", "Tensor", (1,)), ("k", [], (1,)), ("k", "int8", ()),
     ("k", "int8", [1]), ("k", "int8", (0,)), ("k", "int8", (-1, -1)), ("k", "int8", (2.0,)), ("k", "int8", (True,))],
)  # fmt: skip
def test_absurd_parts(name: Any, dtype: Any, shape: Any) -> None:
    with pytest.raises(ConfigurationError):
        Part(name, dtype, shape)


@pytest.mark.parametrize(
    "wrong",
    [
        {"component": ""}, {"component": 3}, {"layer_ids": ()}, {"layer_ids": (1, 0)}, {"layer_ids": (0, 0)},
        {"layer_ids": (-1,)}, {"layer_ids": [0]}, {"layer_ids": ("0",)}, {"layer_ids": (0, "1")}, {"parts": ()},
        {"parts": ("k",)},
        {"parts": (Part("k", "int8", (1,)), Part("k", "int8", (2,)))}, {"slots_per_page": 0}, {"slots_per_page": True},
        {"slots_per_page": 1.0}, {"layer_ids": None}, {"parts": None}, {"context": None}, {"context": Shard(0, 2)},
        {"context": ContextShard(0, 2, 2), "slots_per_page": 3},
    ],
)  # fmt: skip
def test_absurd_formats(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"component": "x", "layer_ids": (0,), "parts": (Part("k", "int8", (1,)),), "slots_per_page": 1}
    PageFormat(**right)
    with pytest.raises(ConfigurationError):
        PageFormat(**(right | wrong))


@pytest.mark.parametrize(("ranks", "interleave"), [(1, 1), (2, 1), (2, 4), (3, 1), (4, 2), (8, 1), (8, 5)])
@pytest.mark.parametrize("runs", [1, 3])
def test_each_slot_of_a_page_lies_on_one_context_parallel_rank(ranks: int, interleave: int, runs: int) -> None:
    total = ranks * interleave * runs
    kept = [ContextShard(rank, ranks, interleave).slots(total) for rank in range(ranks)]
    assert sorted(slot for of_rank in kept for slot in of_rank) == list(range(total))
    for rank, of_rank in enumerate(kept):
        assert len(of_rank) == total // ranks
        assert all(slot // interleave % ranks == rank for slot in of_rank)
        assert list(of_rank) == sorted(of_rank)


@pytest.mark.parametrize(
    "wrong", [(0, 0), (2, 2), (-1, 2), (True, 2), (0, 2.0), (0, 2, 0), (0, 2, -1), (0, 2, True), (0, 1, 2)]
)
def test_absurd_context_shards(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        ContextShard(*wrong)


def test_a_page_is_divided_once_and_evenly() -> None:
    whole = mha_format("full", layer_ids=(0, 1), page_size=12, kv_heads=1, head_dim=4)
    assert whole.context == EVERY_SLOT
    third = whole.divided(ContextShard(1, 3, 2))
    assert (third.slots_per_page, third.page_bytes * 3) == (4, whole.page_bytes)
    with pytest.raises(ConfigurationError, match="divided among ranks already"):
        third.divided(ContextShard(0, 2))
    for ranks, interleave in ((5, 1), (3, 3), (24, 1)):
        with pytest.raises(ConfigurationError, match="a page of 12 slots is no multiple"):
            whole.divided(ContextShard(0, ranks, interleave))


def test_a_divided_page_belongs_to_a_component_of_as_many_tokens() -> None:
    third = mha_format("full", layer_ids=(0,), page_size=12, kv_heads=1, head_dim=4).divided(ContextShard(1, 3))
    path = Component(name="full", coverage=Path(), format=third)
    assert Composition(name="x", page_size=12, components=(path,)).components[0].page_bytes == 4 * 4 * 2 * 2
    for page_size, told in ((24, "have 8 on each of 3 ranks"), (4, "a page's 4 slots do not divide among 3")):
        with pytest.raises(ConfigurationError, match=told):
            Composition(name="x", page_size=page_size, components=(path,))
    state = state_format("mamba", layer_ids=(0,), conv_shape=(3, 2), state_shape=(2, 2))
    with pytest.raises(ConfigurationError, match="a page of 1 slots is no multiple"):
        state.divided(ContextShard(0, 2))


@pytest.mark.parametrize(("page_size", "tokens_per_slot"), [(6, 4), (4, 0), (4, -1), (0, 4)])
def test_a_page_holds_whole_slots(page_size: int, tokens_per_slot: int) -> None:
    with pytest.raises(ConfigurationError):
        mla_format("c", layer_ids=(0,), page_size=page_size, latent_dim=8, tokens_per_slot=tokens_per_slot)


def test_what_is_not_kept_is_named() -> None:
    mha = mha_format("full", layer_ids=(3, 7), page_size=4, kv_heads=1, head_dim=2)
    assert (mha.layer_index(7), mha.part("v").name) == (1, "v")
    with pytest.raises(ConfigurationError, match=r"does not keep layer 4; it keeps \[3, 7\]"):
        mha.layer_index(4)
    with pytest.raises(ConfigurationError, match="no part 'q'; its parts are k, v"):
        mha.part("q")


def test_every_component_of_a_model_gets_a_format() -> None:
    model = composition_for("deepseek-v4-flash")
    formats = formats_of(model)
    assert {name: found.page_bytes for name, found in formats.items()} == {c.name: c.page_bytes for c in model.components}
    assert formats == {c.name: c.format for c in model.components}


def test_a_component_takes_its_size_from_its_format_or_is_refused() -> None:
    right = mha_format("full", layer_ids=(0, 1), page_size=4, kv_heads=1, head_dim=4)
    assert Component(name="full", coverage=Path(), format=right).page_bytes == 128
    assert Component(name="full", coverage=Path(), format=right, page_bytes=128).format is right
    with pytest.raises(ConfigurationError, match="page_bytes is 256, the format's pages are 128 bytes"):
        Component(name="full", coverage=Path(), format=right, page_bytes=256)
    with pytest.raises(ConfigurationError, match="mamba: was given the format of 'full'"):
        Component(name="mamba", coverage=Path(), format=right)
    with pytest.raises(ConfigurationError, match="format must be a PageFormat or None, not 'bfloat16'"):
        Component(name="full", coverage=Path(), format="bfloat16")  # type: ignore[arg-type]


def test_formats_can_be_stated_afterwards() -> None:
    model = Composition(name="x", page_size=4, components=(full(page_size=4, bytes_per_token=32), mamba(state_bytes=64)))
    assert [page.parts[0].name for page in formats_of(model).values()] == ["raw", "raw"]
    wider = mha_format("full", layer_ids=(0, 1), page_size=4, kv_heads=1, head_dim=8)
    stated = model.with_formats({"full": wider})
    assert [(c.format, c.page_bytes) for c in stated.components] == [(wider, 256), (None, 64)]
    assert formats_of(stated)["full"] is wider
    with pytest.raises(ConfigurationError, match="'swa' is no component of x"):
        model.with_formats({"swa": wider})
    with pytest.raises(ConfigurationError, match="page_bytes is 0"):
        raw_format(full(page_size=1, bytes_per_token=0))


@pytest.mark.parametrize("wrong", [Shard, "rank 0 of 2", (0, 2)])
def test_a_shard_is_a_shard(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="shard must be a Shard or None"):
        mha_format("full", layer_ids=(0,), page_size=4, kv_heads=1, head_dim=4, shard=wrong)
