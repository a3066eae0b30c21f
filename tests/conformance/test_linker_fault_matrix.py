"""The fault matrix of LMCache: a cache that is linked to a real daemon while that is not well.

What holds is what `test_fault_matrix` says of stores, with these differences. The scheduler's thread itself asks the daemon,
and never waits for an answer: here requests live while the daemon stands still, and its linker's own time-outs are so long
that who waited for one would be barked at. What the daemon writes into device pages is as good as its own word (a page there
bears no seal), so of lies only the one is tried that can be seen: it says that it has what it has not.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lmcache_server
import numpy as np
import pytest
from leaks import Holdings, check_nothing_leaks
from lmcache_server import CHUNK_TOKENS, Lmcache
from numpy.typing import NDArray
from watchdog import Watchdog, until

from unified_tree import Key, Tier
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.adapters.lmcache import DaemonLinker, open_daemon
from unified_tree.controllers.prefix_linker import LinkedPrefixes
from unified_tree.controllers.testing.linked_tensors import COMPONENTS, PAGE, LinkedTensors
from unified_tree.terms.errors import LinkError

lmcache_server.skip_unless_it_runs()
pytestmark = lmcache_server.QUIET

PAGES = 120
WAIT_TICKS = 16
FOUND = 4 * CHUNK_TOKENS
MODELS = itertools.count()
Tokens = NDArray[np.int64]


@pytest.fixture(scope="module")
def tensors() -> LinkedTensors:
    return LinkedTensors(PAGES, share=True)


@pytest.fixture
def daemon(running: Lmcache) -> Lmcache:
    if not running.is_running:
        running.start()
    return running


@pytest.fixture(scope="module")
def running(tensors: LinkedTensors) -> Iterator[Lmcache]:
    with Lmcache(l1_gib=0.0005) as running:
        with Life(running, tensors, "first") as first:
            first.learn()  # the client keeps some threads and files for good
        yield running


def prompt(number: int) -> Tokens:
    return np.random.default_rng(number).integers(0, 50_000, FOUND + 2)


class Life:
    """A cache, its link to the daemon, and a scheduler whose clock moves by a tick a step while `time_passes`."""

    def __init__(self, daemon: Lmcache, tensors: LinkedTensors, model: str, **settings: Any) -> None:
        self.tensors = tensors
        self.now = 0
        self.time_passes = False
        self.cache = PrefixCache(COMPONENTS, PAGE, {"full": PAGES})
        given = {"answer_timeout_s": 1.0, "heartbeat_s": 0.1, "drain_timeout_s": 0.3} | settings
        self.linker: DaemonLinker = open_daemon(tensors.linked, daemon=daemon.address, model=model, **given)
        self.link = LinkedPrefixes(
            self.cache, self.linker, tensors.linked, weights_version="v1", wait_s=WAIT_TICKS, clock=lambda: self.now
        )
        self._fresh = itertools.count(100)

    def tick(self) -> None:
        self.now += self.time_passes
        if not self.time_passes:
            time.sleep(0.0005)
        self.link.poll()
        self.cache.poll()

    def serve(self, tokens: Tokens) -> int:
        """A request from its arrival to its release, and one that is cancelled; how much was cached, every byte compared."""
        self.link.lookup("one", Key(tokens))
        self.link.lookup("cancelled", Key(tokens[::-1].copy()))
        self.tick()
        self.link.release("cancelled")
        ticks = 1
        while not self.link.is_ready("one"):
            self.tick()
            ticks += 1
            assert not self.time_passes or ticks <= WAIT_TICKS + 2, "a request waits longer than its time-out"
        lease = self.cache.acquire(Key(tokens), request="one")
        cached = lease.cached_tokens
        assert self.tensors.holds(tokens, "", lease.pages("full")[: cached // PAGE])
        self.cache.allocate(lease, tokens.size)
        first = lease.compute_from // PAGE
        self.tensors.write(tokens, "", lease.pages("full")[first : tokens.size // PAGE], first)
        self.cache.commit(lease, tokens)
        self.link.store("one", lease)
        self.cache.release(lease)
        self.link.release("one")
        self.tick()
        return cached

    def forget(self) -> None:
        tree = self.cache.tree
        self.cache.device.free_evicted(tree.evict({"full": tree.pool("full").used_pages}, Tier.DEVICE))

    def settle(self) -> None:
        def is_quiet() -> bool:
            self.tick()
            pool = self.cache.stats().pools["full"]
            return not (pool.leased or pool.protected)

        until(is_quiet, "all transfers end")

    def learn(self) -> Tokens:
        """A prompt is stored and comes back; so the daemon is used."""
        tokens = [prompt(next(self._fresh))]

        def is_found() -> bool:
            if not self.linker.is_healthy or not self.serve(tokens[0]):
                tokens[0] = prompt(next(self._fresh))
                self.serve(tokens[0])
            self.settle()
            self.forget()
            before = self.link.counters.retrieved_tokens
            self.serve(tokens[0])
            return self.link.counters.retrieved_tokens - before == FOUND

        until(is_found, "the daemon is used")
        return tokens[0]

    def check_home(self) -> None:
        """Nothing is locked, and every page comes home."""
        assert self.cache.tree.check() == []
        self.forget()
        assert not self.cache.stats().pools["full"].used

    def __enter__(self) -> Life:
        return self

    def __exit__(self, *error: object) -> None:
        self.link.close()
        self.cache.close()


@contextmanager
def life(daemon: Lmcache, tensors: LinkedTensors, **settings: Any) -> Iterator[Life]:
    """A life, and what must hold at its end."""
    before = Holdings()
    with Watchdog(daemon.resume, lambda: "a call of the link"), Life(daemon, tensors, f"m{next(MODELS)}", **settings) as made:
        yield made
        made.settle()
        made.link.close()
        made.check_home()
    check_nothing_leaks(before)


def test_absent_at_start(daemon: Lmcache, tensors: LinkedTensors) -> None:
    before = Holdings()
    absent = Lmcache()
    with pytest.raises(LinkError, match="no answer"):
        Life(absent, tensors, "absent", answer_timeout_s=0.2)
    absent.__exit__(None, None, None)
    check_nothing_leaks(before)
    with life(daemon, tensors) as one:
        one.learn()


def test_frozen_and_thawed(daemon: Lmcache, tensors: LinkedTensors) -> None:
    """Nobody waits for it, though its answers may take as long as they like; and what it had begun it ends."""
    with life(daemon, tensors, answer_timeout_s=300.0, heartbeat_s=300.0) as one:
        old = one.learn()
        one.forget()
        name = "begun"
        one.link.lookup(name, Key(old))
        until(lambda: one.linker.found(one.link._requests[name].name) is not None, "it is found")
        daemon.pause()
        one.time_passes = True
        one.link.poll()
        assert one.cache.stats().pools["full"].leased == FOUND // PAGE, "a retrieve is under way"
        for number in range(5):
            assert one.serve(prompt(number)) == 0
        assert one.serve(old) == 0
        assert one.link.counters.retrieves_late == 1
        one.link.release(name)
        daemon.resume()
        one.time_passes = False
        one.settle()
        one.learn()


def test_closed_while_it_is_frozen(daemon: Lmcache, tensors: LinkedTensors) -> None:
    """Closing ends, and says what may still be written to; here nothing, for nothing had been begun."""
    with life(daemon, tensors) as one:
        one.learn()
        one.settle()
        daemon.pause()
        one.time_passes = True
        until(lambda: not one.linker.is_healthy, "it is noticed")
        one.forget()
        assert one.serve(prompt(1)) == 0
        one.link.close()
        daemon.resume()


def test_slow(daemon: Lmcache, tensors: LinkedTensors) -> None:
    """Answers that come after somebody's time-out give their locks back, and what they brought is for whoever is next."""
    with life(daemon, tensors, answer_timeout_s=300.0, heartbeat_s=300.0) as one:
        old = one.learn()
        for _ in range(3):
            one.forget()
            daemon.pause()
            one.time_passes = True
            assert one.serve(old) == 0
            daemon.resume()
            one.time_passes = False
            one.settle()
        one.learn()


def test_it_says_that_it_has_what_it_has_not(daemon: Lmcache, tensors: LinkedTensors) -> None:
    with life(daemon, tensors) as one:
        old = one.learn()
        one.forget()
        one.link.lookup("one", Key(old))
        until(lambda: one.linker.found(one.link._requests["one"].name) == FOUND, "it is found")
        daemon.clear()
        one.link.poll()
        while not one.link.is_ready("one"):
            one.tick()
        assert one.link.counters.retrieves_failed == 1
        with one.cache.acquire(Key(old)) as lease:
            assert lease.cached_tokens == 0
        one.link.release("one")
        one.learn()


def test_full(daemon: Lmcache, tensors: LinkedTensors) -> None:
    """It evicts, or takes nothing more; what is found all the same is right."""
    with life(daemon, tensors) as one:
        found = 0
        for number in range(60):
            one.serve(prompt(1000 + number))
            one.settle()
            one.forget()
        for number in range(60):
            before = one.link.counters.retrieved_tokens
            one.serve(prompt(1000 + number))
            found += one.link.counters.retrieved_tokens > before
            one.settle()
            one.forget()
        assert found < 60
        one.learn()


def test_killed_and_restarted(daemon: Lmcache, tensors: LinkedTensors) -> None:
    with life(daemon, tensors) as one:
        old = one.learn()
        daemon.kill()
        one.time_passes = True
        one.forget()
        assert one.serve(old) == 0
        one.serve(prompt(1))
        until(lambda: not one.linker.is_healthy, "it is noticed")
        one.settle()  # a store that it never read has failed, so its pages can go
        one.forget()
        assert one.serve(old) == 0
        one.time_passes = False
        daemon.start()
        one.learn()
        daemon.kill()
        one.serve(prompt(2))
