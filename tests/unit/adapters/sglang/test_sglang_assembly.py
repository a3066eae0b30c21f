"""The parts of a host tier: lanes, stages, and stores that are attached and detached while a server runs."""

from __future__ import annotations

import json
from pathlib import Path as FilePath
from types import SimpleNamespace
from typing import Any

import pytest
import sglang_pools as kv
import torch
from fake_lanes import FakeDevice
from sglang_allocators import SlotAllocator

from unified_tree import Component, ConfigurationError, Path, UnifiedTree
from unified_tree.controllers.adapters.sglang import assembly
from unified_tree.controllers.adapters.sglang.answers import StoreAnswers
from unified_tree.controllers.adapters.sglang.assembly import TierBuilder, copy_lanes, least_of_all, over_stages
from unified_tree.controllers.adapters.sglang.device_pools import FULL, DevicePools
from unified_tree.controllers.adapters.sglang.device_tier import DeviceTier
from unified_tree.controllers.adapters.sglang.observation import Observation
from unified_tree.controllers.adapters.sglang.request_keys import RequestKeys
from unified_tree.controllers.adapters.sglang.settings import MissSettings, Settings
from unified_tree.controllers.adapters.sglang.tiers import stream_engine
from unified_tree.controllers.counters.cache_counters import CacheCounters
from unified_tree.controllers.pools.format_header import format_headers
from unified_tree.controllers.ranks.rank_agreement import SingleRank
from unified_tree.controllers.transfer_engines.schedule import CHUNK_BLOCKS
from unified_tree.declare.page_format import PageFormat, Part

SIZE, PAGES = 2, 8
STORE = {"engine": "file", "capacity_bytes": 1 << 22}


class Cache(StoreAnswers):
    """A cache with a host tier, or without one."""

    def __init__(self, settings: dict[str, Any], *, has_host: bool = True, group: Any = None, **given: Any) -> None:
        allocator: Any = SlotAllocator(PAGES, SIZE)
        allocator.get_kvcache = lambda: kv.attention((PAGES + 1) * SIZE, 2)
        arguments = SimpleNamespace(
            hicache_size=0, hicache_ratio=1.0, hicache_write_policy="write_through", hicache_storage_prefetch_policy="timeout",
            served_model_name="model", model_path="model", weight_version="1", dcp_size=1, **given,
        )  # fmt: skip
        params = SimpleNamespace(
            tp_cache_group=group, attn_tp_cache_group=object(), attn_cp_size=1, pp_size=1, pp_rank=0, page_size=SIZE,
            token_to_kv_pool_allocator=allocator, req_to_token_pool=None, mtp_draft_device_pools=(),
            sidecar_draft_device_pools=(), mtp_draft_mamba_pools=(),
        )  # fmt: skip
        context = SimpleNamespace(
            server_args=arguments, params=params, tp_rank=0, tp_size=1, is_hybrid_swa=False, is_hybrid_ssm=False
        )
        self._keys = RequestKeys(is_bigram=False, adapters={})
        self.observation = Observation((FULL,), self._keys, MissSettings(memory_mib=0), None, SIZE)
        self.misses = None
        self._builder = TierBuilder(context, Settings.of(settings)) if has_host else None
        components = [Component(name=FULL, coverage=Path())]
        if self._builder is not None:
            components = self._builder.described(components)
        self.tree = UnifiedTree(components, SIZE)
        self._tiers = None
        if self._builder is not None:
            pools = DevicePools(allocator, SIZE, in_host_memory=True)
            device = DeviceTier(self.tree, pools, CacheCounters())
            self._tiers = self._builder.build(self.tree, device, pools, self.observation.counters)

    def close(self) -> None:
        if self._tiers is not None and self._builder is not None:
            self._tiers.close(keeps_engine=True)
            self._builder.store.close()

    def attach(self, given: object = None, **more: Any) -> tuple[bool, str]:
        return self.attach_storage_backend("file", None if given is None else json.dumps(given), **more)


def test_all_ranks_that_serve_the_same_requests_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's group for tensor-parallel attention has only those with the same tokens of a prefill."""
    asked = []

    def name(group: object) -> str:
        asked.append(group)
        return "name"

    def agreement(group: object, *_: object) -> SingleRank:
        asked.append(group)
        return SingleRank()

    monkeypatch.setattr(assembly, "agreed_name", name)
    monkeypatch.setattr(assembly, "rank_agreement", agreement)
    group = object()
    Cache({}, group=group).close()
    assert asked == [group, group]


def header(**given: Any) -> bytes:
    """The header by which the keys of a server's stored pages begin."""
    cache = Cache({}, **given)
    assert cache._builder is not None and cache._builder._model is not None
    found = format_headers(cache._builder._model, None)[FULL].encode()
    cache.close()
    return found


@pytest.mark.parametrize(
    "given",
    [
        {"quantization": "fp8"},
        {"json_model_override_args": '{"rope_scaling": {"factor": 4.0}}'},
        {"dtype": "float16"},
        {"revision": "v2"},
        {"speculative_draft_model_quantization": "fp8"},
    ],
    ids=str,
)
def test_servers_that_compute_other_states_of_the_same_files_share_no_page(given: dict[str, str]) -> None:
    assert header(**given) != header()
    assert header(**given) == header(**given)


def test_the_defaults_of_the_engine_leave_the_keys_of_a_store_as_they_were() -> None:
    defaults = {"dtype": "auto", "quantization": None, "json_model_override_args": "{}", "model_impl": "auto"}
    assert header(**defaults) == header()


def has_store(cache: Cache) -> bool:
    return cache.enable_storage


def store(files: FilePath) -> dict[str, Any]:
    return {**STORE, "directory": str(files)}


def test_a_store_of_the_settings_is_detached_and_attached_again(tmp_path: FilePath) -> None:
    cache = Cache({"store": store(tmp_path)})
    assert has_store(cache)
    assert cache.attach() == (False, "The store was not attached: there is one already (file); detach it first.")
    assert cache.detach_storage_backend() == (True, "The store was detached; its pages stay.")
    assert not has_store(cache)
    assert cache.detach_storage_backend() == (True, "There was no store.")
    assert not cache.clear_storage_backend()
    assert cache.attach() == (True, "The store of this cache: file.")
    assert cache.clear_storage_backend()
    cache.close()


def test_a_store_is_given_with_the_call(tmp_path: FilePath) -> None:
    cache = Cache({})
    assert not has_store(cache)
    assert cache.attach(store(tmp_path), hicache_write_policy="write_through", hicache_storage_prefetch_policy="best_effort")[0]
    assert has_store(cache)
    cache.close()


@pytest.mark.parametrize(
    ("given", "more", "says"),
    [
        (None, {}, "name it in hicache_storage_backend_extra_config_json"),
        ({}, {}, "name it in hicache_storage_backend_extra_config_json"),
        ("file", {}, "store must name an engine"),
        ({"directory": "x"}, {}, "store must name an engine"),
        ({"engine": "no such"}, {}, "no such"),
        ({"engine": "file", "prefetch": 3}, {}, "store.prefetch must be a mapping"),
        (STORE, {"hicache_storage_prefetch_policy": "soon"}, "the modes are"),
        (STORE, {"hicache_write_policy": "write_back"}, "the write policy is write-through as long as the server runs"),
    ],
)
def test_what_cannot_be_attached_is_refused_in_a_sentence(
    tmp_path: FilePath, given: Any, more: dict[str, str], says: str
) -> None:
    cache = Cache({})
    if given == STORE:
        given = store(tmp_path)
    is_attached, said = cache.attach(given, **more)
    assert (is_attached, has_store(cache)) == (False, False)
    assert says in said
    assert cache.attach(store(tmp_path))[0], "and another can be"
    cache.close()


def test_text_that_is_not_json_is_refused() -> None:
    cache = Cache({})
    assert "hicache_storage_backend_extra_config_json is not JSON" in cache.attach_storage_backend("file", "{")[1]
    cache.close()


def test_without_a_host_tier_there_is_no_store() -> None:
    cache = Cache({}, has_host=False)
    assert cache.attach() == (False, "a store needs a host tier: start with --enable-hierarchical-cache")
    assert cache.detach_storage_backend()[0]
    assert not cache.clear_storage_backend()
    for tell in (cache.weights_failed, cache.weights_update_began, cache.weights_update_ended, cache.finish_copies):
        tell()
    cache.weights_changed("5")


def test_a_store_that_is_attached_after_new_weights_waits_for_a_flush(tmp_path: FilePath) -> None:
    cache = Cache({})
    cache.weights_changed(None)
    assert cache.attach(store(tmp_path)) == (True, "The store of this cache: file, set aside until the next flush.")
    assert not has_store(cache)
    assert cache.clear_storage_backend()
    cache.close()


def test_a_rank_that_cannot_open_keeps_all_from_it(tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache({})
    monkeypatch.setattr("unified_tree.controllers.adapters.sglang.assembly.all_ranks", lambda _, **__: False)
    is_attached, said = cache.attach(store(tmp_path))
    assert not is_attached
    assert "could not be opened on another rank" in said
    assert not has_store(cache)
    monkeypatch.undo()
    assert cache.attach(store(tmp_path))[0]
    cache.close()


def tensors(device: str) -> Any:
    return {"full": SimpleNamespace(device=torch.device(device))}


def test_a_gpu_is_refused_unless_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(tp_worker=SimpleNamespace(model_runner=SimpleNamespace(forward_stream="the model's")))
    assert copy_lanes(context, tensors("cpu"), Settings()) is None
    with pytest.raises(ConfigurationError, match=r'"allow_unproven_gpu": true.* or leave --enable-hierarchical-cache out'):
        copy_lanes(context, tensors("cuda"), Settings())
    made: list[Any] = []
    monkeypatch.setattr(
        "unified_tree.controllers.transfer_engines.cuda_lane.cuda_lanes", lambda device, fences: made.append((device, fences))
    )
    copy_lanes(context, tensors("cuda:1"), Settings(allow_unproven_gpu=True))
    assert made == [(torch.device("cuda:1"), ["the model's"])]


@pytest.mark.parametrize(
    ("page_size", "layers", "window_steps", "chunk_blocks"),
    [(1, 80, 2, 1 << 16), (64, 80, 2, CHUNK_BLOCKS), (64, 2, 100, CHUNK_BLOCKS), (16, 36, 5, 1 << 12)],
)
def test_steps_move_as_much_for_any_page_size(page_size: int, layers: int, window_steps: int, chunk_blocks: int) -> None:
    heads = (Part("k", "bfloat16", (8, 128)), Part("v", "bfloat16", (8, 128)))
    kept = PageFormat(component="full", layer_ids=tuple(range(layers)), parts=heads, slots_per_page=page_size)
    mover: Any = SimpleNamespace(layer_ids=kept.layer_ids)
    engine = stream_engine({"full": mover}, {"full": kept}, FakeDevice().lanes)
    assert engine._window_steps == window_steps
    assert engine._schedule._chunk_blocks == {"full": chunk_blocks}


class Ranks:
    """A process group: the numbers of its ranks."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def size(self) -> int:
        return len(self.numbers)


@pytest.mark.parametrize("own", range(8))
def test_a_group_over_stages_has_the_peers_of_each(own: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stages of four ranks, of which two neighbours serve the same requests."""
    stage, place = divmod(own, 4)
    first = place // 2 * 2
    monkeypatch.setattr("torch.distributed.get_rank", lambda: own)
    monkeypatch.setattr("torch.distributed.get_process_group_ranks", lambda group: list(group.numbers))
    monkeypatch.setattr("torch.distributed.new_group", lambda ranks, **_: Ranks(*ranks))
    peers, stages = Ranks(4 * stage + first, 4 * stage + first + 1), Ranks(place, 4 + place)
    found: Any = over_stages(peers, stages)  # type: ignore[arg-type]
    assert found.numbers == (first, first + 1, 4 + first, 5 + first)


def gathered(monkeypatch: pytest.MonkeyPatch, other: dict[str, int]) -> None:
    """Another rank counts so many pages."""

    def gather(found: list[Any], mine: dict[str, int], group: Ranks) -> None:
        assert group.size() == 2
        found[:] = [mine, other]

    monkeypatch.setattr("torch.distributed.all_gather_object", gather)


def test_all_stages_have_as_many_host_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered(monkeypatch, {"full": 90, "swa": 50})
    group: Any = Ranks(0, 1)
    assert least_of_all(group, {"full": 100, "swa": 40}) == {"full": 90, "swa": 40}


def test_stages_of_other_kinds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered(monkeypatch, {"full": 90, "draft": 90})
    group: Any = Ranks(0, 1)
    with pytest.raises(ConfigurationError, match="layers of the same kinds in each pipeline stage"):
        least_of_all(group, {"full": 100})
