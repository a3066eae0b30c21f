"""What pages hold, by family, against shapes written out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from unified_tree import ConfigurationError
from unified_tree.components import Composition, composition_for, from_hf_config, model_names
from unified_tree.components.models import MODEL_FACTS
from unified_tree.declare.component import Component
from unified_tree.declare.page_format import EVERY_SLOT, WHOLE, ContextShard, PageFormat, Shard

Kept = tuple[str, str, tuple[int, ...]]


def formats(model: Composition) -> dict[str, PageFormat]:
    return {c.name: c.format for c in model.components if c.format is not None}


def parts(page_format: PageFormat) -> list[Kept]:
    return [(part.name, part.dtype, part.shape) for part in page_format.parts]


@pytest.mark.parametrize("name", model_names())
def test_every_component_of_every_model_states_its_format(name: str) -> None:
    for serving in ({}, {"tensor_parallel": 2, "rank": 1, "kv_dtype": "fp8"}):
        model = composition_for(name, draft=2, **serving)  # type: ignore[arg-type]
        for component in model.components:
            assert component.format is not None and component.format.shard is not None
            assert component.format.page_bytes == component.page_bytes > 0
            assert component.format.slots_per_page in (1, model.page_size // component.tokens_per_slot)


def test_windows_and_full_layers_in_turn() -> None:
    kept = formats(composition_for("gpt-oss-20b", tensor_parallel=4, rank=3, kv_dtype="fp8_e5m2"))
    for name, first in (("full", 1), ("swa", 0)):
        assert kept[name].layer_ids == tuple(range(first, 24, 2))
        assert parts(kept[name]) == [("k", "float8_e5m2", (2, 64)), ("v", "float8_e5m2", (2, 64))]
        assert kept[name].shard == Shard(3, 4)


def test_latents_and_index_keys_are_the_same_on_every_rank() -> None:
    kept = formats(composition_for("deepseek-v3.2", tensor_parallel=8, draft=1))
    assert parts(kept["full"]) == [("latent", "bfloat16", (576,))]
    index_keys = [("key", "float8_e4m3fn", (128,)), ("scale", "float32", (1,))]
    assert parts(kept["indexer"]) == index_keys
    assert parts(kept["draft"]) == [("latent", "bfloat16", (576,)), *index_keys]
    assert kept["draft"].layer_ids == (61,)
    assert {page.shard for page in kept.values()} == {WHOLE}


def test_states_stand_at_the_layers_that_have_them() -> None:
    kept = formats(composition_for("nemotron-h-8b", tensor_parallel=2, rank=0))
    pattern = MODEL_FACTS["nemotron-h-8b"]["hybrid_override_pattern"]
    assert kept["full"].layer_ids == tuple(i for i, kind in enumerate(pattern) if kind == "*")
    assert kept["mamba"].layer_ids == tuple(i for i, kind in enumerate(pattern) if kind == "M")
    assert parts(kept["mamba"]) == [("conv", "bfloat16", (64 * 64 + 2 * 4 * 128, 3)), ("ssm", "float32", (64, 64, 128))]
    assert (kept["mamba"].slots_per_page, kept["mamba"].shard) == (1, Shard(0, 2))


def test_compressed_entries_and_what_goes_with_them() -> None:
    kept = formats(composition_for("deepseek-v4-flash", draft=1))
    sparse = tuple(range(2, 43, 2))
    assert kept["c4"].layer_ids == kept["indexer"].layer_ids == kept["overlap"].layer_ids == sparse
    assert (kept["c128"].layer_ids, kept["swa"].layer_ids) == (tuple(range(3, 42, 2)), tuple(range(43)))
    assert [kept[name].slots_per_page for name in ("c4", "c128", "indexer", "swa", "overlap")] == [32, 1, 32, 128, 1]
    assert parts(kept["overlap"]) == [
        ("kv", "float32", (4, 512)),
        ("gate", "float32", (4, 512)),
        ("index kv", "float32", (4, 128)),
        ("index gate", "float32", (4, 128)),
    ]
    assert (kept["draft"].layer_ids, parts(kept["draft"])) == ((43,), [("kv", "bfloat16", (512,))])


@pytest.mark.parametrize(
    ("ranks", "shards"),
    [
        (1, [WHOLE]),
        (2, [Shard(0, 2), Shard(1, 2)]),
        (4, [Shard(0, 2), Shard(0, 2), Shard(1, 2), Shard(1, 2)]),
    ],
)
def test_ranks_with_the_same_heads_have_the_same_shard(ranks: int, shards: list[Shard]) -> None:
    facts = {**MODEL_FACTS["llama-3.1-8b"], "num_key_value_heads": 2}
    models = [from_hf_config(facts, tensor_parallel=ranks, rank=rank) for rank in range(ranks)]
    assert [formats(model)["full"].shard for model in models] == shards
    assert [model.writes("full") for model in models] == [rank % max(1, ranks // 2) == 0 for rank in range(ranks)]
    with pytest.raises(ConfigurationError, match="'swa' is no component"):
        models[0].writes("swa")


def test_a_single_head_is_replicated() -> None:
    facts = {**MODEL_FACTS["llama-3.1-8b"], "num_key_value_heads": 1}
    assert formats(from_hf_config(facts, tensor_parallel=4))["full"].shard == WHOLE


def test_a_rank_that_was_not_said_is_not_guessed() -> None:
    assert formats(composition_for("llama-3.1-8b", tensor_parallel=2))["full"].shard is None


def test_a_draft_model_keeps_what_its_own_layers_keep() -> None:
    draft: dict[str, Any] = {**MODEL_FACTS["llama-3.1-8b"], "num_hidden_layers": 2, "num_key_value_heads": 4}
    kept = formats(composition_for("qwen3-32b", tensor_parallel=2, rank=1, draft=draft))["draft"]
    assert (kept.layer_ids, parts(kept)) == ((0, 1), [("k", "bfloat16", (2, 128)), ("v", "bfloat16", (2, 128))])
    assert kept.shard == Shard(1, 2)


@pytest.mark.parametrize("wrong", [{"tensor_parallel": 0}, {"rank": 1}, {"tensor_parallel": 2, "rank": 2}, {"rank": True}])
def test_absurd_ranks(wrong: dict[str, Any]) -> None:
    full: Component = composition_for("llama-3.1-8b").components[0]
    with pytest.raises(ConfigurationError, match=r"must be"):
        Composition(name="x", page_size=64, components=(full,), **wrong)


def test_context_parallel_ranks_divide_what_they_would_all_keep() -> None:
    """DeepSeek-V3.2 by eight ranks, of which four divide the tokens: latents lie once on each four, index keys on all eight."""
    whole = [composition_for("deepseek-v3.2", page_size=64, tensor_parallel=8, rank=rank) for rank in range(8)]
    ranks = [each.with_context_parallel(4) for each in whole]
    assert [formats(each)["full"].context for each in ranks] == [ContextShard(rank % 4, 4) for rank in range(8)]
    assert {formats(each)["indexer"].context for each in ranks} == {EVERY_SLOT}
    assert ranks[0].bytes_per_token()["full"] * 4 == whole[0].bytes_per_token()["full"]
    assert [each.writes("full") for each in ranks] == [True] * 4 + [False] * 4
    assert [each.writes("indexer") for each in ranks] == [True] + [False] * 7


def test_heads_are_divided_first() -> None:
    facts = {**MODEL_FACTS["llama-3.1-8b"], "num_key_value_heads": 2}
    whole = [from_hf_config(facts, page_size=32, tensor_parallel=8, rank=rank) for rank in range(8)]
    kept = [formats(each.with_context_parallel(2, interleave=16))["full"] for each in whole]
    assert [(each.shard, each.context.index) for each in kept] == [(Shard(rank // 4, 2), rank % 2) for rank in range(8)]
    written = [each.with_context_parallel(2).writes("full") for each in whole]
    assert written == [True, True, False, False] * 2


def test_ranks_that_are_no_neighbours_write_more_rather_than_less() -> None:
    """The n-th two of eight ranks keep the n-th part, as where context parallelism lies outside of tensor parallelism."""
    for rank in range(8):
        model = composition_for("deepseek-v3.2", page_size=64, tensor_parallel=8, rank=rank)
        kept = formats(model)["full"].divided(ContextShard(rank // 2, 4))
        assert model.with_formats({"full": kept}).writes("full") or rank % 2


@pytest.mark.parametrize(
    ("rank", "given", "told"),
    [
        (None, {"ranks": 2}, "needs a stated format, its shard, and the rank"),
        (0, {"ranks": 2, "names": ("swa",)}, "'swa' needs a stated format"),
        (0, {"ranks": 3}, "which 3 context-parallel ranks do not divide"),
        (0, {"ranks": 4, "interleave": 32}, "a page of 64 slots is no multiple"),
        (0, {"ranks": 0}, "ranks must be a positive integer"),
        (0, {"ranks": True}, "ranks must be a positive integer"),
        (0, {"ranks": 2, "interleave": 0}, "interleave must be a positive number"),
    ],
)
def test_ranks_and_slots_that_do_not_divide(rank: int | None, given: dict[str, Any], told: str) -> None:
    model = composition_for("deepseek-v3.2", page_size=64, tensor_parallel=8, rank=rank)
    with pytest.raises(ConfigurationError, match=told):
        model.with_context_parallel(**given)
