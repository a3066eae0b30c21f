"""What readers who had only the documentation broke."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from kinds import FULL, MAMBA
from waiting import PROGRAM_S

from unified_tree import (
    Component,
    ConfigurationError,
    EvictionPolicy,
    Key,
    LeaseError,
    OutOfPagesError,
    PageFormat,
    Part,
    Path,
    Point,
    Tier,
    TransferError,
)
from unified_tree.controllers import HostTier, Lease, PrefixCache
from unified_tree.controllers.debugging import PageOwner, SealedPages, page_owner
from unified_tree.controllers.testing import SimulatedEngine
from unified_tree.controllers.transfer_engines import Completion, NullEngine, VirtualClock
from unified_tree.declare.page_format import WHOLE

PROMPT = list(range(20))


def serve(cache: PrefixCache, tokens: list[int]) -> None:
    with cache.acquire(Key(tokens), reserve_tokens=len(tokens)) as lease:
        cache.commit(lease, len(tokens), dict(lease.save_pages))


def test_evicted_pages_go_back_to_their_pool() -> None:
    """`cache.tree.evict` leaves them to the caller."""
    cache = PrefixCache([FULL], 4, {"full": 5})
    serve(cache, PROMPT)
    assert sum(ids.size for ids in cache.evict({"full": 2}).freed.values()) >= 2
    assert cache.stats().pools["full"].used == cache.stats().pools["full"].tree
    serve(cache, PROMPT)
    page = int(cache.tree.evict({"full": 1}).freed["full"][0])
    assert page_owner(cache, "full", page).owner == "nobody"
    with pytest.raises(ConfigurationError, match="no pages on host"):
        cache.evict({"full": 1}, Tier.HOST)


def test_the_owner_of_a_page_is_told_beside_a_lease_whose_load_failed() -> None:
    cache = PrefixCache(
        [FULL], 4, {"full": 16}, host=HostTier(engine=SimulatedEngine(1, VirtualClock()), page_counts={"full": 16})
    )
    serve(cache, PROMPT)
    cache.drain()
    cache.evict({"full": 5})
    lease = cache.acquire(Key(PROMPT), reserve_tokens=20)
    assert lease.is_loading
    own = int(cache._leases.require(lease).tables["full"].page(4))
    cache.invalidate()
    cache.drain()
    with pytest.raises(TransferError):
        lease.pages("full")
    assert page_owner(cache, "full", own) == PageOwner(owner="lease", boundary=None, key=None, leases=(lease,))
    cache.release(lease)
    assert page_owner(cache, "full", own).owner == "free"


class Scoring(EvictionPolicy):
    """Keeps at a value what is no number."""

    def rank(self, value: Any) -> int:
        return int(value.touched)

    def touched(self, value: Any) -> None:
        value.score = None


def test_a_score_that_is_no_number_breaks_no_call() -> None:
    """Compiled, it is refused in the policy's own method; interpreted, it was read in the middle of an eviction."""
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 8, "mamba": 6}, policy=lambda _: Scoring())
    for first in (1, 1, 9, 7, 20, 21, 22):
        serve(cache, list(range(first, first + 4)))
        serve(cache, list(range(first, first + 8)))
        assert cache.tree.check() == []
    assert cache.stats().policy.failures > 0


def test_what_only_the_cache_may_do_with_a_lease_is_not_public() -> None:
    public = {name for name in dir(Lease) if not name.startswith("_") and callable(getattr(Lease, name))}
    assert public == {"next_stop", "page", "pages"}


def test_a_lease_never_forgets_its_prompt() -> None:
    cache = PrefixCache([FULL], 4, {"full": 16})
    lease = cache.acquire(Key(PROMPT), reserve_tokens=16)
    cache.truncate(lease, 8)
    cache.allocate(lease, 20)
    with pytest.raises(LeaseError, match="differ"):
        cache.commit(lease, [*range(8), *[7] * 12])
    cache.commit(lease, 20)
    assert lease.committed == 20


def test_an_engine_that_reports_nonsense_fails_its_transfer_and_nothing_else() -> None:
    class Lying(NullEngine):
        def poll(self) -> list[Completion]:
            bad: Any = 5
            return [Completion(ticket=done.ticket, error=bad) for done in super().poll()]

    cache = PrefixCache([FULL], 4, {"full": 8}, host=HostTier(page_counts={"full": 8}, engine=Lying()))
    serve(cache, PROMPT)
    cache.drain()
    assert cache.stats().host_pools["full"].used == 0
    assert cache.stats().drops["backup failed"]
    cache.close()


@pytest.mark.parametrize("engine", [None, 5, object()])
def test_a_host_tier_wants_an_engine(engine: Any) -> None:
    with pytest.raises(ConfigurationError, match="TransferEngine"):
        HostTier(page_counts={"full": 8}, engine=engine)
    with pytest.raises(ConfigurationError, match="StorageTier"):
        PrefixCache([FULL], 4, host=HostTier(page_counts={"full": 8}, engine=NullEngine())).attach_storage(engine)
    with pytest.raises(ConfigurationError, match="settings"):
        PrefixCache([FULL], 4, settings=5)  # type: ignore[arg-type]


def test_an_error_says_that_something_can_never_fit() -> None:
    cache = PrefixCache([FULL], 4, {"full": 4})
    with pytest.raises(OutOfPagesError, match="can never be had"):
        cache.acquire(Key(PROMPT), reserve_tokens=20)


@pytest.mark.parametrize(("coverage", "slots"), [(Path(), 16), (Path(), 128), (Point(), 64)], ids=str)
def test_a_format_has_the_slots_of_a_page(coverage: Path | Point, slots: int) -> None:
    form = PageFormat(component="a", layer_ids=(0,), parts=(Part("k", "float16", (2,)),), slots_per_page=slots, shard=WHOLE)
    kinds = [Component(name="full", coverage=Path()), Component(name="a", coverage=coverage, format=form)]
    with pytest.raises(ConfigurationError, match=f"{slots} slots a page"):
        PrefixCache(kinds, 64)


def test_a_prompt_that_no_state_can_be_saved_for_is_counted() -> None:
    gridded = Component(name="mamba", coverage=Point(), save_grid_tokens=32)
    cache = PrefixCache([FULL, gridded], 4)
    cache.release(cache.acquire(Key(PROMPT)))
    assert cache.stats().drops == {"prompt ends before the first place to save a state": 1}
    with cache.acquire_to_fill(Key(np.arange(3)), 2):
        pass
    assert sum(cache.stats().drops.values()) == 1, "what a linker fills is no request"
    cache = PrefixCache([FULL, MAMBA], 4, save_limit=2)
    cache.release(cache.acquire(Key(PROMPT), checkpoints=[4, 8, 12]))
    assert cache.stats().drops == {"more places to save than save_limit": 1}


def test_a_page_overwritten_under_a_running_reader_is_found() -> None:
    pool = np.zeros((16, 4))
    cache = PrefixCache([FULL], 4, {"full": 16})
    seals = SealedPages(cache, read_page=lambda _, page: pool[page])
    with cache.acquire(Key(PROMPT[:16]), request="writer", reserve_tokens=16) as lease:
        pool[lease.pages("full")] = 1
        cache.commit(lease, 16)
    reader = cache.acquire(Key([*PROMPT[:16], 50]), request="reader")
    assert seals.verify() == 0
    pool[reader.pages("full")[3]] = 9
    assert (seals.verify(), seals.verify()) == (1, 0), "each once"
    cache.release(reader)
    assert [(wrong.reader, wrong.source, wrong.length_tokens) for wrong in seals.wrong_pages] == [("reader", "held", 16)]


def test_checks_and_debugging_need_no_extra() -> None:
    code = (
        "import sys; sys.modules['xxhash'] = sys.modules['torch'] = None\n"
        "from unified_tree.controllers.debugging import SealedPages, page_owner\n"
        "from unified_tree.controllers.testing import SimulatedEngine, check_policy, check_storage_engine\n"
        "from unified_tree.controllers.storage_tier import StorageTier\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PROGRAM_S)
