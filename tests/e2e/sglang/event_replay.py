"""Replays the KV events of the backend into a router's index, and compares it with what the tree really holds.

Run it with the Python of an installed SGLang: `python tests/e2e/sglang/event_replay.py`. As the scheduler model runs, the index
must have exactly the pages of both tiers, of full attention, of windows and of states, by hashes that are computed here from
the tokens. For equal requests in pools that never evict, the events must equal those of SGLang's own cache, one by one. With
windows SGLang stores less, and all that it stores must be among ours.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from model_caches import our_cache
from scheduler_model import Case, Pools, Scheduler, run
from sglang.srt.disaggregation.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    kv_event_namespace_seed,
    namespaced_block_hash,
)
from sglang.srt.mem_cache.events import KvEventLoraNames
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from unified_tree.controllers.adapters.sglang.backend import UnifiedTreeCache
from unified_tree.controllers.adapters.sglang.kv_events import GroupRemoved, GroupStored, namespace_parts
from unified_tree.terms.results import Boundary
from unified_tree.terms.tier import Tier

LORA = {"a": "adapter"}
"""The public names of the LoRA adapters, by extra key."""
CASES = {
    "full": Case(),
    "full-page16": Case(page_size=16, full_tokens=1440),
    "windows": Case(window=31),
    "windows-page16": Case(window=31, page_size=16, full_tokens=1440, window_tokens=480),
    "states": Case(states=40),
    "eagle": Case(eagle=True),
    "eagle-page16": Case(eagle=True, page_size=16, full_tokens=1440),
}
HOSTS = (None, "through", "back")


class Index:
    """What a router knows of one engine: how often each hash is stored, by medium.

    Two extra keys share hashes in the default format, so a hash can be stored more than once.
    """

    def __init__(self) -> None:
        self.blocks: dict[tuple[str, int], Counter[int]] = {}
        self.stored_count = self.removed_count = 0

    def apply(self, events: Iterable[Any]) -> None:
        """Read events. Raises AssertionError for an unknown parent, or for the end of a block that is not there."""
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
                continue
            medium, group = event.medium.value, getattr(event, "group_idx", 0)
            blocks = self.blocks.setdefault((medium, group), Counter())
            if isinstance(event, BlockRemoved | GroupRemoved):
                for block in event.block_hashes:
                    assert blocks[block] > 0, f"{medium} {group}: {block} is removed and was not there"
                    blocks[block] -= 1
                self.removed_count += len(event.block_hashes)
                continue
            assert isinstance(event, BlockStored | GroupStored)
            if group:
                kind = "mamba" if event.kv_cache_spec_sliding_window is None else "sliding_window"
                assert event.kv_cache_spec_kind == kind
            assert len(event.token_ids) == len(event.block_hashes) * event.block_size
            parent: int | None = event.parent_block_hash
            is_known = parent is None or any(known[parent] > 0 for known in self.blocks.values())
            assert group or is_known, f"{parent} is no known parent"
            blocks.update(event.block_hashes)
            self.stored_count += len(event.block_hashes)

    def known(self, medium: str, group: int) -> Counter[int]:
        """How often each hash is stored on a medium, of a group."""
        return +self.blocks.get((medium, group), Counter())


def held(cache: UnifiedTreeCache, tier: Tier, index: int, *, dynamo: bool) -> Counter[int]:
    """The hashes of a component's pages on a tier, from the tokens in the tree alone."""
    state, size = cache.tree.state, cache.page_size
    found: Counter[int] = Counter()
    for node in state.nodes:
        value = node.values(tier)[index]
        if value is None:
            continue
        key = cache.tree.key_of(Boundary(node.id, node.end))
        extra_key, salt = namespace_parts(key.namespace)
        digest = b"" if salt is None else hashlib.sha256(b"sglang-cache-salt-v1\0" + salt.encode()).digest()
        named = extra_key if dynamo or extra_key in LORA else None
        seed = kv_event_namespace_seed(extra_key=named, cache_salt=salt if dynamo else None)
        words = torch.frombuffer(bytearray(key.data), dtype=torch.int64).to(torch.int32).numpy().tobytes()
        width = len(words) // key.length * size
        first = node.end // size - value.page_count
        for page in range(node.end // size):
            digest = hashlib.sha256(digest + words[page * width : (page + 1) * width]).digest()
            if page >= first:
                block = int.from_bytes(digest[:8], "big", signed=True)
                found[namespaced_block_hash(block, namespace_seed=seed)] += 1
    return found


def with_events(pools: Pools, *, dynamo: bool) -> Any:
    """SGLang's parameters with `--kv-events-config`."""
    names = KvEventLoraNames()
    for extra_key, name in LORA.items():
        names.register(SimpleNamespace(extra_key=extra_key, lora_id="id"), name)
    return replace(pools.params, enable_kv_cache_events=True, dynamo_kv_event_format=dynamo, kv_event_lora_names=names)


def replay(case: Case, host: str | None, *, dynamo: bool, requests: int, seed: int) -> Index:
    """A random mix with evictions, the index compared after each step."""
    pools = Pools(case)
    cache = our_cache(pools, params=with_events(pools, dynamo=dynamo), write_policy=host, host_ratio=1.5, event_groups=True)
    index = Index()

    class Compared(Scheduler):
        def check(self) -> None:
            super().check()
            index.apply(cache.take_events())
            self.steps = getattr(self, "steps", 0) + 1
            if self.steps % 4 == 0:
                compare()

    def compare() -> None:
        for tier, medium in ((Tier.DEVICE, "GPU"), (Tier.HOST, "CPU_PINNED")):
            for group, name in enumerate(cache.tree_components):
                known, wanted = index.known(medium, group), held(cache, tier, group, dynamo=dynamo)
                assert known == wanted, (
                    f"the index differs from the tree on {medium}, of {name}: {known - wanted}, {wanted - known}"
                )

    run(Compared(pools, cache, has_host=host is not None), requests=requests, seed=seed)
    compare()
    cache.reset()
    index.apply(cache.take_events())
    assert not any(index.known(*group) for group in list(index.blocks)), "a reset leaves nothing"
    cache.release_host_resources()
    return index


def sequence(case: Case, *, builtin: bool, dynamo: bool, requests: int, seed: int) -> list[Any]:
    """The events of requests that come one after the other, in pools that hold all of them."""
    pools = Pools(replace(case, full_tokens=48_000, window_tokens=48_000, states=case.states and 900, running=1))
    params = with_events(pools, dynamo=dynamo)
    cache: Any = UnifiedRadixCache(params) if builtin else our_cache(pools, params=params)
    scheduler, rng = Scheduler(pools, cache), random.Random(seed)
    events: list[Any] = []
    prompts: list[tuple[list[int], str | None, str | None]] = []
    for _ in range(requests):
        tokens, extra_key, salt = rng.choice(prompts) if prompts and rng.random() < 0.6 else ([], None, None)
        if not tokens:
            extra_key, salt = rng.choice([None, None, "a", "b", ""]), rng.choice([None, None, "salt"])
        tokens = tokens[: rng.randrange(len(tokens) + 1)] + [rng.randrange(500) for _ in range(rng.randrange(1, 150))]
        req = scheduler.submit(tokens, rng.choice([1, 3, 20]), extra_key, salt)
        req.session_id = rng.choice([None, None, "session"])
        while not req.is_finished:
            scheduler.step()
            events.extend(cache.take_events())
        prompts.append((list(req.full_untruncated_fill_ids), extra_key, salt))
    return events


def blocks(events: Iterable[Any]) -> list[Any]:
    """The stored blocks one by one, with all that an event says of them."""
    found: list[Any] = []
    for event in events:
        if not isinstance(event, BlockStored):
            found.append(str(event))
            continue
        parent, size = event.parent_block_hash, event.block_size
        for at, block in enumerate(event.block_hashes):
            tokens = tuple(event.token_ids[at * size : (at + 1) * size])
            about = (size, event.lora_id, event.medium, event.cache_salt, event.session_id, event.lora_name)
            found.append((block, parent, tokens, *about))
            parent = block
    return found


def main() -> int:
    """Run all cases; exit code 1 if a sequence differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    differs = 0
    for name in given.cases.split(","):
        case = CASES[name]
        for seed in range(given.seeds):
            for dynamo in (False, True):
                shape = "dynamo" if dynamo else "default"
                pair = [
                    sequence(case, builtin=builtin, dynamo=dynamo, requests=given.requests // 2, seed=seed)
                    for builtin in (True, False)
                ]
                expected, found = map(blocks, pair)
                is_equal = pair[0] == pair[1] if case.window is None else set(expected) <= set(found)
                differs += not is_equal
                first = next((at for at, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), None)
                agrees = "equal to SGLang's" if case.window is None else f"with SGLang's {len(expected)} among them"
                said = agrees if is_equal else f"differ at {first}, {len(expected)} are SGLang's"
                print(f"{name} {shape} seed {seed}: {len(pair[1])} events, {len(found)} blocks, {said}", flush=True)
            for host in HOSTS:
                index = replay(case, host, dynamo=bool(seed % 2), requests=given.requests, seed=seed)
                print(f"{name} host {host} seed {seed}: {index.stored_count} stored, {index.removed_count} removed", flush=True)
    return int(differs > 0)


if __name__ == "__main__":
    sys.exit(main())
