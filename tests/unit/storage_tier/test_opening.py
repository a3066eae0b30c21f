"""A store is opened for a composition in one call: no torch, no trailers to size, no restore points to filter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path as FilePath

import pytest
from waiting import PROGRAM_S

from unified_tree import Component, ConfigurationError, Path, Point
from unified_tree.components import Composition
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.pools import HostLayout, mha_format, state_format
from unified_tree.controllers.storage import MemoryStorage, StorageRegistry
from unified_tree.controllers.storage_tier import StorageTier, mapped_pages
from unified_tree.controllers.testing import SimulatedEngine
from unified_tree.controllers.transfer_engines import VirtualClock
from unified_tree.declare.page_format import WHOLE
from unified_tree.terms.errors import StorageError

FULL = mha_format("full", layer_ids=(0,), page_size=4, kv_heads=2, head_dim=8, shard=WHOLE)
MAMBA = state_format("mamba", layer_ids=(1,), conv_shape=(6, 3), state_shape=(2, 4, 4), shard=WHOLE)
MODEL = Composition(
    name="tiny hybrid",
    page_size=4,
    components=(
        Component(name="full", coverage=Path(), format=FULL),
        Component(name="mamba", coverage=Point(), format=MAMBA),
    ),
)
COUNTS = {"full": 8, "mamba": 2}


class Refusing(MemoryStorage):
    """Takes no memory."""

    closed = 0

    def _register(self, buffers: Sequence[memoryview]) -> None:
        assert [len(buffer) for buffer in buffers] == [8 * 320, 2 * 256]
        raise StorageError("no memory of mine")

    def _close(self) -> None:
        Refusing.closed += 1


def test_the_file_engine_is_opened_without_torch(tmp_path: FilePath) -> None:
    code = f"""
import sys
sys.modules["torch"] = None
from unified_tree.components import composition_for
from unified_tree.controllers.storage_tier import StorageTier, mapped_pages
model = composition_for("gpt-oss-20b", page_size=16)
memory = mapped_pages(model, {{component.name: 4 for component in model.components}})
options = {{"directory": {str(tmp_path)!r}, "capacity_bytes": 1 << 26}}
tier = StorageTier.open("file", model, memory=memory, weights_version="v1", options=options)
assert "restore points" in tier.pools and set(tier.engine.stats().pools) == set(tier.pools)
tier.engine.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PROGRAM_S)


def test_an_opened_store_is_attached_as_it_is() -> None:
    tier = StorageTier.open("memory", MODEL, memory=mapped_pages(MODEL, COUNTS), weights_version="v1")
    host = HostTier(page_counts=COUNTS, engine=SimulatedEngine(0, VirtualClock()))
    cache = PrefixCache(MODEL.components, 4, {"full": 8, "mamba": 2}, host=host, storage=tier)
    assert tier.written == ["full", "mamba"]
    cache.close()


def test_an_open_engine_serves_one_cache_after_another() -> None:
    opened = StorageTier.open("memory", MODEL, memory=mapped_pages(MODEL, COUNTS), weights_version="")
    for version in ("v1", "v2"):
        tier = opened.renewed(version)
        assert (tier.weights_version, tier.engine, tier.memory) == (version, opened.engine, opened.memory)
        host = HostTier(page_counts=COUNTS, engine=SimulatedEngine(0, VirtualClock()))
        cache = PrefixCache(MODEL.components, 4, {"full": 8, "mamba": 2}, host=host, storage=tier)
        assert cache.storage is not None
        cache.storage.close(keeps_engine=True)
        assert not opened.engine.exists("full", [bytes(32)]).any(), "it answers"
        cache.close()
    opened.engine.close()


def test_memory_that_will_not_do_is_refused_before_the_store_is_opened() -> None:
    memory = mapped_pages(MODEL, COUNTS)
    registry = StorageRegistry()
    registry.register("never", lambda _: pytest.fail("it was opened"))

    def refused(text: str, **pages: object) -> None:
        with pytest.raises(ConfigurationError, match=text):
            StorageTier.open("never", MODEL, memory={**memory, **pages}, weights_version="v1", registry=registry)  # type: ignore[dict-item]

    refused("takes host memory, and nothing else does; given for .*'restore points'", **{"restore points": memory["full"]})
    refused("mamba: its host pages are 256 bytes and a trailer of 64, a stored value", mamba=memory["full"])
    odd = mapped_pages(MODEL, COUNTS)["mamba"]
    odd.layout = HostLayout.PAGE_FIRST
    refused("must have one layout, not full page_first_direct, mamba page_first", mamba=odd)


def test_an_engine_that_takes_no_memory_is_closed_again() -> None:
    registry = StorageRegistry()
    registry.register("refusing", Refusing)
    with pytest.raises(StorageError, match="no memory of mine"):
        StorageTier.open("refusing", MODEL, memory=mapped_pages(MODEL, COUNTS), weights_version="v1", registry=registry)
    assert Refusing.closed == 1


@pytest.mark.parametrize("counts", [{"full": 8}, {**COUNTS, "swa": 1}, {"full": 8, "mamba": 0}])
def test_every_component_needs_a_count_of_host_pages(counts: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=r"need a count each|must be a positive integer"):
        mapped_pages(MODEL, counts)
