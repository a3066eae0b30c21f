"""`python -m benches.lmcache`: LMCache as a prefix linker, a daemon that this starts and ends, and an engine in this process.

Question: how fast does it store device pages and fill them, and what does a look-up cost, by its own chunks of tokens?
Not: what a network, a disk or a GPU would leave of it; the pools are memory of this machine, and both sides share its cores.
Nothing here checks what LMCache wrote but this bench: there are no checksums on the device.

Both take turns. Every round stores a prompt that is new, looks it up, looks up one that is not there, and retrieves into other
pages, which are then compared with what was stored.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

from benches.contestants import ROOT
from benches.rounds import options_of, told, written
from unified_tree import Component
from unified_tree import Path as EveryToken
from unified_tree.components import Composition
from unified_tree.controllers.pools import DevicePool, PageFormat, Part
from unified_tree.controllers.prefix_linker import LinkedPool, PrefixLinker, Progress, Span, linked_pools
from unified_tree.declare.page_format import WHOLE

sys.path.append(str(ROOT / "tests" / "support"))
PAGE_TOKENS = 64
CHUNK_TOKENS = 256
LAYERS = 8
TOKEN_BYTES = LAYERS * 2 * 8 * 128 * 2
"""K and V of 8 heads of 128 in bfloat16, in every layer."""
CASES = (1024, 8192)
"""Tokens of a prompt."""
QUICK_CASES = (512,)
HEAD = (
    f"{'linker':<12}{'prompt':>8}{'MiB':>6}{'store GiB/s':>14}{'retrieve GiB/s':>16}{'us a key, there':>17}{'not there':>11}"
    "  right"
)


class Contestant:
    """A linker over a pool of its own, with room for two prompts: one half is stored from, the other retrieved into."""

    def __init__(self, name: str, tokens: int, make: Callable[[Sequence[LinkedPool]], PrefixLinker], *, share: bool) -> None:
        self.name = name
        self.pages = tokens // PAGE_TOKENS
        parts = (Part("k", "bfloat16", (8, 128)), Part("v", "bfloat16", (8, 128)))
        page_format = PageFormat(
            component="full", layer_ids=tuple(range(LAYERS)), parts=parts, slots_per_page=PAGE_TOKENS, shard=WHOLE
        )
        pools = {"full": DevicePool(page_format, 2 * self.pages)}
        if share:
            from unified_tree.controllers.adapters.lmcache import share_pools

            share_pools(pools)
        component = Component(name="full", coverage=EveryToken(), format=page_format)
        self.pools = linked_pools(Composition(name="bench", page_size=PAGE_TOKENS, components=(component,)), pools)
        self.size_bytes = pools["full"].size_bytes // 2
        for tensor in self.pools[0].tensors:
            tensor.copy_(torch.randint(0, 256, tensor.shape, dtype=torch.uint8))
        self.linker = make(self.pools)
        self.times: dict[str, list[int]] = {"store": [], "there": [], "absent": [], "retrieve": []}
        self.right = True
        self._asked = 0

    def turn(self, tokens: np.ndarray[Any, np.dtype[np.int64]], absent: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """One round."""
        source, target = np.arange(self.pages), np.arange(self.pages, 2 * self.pages)
        for number, tensor in enumerate(self.pools[0].tensors):
            tensor[: self.pages, 0, 0] = len(self.times["store"]) + number & 0xFF
            tensor[self.pages :] = 0
        name = self._name()
        self._timed("store", lambda: self.linker.store(name, self._span(tokens, source)), name)
        found = 0
        deadline = time.monotonic() + 5
        while found < tokens.size and time.monotonic() < deadline:  # it may be found a little later than stored
            request, found, taken = self._looked_up(tokens)
            if found < tokens.size:
                self.linker.release(request)
        self.times["there"].append(taken)
        self._timed("retrieve", lambda: self.linker.retrieve(request, self._span(tokens, target)), request)
        self.right &= all(bool(torch.equal(t[: self.pages], t[self.pages :])) for t in self.pools[0].tensors)
        missing, found, taken = self._looked_up(absent)
        self.times["absent"].append(taken)
        self.right &= found == 0
        self.linker.release(missing)

    def row(self, tokens: int) -> dict[str, Any]:
        """What came out, the first round left out."""
        took = {what: statistics.median(times[1:]) for what, times in self.times.items()}
        keys = tokens // CHUNK_TOKENS
        return {
            "linker": self.name,
            "prompt_tokens": tokens,
            "size_bytes": self.size_bytes,
            "store_gib_per_s": round(self.size_bytes / took["store"] * 1e9 / 2**30, 3),
            "retrieve_gib_per_s": round(self.size_bytes / took["retrieve"] * 1e9 / 2**30, 3),
            "lookup_us_per_key": round(took["there"] / keys / 1e3, 1),
            "absent_us_per_key": round(took["absent"] / keys / 1e3, 1),
            "lookup_ms": round(took["there"] / 1e6, 2),
            "rounds": len(self.times["store"]) - 1,
            "load": round(os.getloadavg()[0], 2),
            "right": self.right,
        }

    def _span(self, tokens: np.ndarray[Any, np.dtype[np.int64]], ids: np.ndarray[Any, np.dtype[np.int64]]) -> Span:
        return Span(tokens=tokens, salt="bench", begin=0, end=tokens.size, pages={"full": ids})

    def _name(self) -> str:
        self._asked += 1
        return f"{self.name} {self._asked}"

    def _looked_up(self, tokens: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[str, int, int]:
        request, start = self._name(), perf_counter_ns()
        self.linker.lookup(request, tokens, "bench")
        while (found := self.linker.found(request)) is None:
            time.sleep(0.0001)
        return request, found, perf_counter_ns() - start

    def _timed(self, what: str, begin: Callable[[], None], name: str) -> None:
        start = perf_counter_ns()
        begin()
        while self.linker.progress(name) is Progress.RUNNING:
            time.sleep(0.0001)
        self.times[what].append(perf_counter_ns() - start)
        self.right &= self.linker.progress(name) is Progress.DONE
        self.linker.release(name)


@contextmanager
def contestants(tokens: int, prompts: int) -> Iterator[list[Contestant]]:
    """Both, each with room for all prompts and a half more: what is full may refuse a prompt while it evicts."""
    import lmcache_server

    from unified_tree.controllers.adapters.lmcache import open_daemon, open_in_process

    memory_bytes = max(1 << 30, prompts * tokens * TOKEN_BYTES * 3 // 2)
    with ExitStack() as opened:
        server = opened.enter_context(lmcache_server.Lmcache(CHUNK_TOKENS, l1_gib=memory_bytes / 2**30))
        made = [
            Contestant("daemon", tokens, lambda pools: open_daemon(pools, daemon=server.address, model="bench"), share=True),
            Contestant(
                "in process",
                tokens,
                lambda pools: open_in_process(pools, model="bench", chunk_tokens=CHUNK_TOKENS, memory_bytes=memory_bytes),
                share=False,
            ),
        ]
        for one in made:
            opened.callback(one.linker.close)
        yield made


def rows(cases: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Measure everything, printing a line each."""
    found = []
    noise = np.random.default_rng(1)
    for tokens in cases:
        with contestants(tokens, rounds + 1) as made:
            for _ in range(rounds + 1):
                for one in made:
                    one.turn(noise.integers(0, 200_000, tokens), noise.integers(0, 200_000, tokens))
            for one in made:
                row = one.row(tokens)
                found.append(row)
                print(line_of(row), flush=True)
    return found


def line_of(row: dict[str, Any]) -> str:
    """One line of the table."""
    return (
        f"{row['linker']:<12}{row['prompt_tokens']:>8}{row['size_bytes'] >> 20:>6}{row['store_gib_per_s']:>14.2f}"
        f"{row['retrieve_gib_per_s']:>16.2f}{row['lookup_us_per_key']:>17.1f}{row['absent_us_per_key']:>11.1f}"
        f"  {'yes' if row['right'] else 'WRONG'}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure and report; 1 if bytes did not come back as they were stored, 2 where LMCache cannot run."""
    options = options_of("lmcache", __doc__, quick="one short prompt and two rounds", rounds=15).parse_args(arguments)
    import lmcache_server

    reason = lmcache_server.why_not()
    if reason is not None:
        print(f"lmcache: {reason}", file=sys.stderr)
        return 2
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
    where = told(HEAD)
    found = rows(QUICK_CASES if options.quick else CASES, 2 if options.quick else options.rounds)
    return written(found, where, options.json)


if __name__ == "__main__":
    sys.exit(main())
