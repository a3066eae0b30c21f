"""The trailer of a stored page was written over the page where a pool had too little room for it, or nothing was stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

import pytest
from stored_cache import Kept, StoredCache

from unified_tree import Component, ConfigurationError, PageError, Path
from unified_tree.components import Composition
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.pools import DevicePool, HostLayout, PagePair, host_pools, mha_format
from unified_tree.controllers.storage import FileStorage
from unified_tree.controllers.storage_tier import StorageTier, stored_pools
from unified_tree.controllers.transfer_engines import CpuEngine
from unified_tree.declare.page_format import WHOLE

FORMAT = mha_format("full", layer_ids=(0,), page_size=4, kv_heads=2, head_dim=8, shard=WHOLE)
MODEL = Composition(name="m", page_size=4, components=(Component(name="full", coverage=Path(), format=FORMAT),))
DIRECT = HostLayout.PAGE_FIRST_DIRECT


@pytest.mark.parametrize("trailer_bytes", [0, 32, 63, 128])
def test_pools_with_other_trailers_are_refused(trailer_bytes: int) -> None:
    host = host_pools({"full": FORMAT}, {"full": 8}, layout=DIRECT, trailer_bytes=trailer_bytes)
    with pytest.raises(ConfigurationError, match=f"trailer of 64 bytes.* bytes and a trailer of {trailer_bytes}"):
        StorageTier.open("memory", MODEL, memory=host, weights_version="v1")


@pytest.mark.parametrize("in_memory", [0, 32, 64, 128])
@pytest.mark.parametrize("in_store", [0, 32, 64, 128])
def test_a_store_is_attached_only_with_a_trailers_room_on_both_sides(in_memory: int, in_store: int, tmp_path: FilePath) -> None:
    device = DevicePool(FORMAT, 4)
    host = host_pools({"full": FORMAT}, {"full": 8}, layout=DIRECT, trailer_bytes=in_memory)
    [honest] = stored_pools(MODEL, layout=DIRECT)
    pool = replace(honest, value_bytes=FORMAT.page_bytes + in_store)
    moved = CpuEngine({"full": PagePair(device, host["full"])})
    cache = PrefixCache(MODEL.components, 4, {"full": 4}, host=HostTier(page_counts={"full": 8}, engine=moved))
    engine = FileStorage([pool], tmp_path, 1 << 20)
    tier = StorageTier(engine=engine, pools={"full": pool}, memory=host, weights_version="v1")
    if (in_memory, in_store) == (64, 64):
        cache.attach_storage(tier)
    else:
        found = f"full: its host pages are {FORMAT.page_bytes} bytes and a trailer of {in_memory}"
        with pytest.raises(ConfigurationError, match=found):
            cache.attach_storage(tier)
        engine.close()
    cache.close()


class Refusing(Kept):
    """A store that refuses each page that it is given, as one that it cannot be given."""

    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> Any:  # noqa: ARG002
        """Nothing gets in."""
        raise PageError(f"{pool}: no page of mine")


def test_what_could_not_be_persisted_is_told_by_the_stores_own_stats() -> None:
    cache = StoredCache([Component(name="full", coverage=Path())], store=Refusing)
    cache.compute(range(8))
    figures = cache.cache.stats().storage
    assert figures is not None
    assert (figures.persisted_pages, figures.errors) == (0, 1)
    assert figures.last_error is not None and "PageError: full: no page of mine" in figures.last_error
    cache.end()
