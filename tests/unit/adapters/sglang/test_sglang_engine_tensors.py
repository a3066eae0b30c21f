"""Where SGLang keeps the state, and copies from there to host and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sglang_pools as pools
import torch
from sglang_allocators import fake_pool

from unified_tree import ConfigurationError
from unified_tree.controllers.adapters.sglang.engine_mover import EngineMover
from unified_tree.controllers.adapters.sglang.engine_tensors import EngineTensors, engine_tensors
from unified_tree.controllers.adapters.sglang.page_names import PageNames
from unified_tree.controllers.adapters.sglang.page_numbers import PageNumbers
from unified_tree.controllers.pools import HostLayout
from unified_tree.controllers.pools.host_pool import host_pools
from unified_tree.declare.page_format import Shard

KINDS: dict[str, Any] = {
    "full": lambda: tensors(pools.attention(20, 2), page_size=2),
    "latent": lambda: tensors(pools.latent(21, 2), page_size=4),
    "windows": lambda: tensors(pools.windowed(20, 12), page_size=2, has_windows=True),
    "states": lambda: tensors(pools.hybrid(20), pools.with_states(10), has_states=True),
}


def tensors(kv_pool: Any, request_pool: Any = None, *, page_size: int = 1, **has: bool) -> dict[str, EngineTensors]:
    given = {"has_windows": False, "has_states": False, **has}
    return engine_tensors(kv_pool, request_pool, page_size, Shard(1, 2), **given)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("full", {"full": ((0, 1), 2, 10, Shard(1, 2))}),
        ("latent", {"full": ((4, 5), 4, 5, Shard(0, 1))}),
        ("windows", {"full": ((0, 2), 2, 10, Shard(1, 2)), "swa": ((1, 3), 2, 6, Shard(1, 2))}),
        ("states", {"full": ((1, 3), 1, 20, Shard(1, 2)), "mamba": ((0, 2), 1, 10, Shard(1, 2))}),
    ],
)
def test_every_component_has_its_layers_and_pages(kind: str, expected: dict[str, Any]) -> None:
    found = {
        name: (each.format.layer_ids, each.format.slots_per_page, each.page_count, each.format.shard)
        for name, each in KINDS[kind]().items()
    }
    assert found == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: tensors(fake_pool("FP4Pool", start_layer=0, layer_num=1)), "full: a host tier behind SGLang's FP4Pool"),
        (lambda: tensors(pools.attention(8, 1, kv_cache_layout="hnd")), "behind SGLang's MHATokenToKVPool is not supported"),
        (lambda: tensors(pools.attention(8, 1, k_scale_buffer=[1])), "behind SGLang's MHATokenToKVPool is not supported"),
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
            tensor.copy_(torch.rand(tensor.shape))
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
        for tensor, pages, old in zip(rows, wanted, before, strict=True):
            assert torch.equal(tensor[[2, 4]], pages)
            others = [page for page in range(each.page_count) if page not in (2, 4)]
            assert torch.equal(tensor[others], old[others])
