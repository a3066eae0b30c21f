"""Random mixes over SGLang's real pools without a model, and defects that are planted in the backend: each is seen.

Run from the repository's root with the engine's python, which needs pytest and sortedcontainers:

    ENGINE/bin/python -m pytest -n 0 tests/e2e/sglang/test_scheduler_model.py

Requests come from a seed; the host's copies run on a thread of their own, so how much is loaded differs from run to run.
"""

from __future__ import annotations

import os
import random
import time
from array import array
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import sglang_engine

with sglang_engine.imports():
    import torch
    from fake_lanes import FakeDevice, delay_copies
    from model_caches import CASES, POLICIES, our_cache
    from scheduler_model import Case, Counts, Pools, Scheduler, run
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams, TreeLock
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.server_args import ServerArgs

    from unified_tree import ConfigurationError, Key, Trailing
    from unified_tree.controllers.adapters.sglang import assembly, backend
    from unified_tree.controllers.adapters.sglang.backend import UnifiedTreeCache
    from unified_tree.controllers.adapters.sglang.device_pools import FULL, STATE, WINDOW, DevicePools
    from unified_tree.controllers.adapters.sglang.device_tier import DeviceTier
    from unified_tree.controllers.adapters.sglang.engine_tensors import EngineMover
    from unified_tree.controllers.adapters.sglang.hooks import answer_whether_cleared
    from unified_tree.controllers.adapters.sglang.kv_events import namespace_parts
    from unified_tree.controllers.adapters.sglang.plugin import adapter_versions
    from unified_tree.controllers.adapters.sglang.refusals import REFUSED_FLAGS, flag_refusals
    from unified_tree.controllers.adapters.sglang.request_keys import RequestKeys
    from unified_tree.controllers.adapters.sglang.request_rows import RequestRows, RunningStates
    from unified_tree.controllers.adapters.sglang.tiers import LayerGate, LoadLock, Tiers
    from unified_tree.controllers.transfer_engines import CpuEngine

pytestmark = pytest.mark.filterwarnings("ignore")
REQUESTS = int(os.environ.get("REQUESTS", "60"))
SEEDS = int(os.environ.get("SEEDS", "2"))
DRAWN = int(os.environ.get("DRAWN", "40"))
WRITE_POLICIES = tuple(POLICIES)


SELDOM = ("selective", "back_selective")
"""These copy so little that some mixes load nothing."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def mix(
    case: Case,
    write_policy: str | None = None,
    *,
    policy: str = "lru",
    files: Path | None = None,
    requests: int = REQUESTS,
    seed: int = 0,
    is_planted: bool = False,
    **options: Any,
) -> Counts:
    """One life of a cache over pools of its own; raises for the first thing that is wrong."""
    pools = Pools(case)
    cache = our_cache(pools, policy=policy, write_policy=write_policy, files=files)
    try:
        counts = run(
            Scheduler(pools, cache, has_host=write_policy is not None, has_store=files is not None),
            requests=requests,
            seed=seed,
            **options,
        )
        cache.sanity_check()
    finally:
        cache.release_host_resources()
    assert is_planted or not counts.lost_draft_tokens, "a draft reads a wrong page"
    return counts


@pytest.mark.parametrize("name", CASES)
def test_every_page_of_every_request_is_the_right_one(name: str) -> None:
    counts = mix(CASES[name], flush=True)
    assert counts.cached_tokens > 0.05 * counts.prompt_tokens
    assert counts.flushes == 1


@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
@pytest.mark.parametrize("name", CASES)
def test_pages_from_host_are_the_right_ones(name: str, write_policy: str) -> None:
    counts = mix(CASES[name], write_policy, requests=100)
    assert counts.loaded_tokens or write_policy in SELDOM


@pytest.mark.parametrize("write_policy", [None, "back"])
@pytest.mark.parametrize("name", CASES)
def test_pages_whose_numbers_cannot_be_read_are_named(
    name: str, write_policy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where reading a number would wait for the device."""
    monkeypatch.setattr(backend, "is_in_host_memory", lambda _: False)
    counts = mix(CASES[name], write_policy, seed=5)
    assert counts.cached_tokens > 0.05 * counts.prompt_tokens


@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
@pytest.mark.parametrize("name", CASES)
def test_copies_on_streams_bring_the_right_pages(name: str, write_policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: page numbers are not read, and copies run late, on streams of their own."""
    device = FakeDevice()
    delay_copies(device, EngineMover, monkeypatch)
    monkeypatch.setattr(backend, "is_in_host_memory", lambda _: False)
    monkeypatch.setattr(assembly, "copy_lanes", lambda *_: device.lanes)
    counts = mix(CASES[name], write_policy, requests=100)
    assert counts.loaded_tokens or write_policy in SELDOM
    assert all(lane.done for lane in device.lanes.values()) or write_policy in SELDOM


@pytest.mark.parametrize("name", ["full", "swa16", "mamba_extra"])
def test_a_host_tier_is_forgotten_with_the_rest(name: str) -> None:
    assert mix(CASES[name], "through", flush=True).flushes == 1


@pytest.mark.parametrize("name", CASES)
def test_pages_of_a_life_before_are_the_right_ones(name: str, tmp_path: Path) -> None:
    mix(CASES[name], "through", files=tmp_path, seed=3)
    counts = mix(CASES[name], "back", files=tmp_path, seed=3, requests=120)
    assert counts.prefetched_tokens
    assert counts.loaded_tokens


@pytest.mark.parametrize("name", ["drafted", "drafted16", "drafted_mamba", "drafted_swa"])
def test_drafts_that_are_not_loaded_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load = EngineMover.load_layers

    def without_drafts(mover: EngineMover, *arguments: Any) -> None:
        if mover._format.component != "draft":
            load(mover, *arguments)

    monkeypatch.setattr(EngineMover, "load_layers", without_drafts)
    assert mix(CASES[name], "back", is_planted=True).lost_draft_tokens


def slow_copies(patch: pytest.MonkeyPatch) -> None:
    load = EngineMover.load_layers

    def slow(*arguments: Any) -> None:
        time.sleep(0.003)
        load(*arguments)

    patch.setattr(EngineMover, "load_layers", slow)


@pytest.mark.parametrize("name", ["full", "swa16", "mamba"])
def test_slow_copies_are_waited_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_copies(monkeypatch)
    assert mix(CASES[name], "back").loaded_tokens


TINY = {
    "full": Case(full_tokens=130, running=3),
    "swa": Case(full_tokens=130, window=31, window_tokens=110, running=3),
    "swa16": Case(full_tokens=320, window=31, window_tokens=176, page_size=16, running=3),
    "mamba": Case(full_tokens=260, states=8, running=3),
    "mamba_extra": Case(full_tokens=256, states=7, extra_buffer=True, page_size=16, chunk=128, running=2),
}
"""Pools in which hardly more than one request has room."""


@pytest.mark.parametrize("write_policy", [None, *WRITE_POLICIES])
@pytest.mark.parametrize("name", TINY)
def test_pools_for_hardly_more_than_one_request_serve_all(name: str, write_policy: str | None) -> None:
    counts = mix(TINY[name], write_policy, longest=100, waiting=12)
    assert counts.finished + counts.aborts == REQUESTS
    assert counts.refused or counts.retractions


@pytest.mark.parametrize("write_policy", [None, "back"])
@pytest.mark.parametrize("name", ["full", "swa16", "mamba"])
def test_many_requests_run_at_once(name: str, write_policy: str | None) -> None:
    case = replace(CASES[name], running=64, full_tokens=4800, window_tokens=4800, states=220 if CASES[name].states else 0)
    counts = mix(case, write_policy, requests=120, longest=400, waiting=64)
    assert counts.finished + counts.aborts == 120


def hold_backups(patch: pytest.MonkeyPatch, share: float, seed: int) -> None:
    """Copies to host end only when the scheduler waits for them, or at this share of its steps."""
    may_go, rng, backup = Event(), random.Random(seed), EngineMover.backup

    def held(*arguments: Any) -> None:
        may_go.wait()
        backup(*arguments)

    def let_go(wait: Callable[..., Any]) -> Callable[..., Any]:
        def waiting(*arguments: Any) -> Any:
            may_go.set()
            try:
                return wait(*arguments)
            finally:
                may_go.clear()

        return waiting

    patch.setattr(EngineMover, "backup", held)
    for name in ("wait", "wait_layer", "drain", "close"):
        patch.setattr(CpuEngine, name, let_go(getattr(CpuEngine, name)))
    poll = Tiers.poll

    def sometimes(self: Tiers) -> None:
        if rng.random() < share:
            self.controller.tier.engine.drain()
        poll(self)

    patch.setattr(Tiers, "poll", sometimes)


HELD = {
    **TINY,
    "full16": Case(full_tokens=320, page_size=16, running=3),
    "swa_long": Case(full_tokens=400, window=31, window_tokens=120, running=3, chunk=32),
    "full_long": Case(full_tokens=300, running=3, chunk=32),
    "mamba_long": Case(full_tokens=300, states=9, running=3, chunk=32),
    "full16_long": Case(full_tokens=640, page_size=16, running=3, chunk=32),
    "eagle": Case(full_tokens=200, running=3, eagle=True),
}
"""Pools in which a page that is being copied is missed at once, also while a long prompt is computed in parts."""


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
@pytest.mark.parametrize("name", HELD)
def test_pages_that_were_evictable_can_be_had_while_they_are_copied(
    name: str, write_policy: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = HELD[name]
    for seed in range(SEEDS):
        with monkeypatch.context() as patch:
            hold_backups(patch, share, seed)
            counts = mix(case, write_policy, seed=seed, longest=case.full_tokens * 3 // 4, waiting=12)
        assert counts.finished + counts.aborts == REQUESTS


def drawn(rng: random.Random) -> Case:
    """Any kind of model, with pools for one request or a few."""
    page, running = rng.choice([1, 1, 2, 16, 16, 64]), rng.choice([1, 2, 3, 5])
    kind = rng.choice(["full", "swa", "mamba", "extra", "eagle"])
    chunk = max(page, rng.choice([16, 32, 64, 256]))
    if kind == "mamba":
        return Case(full_tokens=rng.randrange(60, 400), states=3 * running + rng.randrange(6), running=running, chunk=chunk)
    full_tokens = rng.randrange(6, 40) * max(page, 10) // page * page
    case = Case(page_size=page, full_tokens=full_tokens, running=running, chunk=chunk, eagle=kind == "eagle")
    if kind == "extra":
        return replace(case, extra_buffer=True, states=5 * running + rng.randrange(6), chunk=max(64, chunk))
    if kind == "swa":
        window = rng.choice([3, 15, 31, 63])
        least = 3 * -(-window // page) * page + 2 * page
        return replace(
            case, window=window, window_tokens=max(least, int(full_tokens * rng.choice([0.3, 0.6, 1.0])) // page * page)
        )
    return case


@pytest.mark.parametrize("seed", range(DRAWN))
def test_the_pages_that_a_scheduler_was_told_of_can_be_had(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    case, longest = drawn(rng), rng.choice([0.5, 0.75, 0.95])
    hold_backups(monkeypatch, rng.choice([0.0, 0.05, 0.3, 1.0]), seed)
    mix(
        case,
        rng.choice(WRITE_POLICIES),
        policy=rng.choice(["lru", "fifo", "density", "cost"]),
        files=rng.choice([None, None, None, tmp_path]),
        seed=seed,
        requests=40,
        longest=max(20, int(case.full_tokens * longest)),
        waiting=12,
    )


def count_loaded_windows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tiers, "window_pages", lambda self, match: self.host_needs(match).get(WINDOW, 0))


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        pytest.param(lambda patch: patch.setattr(DeviceTier, "_wait", nothing), "full", id="a copy is not waited for"),
        pytest.param(lambda patch: patch.setattr(DeviceTier, "_wait", nothing), "full16_long", id="nor with larger pages"),
        pytest.param(count_loaded_windows, "swa_long", id="the windows that a load keeps are not counted"),
    ],
)
def test_a_page_that_a_copy_takes_from_the_scheduler_is_seen(
    plant: Callable[[pytest.MonkeyPatch], object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = HELD[name]
    for seed in range(8):
        with monkeypatch.context() as patch:
            hold_backups(patch, 0.3, seed)
            plant(patch)
            try:
                mix(case, "back", seed=seed, longest=case.full_tokens * 3 // 4, waiting=12)
            except AssertionError as error:
                if "out of memory" not in str(error):
                    raise
                return
    pytest.fail("no mix has seen it")


def test_a_server_says_whether_its_store_was_cleared(tmp_path: Path) -> None:
    from sglang.srt.managers.io_struct import ClearHiCacheReqInput
    from sglang.srt.managers.scheduler import Scheduler as SglangScheduler

    answer_whether_cleared()

    def answer(cache: UnifiedTreeCache) -> bool:
        scheduler = SimpleNamespace(tree_cache=cache, enable_hierarchical_cache=True, enable_lmcache=False)
        said: bool = SglangScheduler.clear_hicache_storage_wrapped(scheduler, ClearHiCacheReqInput()).success
        return said

    with_store = our_cache(Pools(CASES["full"]), write_policy="through", files=tmp_path)
    assert answer(with_store)
    with_store.reset()
    assert answer(with_store), "after a flush, too"
    assert with_store.detach_storage_backend()[0]
    assert not answer(with_store)
    with_store.release_host_resources()
    without = our_cache(Pools(CASES["full"]), write_policy="through")
    assert not answer(without)
    without.release_host_resources()


def test_each_refused_flag_is_one_of_sglangs() -> None:
    arguments = ServerArgs(model_path="dummy")
    assert flag_refusals(arguments) == []
    for flag in REFUSED_FLAGS:
        setattr(arguments, flag.field, "other" if flag.values is None else flag.values[0])
        assert len(flag_refusals(arguments)) == 1
        setattr(arguments, flag.field, getattr(ServerArgs(model_path="dummy"), flag.field))


def test_a_state_that_is_being_copied_to_host_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    backup = EngineMover.backup

    def slow(*arguments: Any) -> None:
        time.sleep(0.02)
        backup(*arguments)

    monkeypatch.setattr(EngineMover, "backup", slow)
    counts = mix(TINY["mamba"], "through", longest=100, waiting=12)
    assert counts.finished + counts.aborts == REQUESTS


def test_long_prompts_in_large_pools() -> None:
    case = Case(full_tokens=20_000, window=127, window_tokens=6_000, chunk=2_048, running=4)
    assert mix(case, "back", requests=25, longest=8_000).cached_tokens


def test_a_prompt_that_one_request_loads_and_another_computes_is_in_the_tree_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_copies(monkeypatch)
    for write_policy in ("through", "back"):
        mix(CASES["swa64"], write_policy, files=tmp_path, seed=1)


def nothing(*_: Any) -> None:
    """Stands for a call that is left out."""


def skip_remap(patch: pytest.MonkeyPatch) -> None:
    def attach(self: DevicePools, full: Any, windows: Any, only: Any = None) -> None:  # noqa: ARG001
        self._hold(full, windows)

    patch.setattr(DevicePools, "attach", attach)


def keep_duplicates(patch: pytest.MonkeyPatch) -> None:
    settle = DevicePools.settle
    patch.setattr(DevicePools, "settle", lambda self, offered, result: settle(self, offered, result._replace(duplicates={})))


def free_twice(patch: pytest.MonkeyPatch) -> None:
    free = DevicePools.free

    def twice(self: DevicePools, freed: Any) -> None:
        if FULL in freed:
            self._free_full(self.full.pages(freed[FULL])) if not self._has_windows else None
        free(self, freed)

    patch.setattr(DevicePools, "free", twice)


def free_states_early(patch: pytest.MonkeyPatch) -> None:
    settle = RunningStates.settle
    patch.setattr(
        RunningStates, "settle", lambda self, req, offered, **given: settle(self, req, offered, **{**given, "is_kept": False})
    )


def start_unlocked(patch: pytest.MonkeyPatch) -> None:
    def start_from(self: UnifiedTreeCache, req: Any, boundary: Any) -> None:
        self._states.start_from(req.kv, self._pools.state_slots(self.tree.pages(boundary, STATE)))

    patch.setattr(UnifiedTreeCache, "_start_from", start_from)


def lock_without_state(patch: pytest.MonkeyPatch) -> None:
    lock = UnifiedTreeCache.lock

    def without(self: UnifiedTreeCache, node: Any) -> Any:
        taken = lock(self, node)
        if taken is not None and taken.receipt is not None:
            taken.receipt.release(STATE)
        return taken

    patch.setattr(UnifiedTreeCache, "lock", without)


def skip_gate(patch: pytest.MonkeyPatch) -> None:
    slow_copies(patch)
    patch.setattr(LayerGate, "wait_until", nothing)


def checkpoint_before_load(patch: pytest.MonkeyPatch) -> None:
    slow_copies(patch)
    patch.setattr(LoadLock, "wait", nothing)
    patch.setattr(Tiers, "finish_loads", nothing)


def finish(scheduler: Scheduler) -> None:
    for _ in range(2000):
        if not (scheduler.waiting or scheduler.running or scheduler.prefilling):
            return
        scheduler.step()
    pytest.fail("a request does not end")


TIGHT = Case(states=9, running=3, chunk=256)
"""Room for few states beside those that running requests own and lock."""
DEFECTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], object], Case, str | None]] = {
    "window off by one": (lambda p: p.setattr(backend, "Trailing", lambda n: Trailing(n - 1)), CASES["swa"], None),
    "missing remap": (skip_remap, CASES["swa16"], None),
    "missing remap of a load": (
        lambda p: p.setattr(RequestRows, "_attach_windows", nothing),
        CASES["swa16"],
        "back",
    ),
    "state freed early": (free_states_early, CASES["mamba"], None),
    "saved state freed early": (free_states_early, CASES["mamba_extra"], None),
    "duplicate kept": (keep_duplicates, CASES["full"], None),
    "duplicate window kept": (keep_duplicates, CASES["swa"], None),
    "lock dropped": (
        lambda p: p.setattr(UnifiedTreeCache, "lock", lambda _, node: TreeLock(node, None)),
        CASES["full"],
        None,
    ),
    "page freed twice": (free_twice, CASES["full16"], None),
    "wrong namespace": (
        lambda p: p.setattr(
            RequestKeys,
            "key",
            lambda self, tokens, count, *_: Key(tokens[:count], "", bigram=self._is_bigram),
        ),
        CASES["full"],
        None,
    ),
    "load gate skipped": (skip_gate, CASES["full"], "back"),
    "load not applied before a checkpoint": (checkpoint_before_load, CASES["full"], "back"),
    "holder forgotten": (lambda p: p.setattr(DevicePools, "_detach", nothing), CASES["swa"], "back"),
    "source of a state not locked at a match": (start_unlocked, TIGHT, None),
}


def policy_of(case: Case) -> str:
    """Under LRU, what was just matched is never the first to go."""
    return "fifo" if case is TIGHT else "lru"


PLANTED_WRONG = (TypeError, AttributeError, NameError, ConfigurationError)


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_seen(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, case, write_policy = DEFECTS[defect]
    plant(monkeypatch)
    for seed in range(6):
        try:
            mix(case, write_policy, policy=policy_of(case), seed=seed, requests=80)
        except Exception as error:  # whatever says that something is wrong
            if isinstance(error, PLANTED_WRONG):
                raise
            print(f"{defect}: seed {seed}: {type(error).__name__}: {str(error)[:150]}")
            return
    pytest.fail("no mix has seen it")


def test_the_mixes_of_the_defects_pass_without_them() -> None:
    for seed in range(6):
        mix(TIGHT, policy=policy_of(TIGHT), seed=seed, requests=80)
    mix(TIGHT, "back", requests=80)


@pytest.mark.parametrize("is_planted", [False, True])
def test_the_source_of_a_state_stays_until_the_forward(is_planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = Pools(Case(states=8, running=3, chunk=512))
    scheduler = Scheduler(pools, our_cache(pools, policy="fifo"))
    for first in range(7):
        scheduler.submit([first] * 30, 1)
        finish(scheduler)
    if is_planted:
        lock_without_state(monkeypatch)
    scheduler.submit([0] * 40, 1)  # starts from the oldest state
    scheduler.submit([9] * 40, 1)  # of the same batch; takes the slot of the oldest state that is not locked
    with pytest.raises(AssertionError, match="a wrong state") if is_planted else nullcontext():
        finish(scheduler)


@pytest.fixture
def scheduler() -> Scheduler:
    pools = Pools(CASES["full"])
    return Scheduler(pools, our_cache(pools))


@pytest.mark.parametrize("arrives", [False, True])
@pytest.mark.parametrize("name", ["swa16", "mamba", "mamba_extra"])
def test_where_windows_and_states_arrive_the_path_is_a_hit(name: str, arrives: bool) -> None:
    pools = Pools(CASES[name])
    cache = our_cache(pools, arrives=arrives)
    scheduler = Scheduler(pools, cache)
    scheduler.submit(list(range(160)), 2)
    finish(scheduler)
    prompt = MatchPrefixParams(key=RadixKey(array("q", range(160))))
    path = cache.match_prefix(prompt).full_kv_hit_length
    assert path >= 128
    cache.evict(EvictParams(num_tokens=0, swa_num_tokens=10_000, mamba_num=100))
    found = cache.match_prefix(prompt)
    known = path if arrives else 0
    assert (found.device_prefix_len, found.full_kv_hit_length, found.host_hit_length) == (known, path, 0)
    lock = cache.lock(found.last_device_node)
    cache.evict(EvictParams(num_tokens=10_000, swa_num_tokens=10_000, mamba_num=100))
    assert cache.match_prefix(prompt).full_kv_hit_length == known, "the lock keeps the path"
    cache.unlock(lock)
    cache.evict(EvictParams(num_tokens=10_000))
    assert cache.total_size()[0] == 0
    cache.sanity_check()


@pytest.mark.parametrize(("length", "written"), [(142, 96), (143, 112), (144, 112), (145, 112)])
def test_a_window_that_was_reserved_and_not_sent_is_freed(length: int, written: int) -> None:
    pools = Pools(CASES["swa16"])
    cache = our_cache(pools, arrives=True)
    req = Scheduler(pools, cache).submit(list(range(length)), 2)
    reserved = (length - 1 - 31) // 16 * 16  # as SGLang's decode server does; its prefill server sends from length - 31 on
    pools.requests.alloc([req])
    slots = pools.allocator.alloc_extend_swa_tail(
        prefix_lens=torch.tensor([0]),
        prefix_lens_cpu=torch.tensor([0]),
        seq_lens=torch.tensor([length]),
        seq_lens_cpu=torch.tensor([length]),
        last_loc=torch.tensor([-1]),
        extend_num_tokens=length,
        swa_tail_len=length - reserved,
    )
    pools.requests.write((req.kv.req_pool_idx, slice(0, length)), slots.int())
    req.kv.set_evicted_seqlen(ComponentType.SWA, reserved)
    cache.checkpoint(req, up_to=length)
    end = length // 16 * 16
    assert req.kv.get_evicted_seqlen(ComponentType.SWA) == written
    assert cache.total_size() == (end, end - written)
    assert pools.allocator.swa_available_size() == pools.case.window_tokens - (-(-length // 16) * 16 - written)
    cache.sanity_check()


def test_prompts_of_no_token_and_of_one(scheduler: Scheduler) -> None:
    for _ in range(3):
        for tokens in ([], [5], [5, 6]):
            req = scheduler.submit(tokens, 2)
            if tokens:
                finish(scheduler)
                assert len(req.output_ids) == 2
            else:
                assert scheduler.admit(req, scheduler.new_batch())
                assert req.prefix_len == 0
                scheduler.waiting.remove(req)
    scheduler.cache.sanity_check()


def test_a_prompt_longer_than_the_pool_waits_and_disturbs_nobody(scheduler: Scheduler) -> None:
    case = scheduler.pools.case
    huge = scheduler.submit(list(range(case.full_tokens + 1)), 2)
    scheduler.step()
    assert scheduler.waiting == [huge]
    scheduler.abort(huge)
    scheduler.submit(list(range(300)), 2)
    finish(scheduler)
    assert scheduler.counts.finished == 1


def test_an_adapter_of_other_weights_is_another_namespace(tmp_path: Path) -> None:
    adapter, keys = SimpleNamespace(lora_id="f" * 32, lora_name="red", lora_path=str(tmp_path)), list[str]()
    for weights in (b"first", b"second"):
        (tmp_path / "adapter_model.safetensors").write_bytes(weights)
        of_requests = RequestKeys(is_bigram=False, adapters=adapter_versions([adapter]))
        extra_keys = (None, "x", adapter.lora_id, f"x{adapter.lora_id}")
        keys += [of_requests.key(array("q", [1, 2]), 2, extra_key, "salt").namespace for extra_key in extra_keys]
    assert keys[:2] == keys[4:6], "not theirs"
    assert len({*keys[2:4], *keys[6:]}) == 4
    assert [namespace_parts(key) for key in keys[:4]] == [namespace_parts(key) for key in keys[4:]], "events name them alike"


def test_namespaces_are_apart(scheduler: Scheduler) -> None:
    tokens, hits = list(range(50)), []
    for extra_key, cache_salt in ((None, None), ("", None), (None, "s"), ("s", None), ("a", "s"), (None, ""), ("a", "")):
        req = scheduler.submit(tokens, 1, extra_key)
        req.cache_salt = cache_salt
        before = scheduler.counts.cached_tokens
        finish(scheduler)
        hits.append(scheduler.counts.cached_tokens > before)
    assert hits == [False, False, False, False, False, True, False]
