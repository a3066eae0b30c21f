"""Where SGLang keeps the state, and copies from there to host and back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sglang_pools as pools
import torch
from sglang_allocators import fake_pool

from unified_tree import Component, ConfigurationError, Path
from unified_tree.components import Composition
from unified_tree.controllers.adapters.sglang.device_pools import PageNumbers
from unified_tree.controllers.adapters.sglang.engine_tensors import (
    EngineMover,
    EngineTensors,
    RankParts,
    engine_tensors,
    last_layer,
)
from unified_tree.controllers.adapters.sglang.page_names import PageNames
from unified_tree.controllers.pools import HostLayout
from unified_tree.controllers.pools.host_pool import host_pools
from unified_tree.declare.page_format import EVERY_SLOT, WHOLE, ContextShard, PageFormat, Part, Shard

DIVIDED = RankParts.of(1, 2, division=2)
KINDS: dict[str, Any] = {
    "full": lambda: tensors(pools.attention(20, 2), page_size=2),
    "latent": lambda: tensors(pools.latent(21, 2), page_size=4),
    "windows": lambda: tensors(pools.windowed(20, 12), page_size=2, has_windows=True),
    "states": lambda: tensors(pools.hybrid(20), pools.with_states(10), has_states=True),
    "index keys": lambda: tensors(pools.sparse(20, 4), page_size=4),
    "scales": lambda: tensors(pools.quantized(20, 2), page_size=2),
    "divided latents": lambda: tensors(pools.latent(20, 2), page_size=8, ranks=DIVIDED),
    "divided latents with whole index keys and drafts": lambda: tensors(
        pools.sparse(20, 4, 2), page_size=8, ranks=DIVIDED, draft_pools=[pools.attention(40, 1)]
    ),
    "divided latents beside states": lambda: tensors(
        SimpleNamespace(full_attention_layer_id_mapping={3: 1, 1: 0}, full_kv_pool=pools.latent(20, 2)),
        pools.with_states(10),
        page_size=8,
        ranks=DIVIDED,
        has_states=True,
    ),
    "drafts": lambda: tensors(
        pools.attention(20, 2), page_size=2, draft_pools=[pools.attention(20, 1), pools.attention(20, 1)]
    ),
    "a draft with index keys": lambda: tensors(pools.latent(20, 2), page_size=4, draft_pools=[pools.sparse(20, 4)]),
    "a draft with states": lambda: tensors(
        pools.hybrid(20),
        pools.with_states(10),
        has_states=True,
        draft_pools=[pools.attention(20, 1)],
        draft_state_pools=[pools.with_states(10).mamba_pool],
    ),
}


def tensors(
    kv_pool: Any, request_pool: Any = None, *, page_size: int = 1, ranks: RankParts | None = None, **more: Any
) -> dict[str, EngineTensors]:
    given = {"has_windows": False, "has_states": False, **more}
    return engine_tensors(kv_pool, request_pool, page_size, ranks or RankParts.of(1, 2), **given)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("full", {"full": ((0, 1), 2, 10, Shard(1, 2))}),
        ("latent", {"full": ((4, 5), 4, 5, Shard(0, 1))}),
        ("windows", {"full": ((0, 2), 2, 10, Shard(1, 2)), "swa": ((1, 3), 2, 6, Shard(1, 2))}),
        ("states", {"full": ((1, 3), 1, 20, Shard(1, 2)), "mamba": ((0, 2), 1, 10, Shard(1, 2))}),
        ("index keys", {"full": ((4, 5, 6), 4, 5, Shard(0, 1)), "indexer": ((4, 6), 4, 5, Shard(0, 1))}),
        ("divided latents", {"full": ((4, 5), 4, 5, Shard(0, 1))}),
        (
            "divided latents with whole index keys and drafts",
            {
                "full": ((4, 5, 6), 4, 5, Shard(0, 1)),
                "indexer": ((4, 6), 8, 5, Shard(0, 1)),
                "draft": ((7,), 8, 5, Shard(1, 2)),
            },
        ),
        ("divided latents beside states", {"full": ((1, 3), 4, 5, Shard(0, 1)), "mamba": ((0, 2), 1, 10, Shard(1, 2))}),
        ("scales", {"full": ((0, 1), 2, 10, Shard(1, 2))}),
        ("drafts", {"full": ((0, 1), 2, 10, Shard(1, 2)), "draft": ((2, 3), 2, 10, Shard(1, 2))}),
        (
            "a draft with index keys",
            {
                "full": ((4, 5), 4, 5, Shard(0, 1)),
                "draft": ((6, 7, 8), 4, 5, Shard(0, 1)),
                "draft_indexer": ((6, 8), 4, 5, Shard(0, 1)),
            },
        ),
        (
            "a draft with states",
            {
                "full": ((1, 3), 1, 20, Shard(1, 2)),
                "mamba": ((0, 2), 1, 10, Shard(1, 2)),
                "draft": ((4,), 1, 20, Shard(1, 2)),
                "draft_mamba": ((4, 5), 1, 10, Shard(1, 2)),
            },
        ),
    ],
)
def test_every_component_has_its_layers_and_pages(kind: str, expected: dict[str, Any]) -> None:
    found = {
        name: (each.format.layer_ids, each.format.slots_per_page, each.page_count, each.format.shard)
        for name, each in KINDS[kind]().items()
    }
    assert found == expected


def test_scales_are_parts_of_a_page_and_unnamed_dtypes_are_bytes() -> None:
    parts = KINDS["scales"]()["full"].format.parts
    assert [(part.name, part.dtype, part.shape) for part in parts] == [
        ("k", "uint8", (1, 4)),
        ("v", "uint8", (1, 4)),
        ("k_scale", "float8_e4m3fn", (1,)),
        ("v_block_scale", "uint8", (2,)),
    ]


def test_of_divided_pages_a_rank_has_every_other_latent_and_all_else() -> None:
    found = KINDS["divided latents with whole index keys and drafts"]()
    assert {name: each.format.context for name, each in found.items()} == {
        "full": ContextShard(1, 2),
        "indexer": EVERY_SLOT,
        "draft": EVERY_SLOT,
    }
    whole = KINDS["index keys"]()["indexer"].format
    assert found["indexer"].format.parts[0].name != whole.parts[0].name, "kernels order one large page otherwise"


@pytest.mark.parametrize(
    ("ranks", "copies", "division"), [(1, 1, 1), (8, 1, 1), (8, 2, 1), (8, 4, 1), (8, 8, 1), (8, 1, 2), (8, 1, 8), (6, 1, 3)]
)
def test_each_part_of_the_state_is_stored_by_one_of_the_ranks_that_keep_it(ranks: int, copies: int, division: int) -> None:
    kept, written = set(), []
    for rank in range(ranks):
        parts = RankParts.of(rank, ranks, copies=copies, division=division)
        assert parts.own == Shard(rank, ranks)
        formats = {
            name: PageFormat(
                component=name,
                layer_ids=(0,),
                parts=(Part("k", "uint8", (4,)),),
                slots_per_page=24 // context.count,
                shard=shard,
                context=context,
            )
            for name, shard, context in (
                ("states", parts.own, EVERY_SLOT),
                ("heads", parts.heads, EVERY_SLOT),
                ("latents", WHOLE, parts.context),
                ("keys", WHOLE, EVERY_SLOT),
            )
            if name != "heads" or division == 1
        }
        components = tuple(Component(name=name, coverage=Path(), format=each) for name, each in formats.items())
        model = Composition(name="m", page_size=24, components=components, tensor_parallel=ranks, rank=parts.place)
        for name, each in formats.items():
            kept.add(each)
            written += [each] * model.writes(name)
    assert len(written) == len(kept)
    assert set(written) == kept


@pytest.mark.parametrize(
    ("kind", "last", "expected"),
    [
        ("index keys", 6, {"full": None, "indexer": "full"}),
        ("a draft with index keys", 5, {"full": None, "draft": "full", "draft_indexer": "full"}),
        ("a draft with states", 3, {"full": None, "mamba": None, "draft": "full", "draft_mamba": "mamba"}),
    ],
)
def test_what_shares_pages_says_whose_and_a_draft_is_behind_the_model(kind: str, last: int, expected: dict[str, Any]) -> None:
    found = KINDS[kind]()
    assert {name: each.shares for name, each in found.items()} == expected
    assert [name for name, each in found.items() if each.is_draft] == [name for name in expected if "draft" in name]
    assert last_layer(found) == last


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: tensors(fake_pool("FP4Pool", start_layer=0, layer_num=1)), "full: a host tier behind SGLang's FP4Pool"),
        (lambda: tensors(pools.attention(8, 1, kv_cache_layout="hnd")), "behind SGLang's MHATokenToKVPool is not supported"),
        (lambda: tensors(pools.sparse(8, 1, index_kpool=4)), "behind SGLang's DSATokenToKVPool is not supported"),
        (lambda: tensors(pools.attention(8, 1), page_size=2, ranks=DIVIDED), "with --dcp-size a host tier keeps latents only"),
        (
            lambda: tensors(pools.attention(8, 1), draft_pools=[pools.windowed(8, 8)]),
            "draft: a host tier behind SGLang's SimpleNamespace is not supported",
        ),
        (
            lambda: tensors(pools.attention(8, 1), draft_pools=[pools.attention(8, 1), pools.latent(8, 1)]),
            "draft: a host tier behind SGLang's MHATokenToKVPool, MLATokenToKVPool is not supported",
        ),
        (
            lambda: tensors(pools.attention(8, 1), draft_pools=[pools.attention(6, 1)]),
            "draft: SGLang has 6 pages of it and 8 of full, whose slots it is in",
        ),
        (
            lambda: tensors(pools.attention(8, 2, k_buffer=[torch.zeros(8, 1, 2), torch.zeros(8, 1, 4)])),
            "the layers of k differ",
        ),
        (
            lambda: tensors(pools.hybrid(8), pools.with_states(4, _slot_siblings=[1]), has_states=True),
            "states with side states is not supported",
        ),
        (
            lambda: tensors(pools.attention(8, 1, k_buffer=[torch.zeros(8, 2, 2).transpose(1, 2)])),
            "the pages of k are not contiguous",
        ),
    ],
)
def test_layouts_that_are_not_known_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        given()


@pytest.mark.parametrize("are_numbers", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_come_back_from_host_layer_by_layer_to_the_pages_that_names_stand_for(kind: str, are_numbers: bool) -> None:
    found = KINDS[kind]()
    hosts = host_pools(
        {name: each.format for name, each in found.items()}, dict.fromkeys(found, 8), layout=HostLayout.PAGE_FIRST_DIRECT
    )
    for name, each in found.items():
        rows = [tensor for parts in each.by_part.values() for tensor in parts]
        for tensor in rows:
            tensor.view(torch.uint8).random_(256)
        names: PageNumbers | PageNames
        if are_numbers:
            names = PageNumbers(each.page_count)
            source, target = names.assign(np.array([3, 1])), names.assign(np.array([2, 4]))
        else:
            names = PageNames(torch.device("cpu"))
            source, target = names.assign(torch.tensor([3, 1])), names.assign(torch.tensor([2, 4]))
        mover = EngineMover(each, names, hosts[name])
        wanted, before = [tensor[[3, 1]].clone() for tensor in rows], [tensor.clone() for tensor in rows]
        mover.backup(source, np.array([7, 5]))
        for layer in mover.layer_ids:
            mover.load_layers((layer,), np.array([7, 5]), target)
        for tensor, pages, old in zip(*(map(as_bytes, each) for each in (rows, wanted, before)), strict=True):
            assert torch.equal(tensor[[2, 4]], pages)
            others = [page for page in range(each.page_count) if page not in (2, 4)]
            assert torch.equal(tensor[others], old[others])


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Random bytes are no numbers of some dtypes, which then equal nothing."""
    return tensor.view(torch.uint8)
