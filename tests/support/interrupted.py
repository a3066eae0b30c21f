"""Interrupts a call at each of its lines, as a Ctrl-C or a debugger may: a world is built anew for each line, from one seed.

A line is one of the library's own that the call executes. Compiled modules have none; there only what is interpreted is tried.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import numpy as np

import unified_tree
from unified_tree import Component, Key, LeaseError, OutOfPagesError, Tier, TransferError
from unified_tree.controllers import HostTier, Lease, PrefixCache, WritePolicy
from unified_tree.controllers.testing import SimulatedEngine
from unified_tree.controllers.transfer_engines import VirtualClock

HOME = Path(unified_tree.__file__).parent
SOURCES = tuple(str(HOME / name) for name in ("controllers/cache", "controllers/host", "locks"))
"""What is interrupted: all that a cache does around the tree, and its locks. A change of the tree is one step, as a call of a
transfer engine is: compiled, nothing interrupts the former.
"""
PAGE_SIZE = 2
Line = tuple[str, int]


class Stop:
    """Raises at one line, the first time that it is reached; without one notes all lines, in the order in which they come.

    Attributes:
        lines: those that were reached.
        raised: whether it has raised.
    """

    def __init__(self, line: Line | None = None) -> None:
        self._line = line
        self.lines: dict[Line, None] = {}
        self.raised = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if self.raised or not name.startswith(SOURCES):
            return None
        if event == "line":
            here = (name, frame.f_lineno)
            if self._line is None:
                self.lines[here] = None
            elif here == self._line:
                self.raised = True
                raise KeyboardInterrupt(f"{name}:{frame.f_lineno}")
        return self

    def run(self, call: Callable[[], object]) -> None:
        """Make a call, and say of it no more than whether it was interrupted."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        except (KeyboardInterrupt, OutOfPagesError, LeaseError, TransferError):
            pass
        finally:
            sys.settrace(before)


class World:
    """A small cache in the middle of its life, the same for the same kinds and seed.

    Attributes:
        calls: by name, the calls to interrupt; each is made once in a world's life.
    """

    def __init__(self, kinds: list[Component], seed: str) -> None:
        rng = Random(seed)
        self.clock = VirtualClock()
        host = None
        if rng.random() < 0.7:
            counts = {c.name: rng.choice([6, 24]) for c in kinds}
            engine = SimulatedEngine(rng.randrange(100), self.clock)
            host = HostTier(page_counts=counts, engine=engine, write_policy=rng.choice(list(WritePolicy)), selective_hits=1)
        counts = {c.name: rng.choice([8, 12, 20]) // (1 if c.required else 4) for c in kinds if c.shares is None}
        policy = rng.choice(["density", "density", "lru", "cost", "lfu"])
        self.cache = PrefixCache(kinds, PAGE_SIZE, counts, host=host, policy=policy, draft_tokens=2, time_s=lambda: 1.0)
        self.batch = self.cache.batch(max_leases=4, max_tokens=64)
        self.leases: list[Lease] = []
        self._texts: list[list[int]] = [[]]
        for _ in range(rng.randrange(3, 9)):
            self._live(rng)
        self._ends = rng.random()
        self._rng = rng
        self.calls = self._calls(rng)

    def _text(self, rng: Random) -> list[int]:
        old = rng.choice(self._texts)
        return old[: rng.choice([len(old), rng.randrange(len(old) + 1)])] + [
            rng.randrange(3) for _ in range(rng.randrange(1, 9))
        ]

    def _live(self, rng: Random) -> None:
        """A request comes, and most end."""
        tokens = self._text(rng)
        try:
            lease = self.cache.acquire(Key(tokens), reserve_tokens=len(tokens))
        except OutOfPagesError:
            return
        self._texts.append(tokens)
        try:
            self.cache.commit(lease, len(tokens), dict(lease.save_pages))
            if rng.random() < 0.5:
                self.cache.allocate(lease, len(tokens) + rng.randrange(1, 5))
        except (TransferError, OutOfPagesError):
            pass
        if rng.random() < 0.6 or lease.failure is not None:
            self.cache.release(lease)
        else:
            self.leases.append(lease)
            if rng.random() < 0.7 and not lease.is_loading:
                self.batch.add(lease)
        if rng.random() < 0.5:
            self.clock.advance(rng.choice([0, 100_000, 2_000_000]))
            self.cache.poll()

    def _calls(self, rng: Random) -> dict[str, Callable[[], object]]:
        cache, batch, tokens = self.cache, self.batch, self._text(rng)
        calls: dict[str, Callable[[], object]] = {
            "acquire": lambda: cache.acquire(Key(tokens)),
            "acquire with room": lambda: cache.acquire(Key(tokens), [2, 4], reserve_tokens=len(tokens) + 4),
            "acquire to fill": lambda: cache.acquire_to_fill(Key(tokens), len(tokens)),
            "evict": lambda: cache.evict(dict.fromkeys(cache.device.allocators, 3)),
            "poll": self._poll,
            "drain": cache.drain,
            "flush": cache.flush,
            "invalidate": lambda: cache.invalidate(rng.choice([None, ""])),
            "close": cache.close,
        }
        if not self.leases:
            return calls
        lease = rng.choice(self.leases)
        longer = lease.length + rng.randrange(1, 7)
        single = next((each for each in self.leases if each.row is None), None)
        inside = next((each for each in self.leases if each.row is not None), None)
        calls |= {
            "allocate": lambda: cache.allocate(lease, longer),
            "give up": lambda: cache.allocate(lease, longer, without=cache.layout.can_give_up),
            "advance": lambda: cache.advance(lease, lease.length),
            "commit": lambda: self._commit(lease),
            "preempt": lambda: self._commit(lease, preempts=True),
            "truncate": lambda: cache.truncate(lease, max(lease.committed, lease.length - 3)),
            "release": lambda: cache.release(lease),
            "batch allocate": lambda: batch.allocate(rng.randrange(1, 6)),
            "batch advance": batch.advance,
            "batch truncate": lambda: batch.truncate(
                np.array([max(e.committed, e.length - 2) for e in batch.leases], np.int64)
            ),
        }
        if single is not None and not single.is_loading:
            calls["batch add"] = lambda: batch.add(single)
        if inside is not None:
            calls["batch remove"] = lambda: batch.remove(inside)
            calls["batch release"] = lambda: cache.release(inside)
        return calls

    def _commit(self, lease: Lease, *, preempts: bool = False) -> None:
        length = min(lease.length, lease.known_tokens)
        output = np.arange(lease.length - length) % 3
        given: Any = length if not output.size else output
        options: dict[str, Any] = {} if not output.size else {"begin": length}
        states = {at: page for at, page in lease.save_pages.items() if at <= lease.length // PAGE_SIZE * PAGE_SIZE}
        if preempts:
            self.cache.preempt(
                lease, length, {at: page for at, page in states.items() if at <= length // PAGE_SIZE * PAGE_SIZE}
            )
        else:
            self.cache.commit(lease, given, states, **options)

    def _poll(self) -> None:
        self.clock.advance(5_000_000)
        self.cache.poll()

    def wrongs(self) -> list[str]:
        """What is wrong after everything that is held was released, and all pages were asked for."""
        cache, found = self.cache, []
        for lease in cache.leases:
            try:
                cache.release(lease)
            except Exception as error:
                found.append(f"release: {error!r}")
        for lease in self.leases:
            try:
                cache.release(lease)
                found.append(f"{lease} could be released a second time")
            except LeaseError:
                pass
            except Exception as error:
                found.append(f"second release: {error!r}")
        try:
            cache.drain()
            found += [str(violation) for violation in cache.tree.check()]
            found += self._not_home()
        except Exception as error:
            found.append(f"after: {error!r}")
        return found

    def _not_home(self) -> list[str]:
        cache = self.cache
        found = [f"{receipt} is held" for receipt in cache.tree.locks.open.values()]
        if self.batch.rows.size:
            found.append(f"rows {self.batch.rows.tolist()} are taken")
        tiers = {Tier.DEVICE: cache.device} | ({} if cache.controller is None else {Tier.HOST: cache.controller.host})
        for tier, pages in tiers.items():
            for name, allocator in pages.allocators.items():
                pool = cache.tree.pool(name, tier)
                if allocator.used_pages != pool.used_pages:
                    found.append(f"{name} on {tier.name}: {allocator.used_pages} used, {pool.used_pages} of the tree")
                cache.evict({name: allocator.page_count or 0}, tier)
        for tier, pages in tiers.items():
            for name, allocator in pages.allocators.items():
                count = allocator.page_count or 0
                if allocator.free_pages != count:
                    found.append(f"{name} on {tier.name}: {count - allocator.free_pages} pages are lost")
                elif sorted(pages.allocate_all({name: count})[name].tolist()) != list(range(count)):
                    found.append(f"{name} on {tier.name}: a page is there twice")
        return found
