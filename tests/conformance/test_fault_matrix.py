"""The fault matrix: a whole cache over every storage engine, while what stands behind the engine is not well.

Each test is a fault, each parameter an engine that it can happen to; `WHY_NOT` says of every other pair why it cannot. In all
of them

- not a wrong byte is served: `ScheduledCache` compares every one of every hit;
- requests go on: whatever the store does, no call of the scheduler raises;
- no call of the scheduler waits for the store. No clock says so: a request lives from its arrival to its release while one
  call of the engine is under way. And none waits longer for its prefetch than its time-out, by the scheduler's own clock;
- afterwards all locks are released, all pages at home, and no thread, open file or shared memory is left, though the cache was
  closed while the store was dead or stood still;
- a fault is told the same way whatever the engine: it is counted by its kind, logged, and the misses that it caused have a
  cause of their own, while all causes sum up to the prompts;
- a store that is well again is used again.

SiMM is a double. Redis, Mooncake's master and 3FS's metadata service are real; 3FS's directory is one of this machine, or a
mount whose daemon is the one that fails. LMCache, no storage engine, has `test_linker_fault_matrix`.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import bind_mount
import hf3fs_service
import mooncake_server
import pytest
import redis_server
from leaks import Holdings, check_nothing_leaks
from scheduled_cache import PAGE, ScheduledCache, Tokens, prompt
from store_rigs import FileRig, Hf3fsMountRig, Hf3fsRig, MooncakeRig, RedisClusterRig, RedisRig, SimmRig, StoreRig
from watchdog import Watchdog, until
from watched_storage import WatchedStorage, nothing, watched

from unified_tree.controllers.storage import StorageEngine, StoredPool
from unified_tree.terms.errors import StorageError

ENGINES = ("file", "redis", "redis_cluster", "mooncake", "hf3fs", "hf3fs_mount", "simm")
FAULTS = ("absent", "reborn", "killed", "restarted", "frozen", "slow", "full", "forgetful", "short", "corrupt")
WHY_NOT = {
    ("file", "killed"): "nothing runs behind it; writers that are killed are in test_file_processes",
    ("file", "restarted"): "the same",
    ("redis_cluster", "slow"): "a master alone is as slow: redis",
    ("redis_cluster", "short"): "what a master answers is the same: redis",
    ("hf3fs_mount", "full"): "the service gives the room: hf3fs",
    ("hf3fs_mount", "slow"): "a call that is late is late for the same reason: hf3fs, and frozen",
    ("hf3fs_mount", "forgetful"): "the service says what there is: hf3fs",
    ("hf3fs_mount", "short"): "the file is the same: hf3fs",
    ("hf3fs_mount", "corrupt"): "the file is the same: hf3fs",
}
NUMBERS = itertools.count()
OLD = [prompt(number) for number in range(6)]
WHOLE = OLD[0].size // PAGE * PAGE


def having(fault: str) -> pytest.MarkDecorator:
    """The engines that a fault can happen to."""
    return pytest.mark.parametrize("rig", [name for name in ENGINES if (name, fault) not in WHY_NOT], indirect=True)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis_server.Redis]:
    redis_server.skip_unless_it_runs()
    with redis_server.Redis(tmp_path_factory.mktemp("redis"), over="unix") as server:
        yield server


@pytest.fixture(scope="module")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis_server.Cluster]:
    redis_server.skip_unless_it_runs()
    with redis_server.Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def mooncake() -> Iterator[mooncake_server.Mooncake]:
    mooncake_server.skip_unless_it_runs()
    with mooncake_server.Mooncake(segment_bytes=32 << 20, lease_ms=100, client_ttl_s=2) as server:
        for name in ("first", "second"):  # the client keeps some threads and files of these for good, and no more of later ones
            early = Trial(MooncakeRig(server, name))
            early.attach()
            early.learn()
            early.cache.close()
        yield server


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hf3fs_service.MetadataService]:
    hf3fs_service.skip_unless_it_runs()
    with hf3fs_service.MetadataService(tmp_path_factory.mktemp("metadata")) as service:
        yield service


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreRig]:
    own = f"matrix{next(NUMBERS)}"
    match request.param:
        case "file":
            yield FileRig(tmp_path)
        case "redis":
            yield RedisRig(request.getfixturevalue("redis"), own)
        case "redis_cluster":
            yield RedisClusterRig(request.getfixturevalue("redis_cluster"), own)
        case "mooncake":
            yield MooncakeRig(request.getfixturevalue("mooncake"), own)
        case "hf3fs":
            yield Hf3fsRig(request.getfixturevalue("metadata"), tmp_path, own)
        case "hf3fs_mount":
            bind_mount.skip_unless_it_runs()
            with bind_mount.BindMount(tmp_path) as mount:
                yield Hf3fsMountRig(request.getfixturevalue("metadata"), mount, own)
        case "simm":
            with SimmRig() as simm:
                yield simm


class Trial:
    """A cache over a rig's store, watched.

    Attributes:
        store: the engine that is attached; `pools` what it was opened for.
    """

    def __init__(self, rig: StoreRig) -> None:
        self.rig = rig
        self.cache = ScheduledCache()
        self.pools: Sequence[StoredPool] = ()
        self.store: WatchedStorage | None = None
        self._fresh = itertools.count(100)

    def attach(self) -> None:
        self.cache.attach(self._open)

    def _open(self, pools: Sequence[StoredPool]) -> StorageEngine:
        self.pools = pools
        self.store = watched(self.rig.open(pools))
        return self.store

    @property
    def watch(self) -> WatchedStorage:
        assert self.store is not None
        return self.store

    def learn(self) -> None:
        """Prompts are computed and stored, and come back."""
        for tokens in OLD:
            self.cache.serve(tokens)
        self.cache.settle()
        assert [self.cache.found_again(tokens) for tokens in OLD[:2]] == [WHOLE] * 2, "no fault has happened yet"

    def suffer(self, is_seen: Callable[[], object]) -> None:
        """Old prompts and new ones, while time passes, until a fault is seen."""
        self.cache.time_passes = True

        def has_served() -> object:
            self.cache.forget()
            self.cache.serve(OLD[0], OLD[3])
            self.cache.serve(self.new_prompt(), OLD[1])
            return is_seen()

        until(has_served, "the fault is seen")
        self.cache.time_passes = False

    def live_within_one_call(self) -> None:
        """A request lives from its arrival to its release while one and the same call of the engine is under way."""
        self.cache.time_passes = True

        def has_lived() -> bool:
            before = set(self.watch.under_way)
            self.cache.serve(self.new_prompt(), OLD[2])
            return bool(before & self.watch.under_way)

        until(has_lived, "a request that does not wait for the store")
        self.cache.time_passes = False

    def use_again(self) -> None:
        """What is stored from now on is found again."""

        def is_found() -> bool:
            tokens = self.new_prompt()
            self.cache.serve(tokens)
            return self.cache.found_again(tokens) > 0

        until(is_found, "the store is used again")

    def new_prompt(self) -> Tokens:
        return prompt(3 * next(self._fresh))

    def is_missed(self) -> bool:
        """Whether the engine has told of a failure, and a request has paid for it."""
        figures = self.cache.figures
        return (figures.is_degraded or figures.errors > 0) and self.is_told("unanswered", "read_failed", "not_given")

    def is_told(self, *kinds: str) -> bool:
        """Whether faults of one of these kinds were counted, and are the cause of misses."""
        counts, stats = self.cache.figures.faults, self.cache.cache.stats()
        assert sum(stats.misses.values()) == stats.prompt_tokens - stats.hit_tokens
        return any(counts[kind] for kind in kinds) and stats.misses["store_failed"] > 0


@contextmanager
def trial(rig: StoreRig, *, attached: bool = True) -> Iterator[Trial]:
    """A trial, and what must hold at its end."""
    before = Holdings()
    made = Trial(rig)

    def let_go() -> None:
        if made.store is not None:
            made.store.gate.set()
        rig.thaw()

    with Watchdog(let_go, lambda: made.cache.doing):
        try:
            if attached:
                made.attach()
            yield made
            made.cache.close()
        finally:
            let_go()
            made.cache.cache.close()
            rig.end()
    assert made.store is None or not made.store.intruders, "the scheduler asked the store itself"
    check_nothing_leaks(before)


def is_logged(caplog: pytest.LogCaptureFixture) -> bool:
    """Whether the log has a warning of the store, and not one for each page or request."""
    lines = [record for record in caplog.records if record.name == "unified_tree.storage" and record.levelno >= logging.WARNING]
    return 0 < len(lines) <= 40


def test_every_pair_is_tried_or_said_why_not() -> None:
    assert set(WHY_NOT) <= set(itertools.product(ENGINES, FAULTS))


@having("absent")
def test_absent_at_start(rig: StoreRig) -> None:
    """It says so when it is opened; the cache does without until it is there."""
    with trial(rig, attached=False) as life:
        rig.kill()
        with pytest.raises(StorageError):
            life.attach()
        life.cache.serve(OLD[0])
        assert life.cache.serve(OLD[0]) == [WHOLE]
        rig.start()
        life.attach()
        life.use_again()


@having("reborn")
def test_the_cache_itself_ends(rig: StoreRig) -> None:
    """The next one finds what it stored; and that one is closed in the middle of everything."""
    with trial(rig) as life:
        life.learn()
    with trial(rig) as life:
        assert [life.cache.found_again(tokens) for tokens in OLD] == [WHOLE] * len(OLD)
        life.cache.forget()
        life.cache.time_passes = True
        life.cache.serve(life.new_prompt(), OLD[0])


@having("killed")
def test_killed(rig: StoreRig, caplog: pytest.LogCaptureFixture) -> None:
    """The cache goes on without, and is closed without."""
    with trial(rig) as life:
        life.learn()
        rig.kill()
        life.suffer(life.is_missed)
        assert is_logged(caplog)
        life.cache.close()
        rig.start()


@having("restarted")
def test_restarted(rig: StoreRig) -> None:
    """It is used again, with what it kept."""
    with trial(rig) as life:
        life.learn()
        rig.kill()
        life.suffer(life.is_missed)
        rig.start()
        if rig.keeps:
            until(lambda: life.cache.found_again(OLD[5]) > 0, "what it kept is found")
        life.use_again()


@having("frozen")
def test_frozen_and_thawed(rig: StoreRig) -> None:
    """No request waits for it, and closing no longer than for the call under way; thawed it is used again."""
    with trial(rig) as life:
        life.learn()
        life.cache.forget()
        rig.freeze()
        life.live_within_one_call()
        rig.thaw()
        life.use_again()
        life.cache.forget()
        rig.freeze()
        rig.hurry(life.watch.engine)
        life.cache.time_passes = True
        life.cache.serve(OLD[0], life.new_prompt())
        life.cache.close()
        rig.thaw()


@having("slow")
def test_slow(rig: StoreRig) -> None:
    """Each answer comes after somebody's time-out; what it brought is for whoever is next."""
    with trial(rig) as life:
        life.learn()
        for _ in range(5):
            life.cache.settle()
            life.cache.forget()
            life.watch.gate.clear()
            life.live_within_one_call()
            life.watch.gate.set()
        assert life.watch.held
        assert life.cache.cache.stats().drops["prefetch out of time"]
        life.use_again()


@having("full")
def test_full(rig: StoreRig) -> None:
    """What it does not take or does not keep is computed again."""
    with trial(rig, attached=False) as life:
        with rig.filled():
            life.attach()
            for tokens in OLD * 2:
                life.cache.serve(tokens)
                life.cache.settle()
                life.cache.forget()
            kept = sum(int(life.watch.engine.exists(pool, list(keys)).sum()) for pool, keys in life.watch.stored.items())
            everything = sum(map(len, life.watch.stored.values()))
            is_dropped = life.cache.cache.stats().drops.get("persist incomplete: store dropped")
            assert kept < everything or is_dropped
            assert not is_dropped or life.cache.figures.faults["write_dropped"]
        if rig.is_sized:
            life.cache.cache.detach_storage()  # tables that are in use are not made larger
            life.attach()
        life.use_again()


def tell_lies(life: Trial) -> None:
    """Serve from a store of which nothing is true any more; less comes back than was there."""
    found = [life.cache.found_again(tokens) for tokens in OLD]
    assert sum(found) < WHOLE * len(OLD), "it told the truth"


@having("forgetful")
def test_it_says_that_it_has_what_it_has_not(rig: StoreRig) -> None:
    with trial(rig) as life:
        life.learn()
        peer = rig.open(life.pools)
        life.watch.before_get = peer.remove
        present = life.cache.figures.pools["full"].present
        tell_lies(life)
        assert life.cache.figures.pools["full"].present > present, "it was asked, and said yes"
        assert life.is_told("not_given", "read_failed")
        life.watch.before_get = nothing
        peer.close()
        life.use_again()


@having("short")
def test_what_it_has_is_too_short(rig: StoreRig) -> None:
    with trial(rig) as life:
        life.learn()
        life.cache.forget()
        rig.shorten(life.pools, life.watch.stored)
        tell_lies(life)
        rig.let_leases_end()
        life.use_again()


@having("corrupt")
def test_what_it_has_is_something_else(rig: StoreRig, caplog: pytest.LogCaptureFixture) -> None:
    """As long as it should be, stored by others as it should be, and not what was put: it is never served, and heals."""
    with trial(rig) as life:
        life.learn()
        life.cache.forget()
        peer = rig.open(life.pools)
        for pool in life.pools:
            keys = sorted(life.watch.stored[pool.name])
            peer.remove(pool.name, keys)
            for number, key in enumerate(keys):
                garbage = memoryview(bytearray([number % 256]) * pool.value_bytes)
                peer.put(pool.name, [key], [garbage])
        peer.close()
        tell_lies(life)
        assert life.cache.figures.quarantined
        assert life.is_told("corrupt") and is_logged(caplog)
        until(lambda: life.cache.found_again(OLD[0]) == WHOLE, "it heals")
