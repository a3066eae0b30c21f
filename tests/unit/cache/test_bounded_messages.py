"""An error message shows an argument of any size in one short line, whatever the argument is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pytest
from kinds import FULL, MAMBA

from unified_tree import (
    Amount,
    BlockBudget,
    Component,
    Key,
    PageFormat,
    Part,
    Path,
    Shard,
    TenantGroup,
    Tenants,
    Tier,
    Trailing,
    TreeSettings,
    UnifiedTreeError,
)
from unified_tree.controllers import DecodeBatch, HostTier, Lease, LoadCost, PrefixCache
from unified_tree.controllers.storage import FileLimits, MemoryStorage, StoredPool
from unified_tree.controllers.storage_tier import PersistPolicy, PrefetchPolicy
from unified_tree.controllers.transfer_engines import NullEngine

LONGEST_MESSAGE = 500


class Loud:
    def __repr__(self) -> str:
        return "x\n" * 100_000


class Mute:
    def __repr__(self) -> NoReturn:
        raise RuntimeError("it has no text")


WRONG: dict[str, Any] = {
    "list": [-1] * 100_000,
    "tuple": (-1,) * 100_000,
    "text": "x" * 100_000,
    "bytes": b"x" * 100_000,
    "floats": np.full(100_000, 0.5),
    "mapping": dict.fromkeys(range(1000), "x" * 1000),
    "nested": [["x" * 100_000]],
    "integer": -(10**5000),
    "integers": [10**5000] * 3,
    "loud": Loud(),
    "mute": Mute(),
}


class Running(NamedTuple):
    cache: PrefixCache
    lease: Lease
    batch: DecodeBatch


Call = Callable[[Running, Any], object]
PROMPT = Key(range(8))
CALLS: dict[str, Call] = {
    "Key": lambda _, wrong: Key(wrong).require_tokens(),
    "namespace": lambda _, wrong: Key([1], wrong if not isinstance(wrong, str) else 1),
    "acquire": lambda on, wrong: on.cache.acquire(wrong),
    "acquire_to_fill": lambda on, wrong: on.cache.acquire_to_fill(wrong, 1),
    "checkpoints": lambda on, wrong: on.cache.acquire(PROMPT, wrong if np.ndim(wrong) else [wrong]),
    "priority": lambda on, wrong: on.cache.acquire(PROMPT, priority=wrong),
    "may_load": lambda on, wrong: on.cache.acquire(PROMPT, may_load=wrong),
    "request": lambda on, wrong: on.cache.acquire(PROMPT, request=[wrong]),  # type: ignore[arg-type]
    "session": lambda on, wrong: on.cache.acquire(PROMPT, session=[wrong]),  # type: ignore[arg-type]
    "allocate": lambda on, wrong: on.cache.allocate(on.lease, wrong),
    "without": lambda on, wrong: on.cache.allocate(on.lease, 4, without=[wrong]),
    "commit": lambda on, wrong: on.cache.commit(on.lease, wrong),
    "begin": lambda on, wrong: on.cache.commit(on.lease, [1], begin=wrong),
    "states": lambda on, wrong: on.cache.commit(on.lease, 4, [wrong]),  # type: ignore[arg-type]
    "state": lambda on, wrong: on.cache.commit(on.lease, 4, {4: wrong}),
    "commit without": lambda on, wrong: on.cache.commit(on.lease, 4, without=[wrong]),
    "lease": lambda on, wrong: on.cache.release(wrong),
    "pages": lambda on, wrong: on.lease.pages(wrong),
    "batch": lambda on, wrong: on.batch.advance(wrong),
    "slots": lambda on, wrong: on.batch.slots(wrong),
    "explain": lambda on, wrong: on.cache.explain(wrong),
    "hint": lambda on, wrong: on.cache.hints.pin([wrong]),  # type: ignore[arg-type]
    "prefetch": lambda on, wrong: on.cache.hints.prefetch([wrong]),  # type: ignore[arg-type]
    "open_session": lambda on, wrong: on.cache.open_session([wrong]),  # type: ignore[arg-type]
    "part of itself": lambda on, _: on.cache.open_session((str, "x" * 9999), (str, "x" * 9999)),
    "invalidate": lambda on, wrong: on.cache.invalidate([wrong]),  # type: ignore[arg-type]
    "evict": lambda on, wrong: on.cache.evict({"full": wrong}),
    "evict from": lambda on, _: on.cache.evict({"x" * 100_000: 1}),
    "attach_storage": lambda on, wrong: on.cache.attach_storage(wrong),
    "page_counts": lambda _, wrong: PrefixCache([FULL], 2, [wrong]),  # type: ignore[arg-type]
    "page_count": lambda _, wrong: PrefixCache([FULL], 2, {"full": wrong}),
    "policy": lambda _, wrong: PrefixCache([FULL], 2, policy=wrong),
    "match_prefix": lambda on, wrong: on.cache.tree.match_prefix(wrong),
    "insert": lambda on, _: on.cache.tree.insert(PROMPT, {"x" * 100_000: np.arange(4)}),
    "insert after": lambda on, wrong: on.cache.tree.insert(PROMPT, {}, after=wrong),
    "tree.evict": lambda on, wrong: on.cache.tree.evict({"full": wrong}),
    "tier": lambda on, wrong: on.cache.tree.evict({}, wrong),
    "pool": lambda on, _: on.cache.tree.pool("x" * 100_000, Tier.DEVICE),
    "coverage": lambda _, wrong: Component(name="x", coverage=wrong),
    "shares": lambda _, wrong: Component(name="x", coverage=Path(), shares=[wrong]),  # type: ignore[arg-type]
    "page_bytes": lambda _, wrong: Component(name="x", coverage=Path(), page_bytes=wrong),
    "format": lambda _, wrong: Component(name="x", coverage=Path(), format=wrong),
    "window": lambda _, wrong: Trailing(wrong),
    "dtype": lambda _, wrong: Part("k", [wrong], (1,)),  # type: ignore[arg-type]
    "shape": lambda _, wrong: Part("k", "uint8", wrong),
    "layers": lambda _, wrong: PageFormat(component="x", layer_ids=wrong, parts=(), slots_per_page=1),
    "shard": lambda _, wrong: Shard(wrong, wrong),
    "TreeSettings": lambda _, wrong: TreeSettings(settle_limit=wrong),
    "Tenants": lambda _, wrong: Tenants(groups=[wrong]),  # type: ignore[arg-type]
    "TenantGroup": lambda _, wrong: TenantGroup(name="x", namespaces=[[wrong]]),  # type: ignore[arg-type]
    "Amount": lambda _, wrong: Amount(pages=[wrong]),  # type: ignore[arg-type]
    "BlockBudget": lambda _, wrong: BlockBudget(block_count=1, block_bytes=1, page_blocks=[wrong]),  # type: ignore[arg-type]
    "engine": lambda _, wrong: HostTier(engine=wrong),
    "write_policy": lambda _, wrong: HostTier(engine=NullEngine(), write_policy=wrong),
    "host page_counts": lambda _, wrong: HostTier(engine=NullEngine(), page_counts=[wrong]),  # type: ignore[arg-type]
    "queue_limit": lambda _, wrong: HostTier(engine=NullEngine(), queue_limit=wrong),
    "tables": lambda _, wrong: HostTier(engine=NullEngine(), tables=wrong),
    "LoadCost": lambda _, wrong: LoadCost(min_tokens=wrong),
    "PrefetchPolicy": lambda _, wrong: PrefetchPolicy(mode=wrong),
    "max_outcomes": lambda _, wrong: PrefetchPolicy(max_outcomes=wrong),
    "PersistPolicy": lambda _, wrong: PersistPolicy(max_open=wrong),
    "FileLimits": lambda _, wrong: FileLimits(refresh_s=wrong),
    "MemoryStorage": lambda _, wrong: MemoryStorage([wrong]),
    "StoredPool": lambda _, wrong: StoredPool(name="x", format_digest=b"", value_bytes=wrong),
    "ranks": lambda _, wrong: PrefixCache([FULL], 2, ranks=wrong),
}


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache([FULL, MAMBA], 2, {"full": 20, "mamba": 8})


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", WRONG)
def test_a_message_is_short_whatever_the_argument_is(cache: PrefixCache, call: str, kind: str) -> None:
    lease = cache.acquire(PROMPT)
    cache.allocate(lease, 4)
    with pytest.raises(UnifiedTreeError) as refused:
        CALLS[call](Running(cache, lease, cache.batch(2, 100)), WRONG[kind])
    message = str(refused.value)
    assert len(message) <= LONGEST_MESSAGE
    assert message.isprintable(), "one line"


def test_tokens_in_place_of_a_key_are_named_with_the_remedy(cache: PrefixCache) -> None:
    with pytest.raises(UnifiedTreeError, match=r"a Key is needed, not \[5, 6\]: wrap the token ids, Key\(token_ids\)"):
        cache.acquire([5, 6])  # type: ignore[arg-type]
    with pytest.raises(UnifiedTreeError, match=r"a Key is needed, not \[5, 6\]: wrap"):
        cache.explain([5, 6])  # type: ignore[arg-type]
