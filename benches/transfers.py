"""`python -m benches.transfers`: how fast pages move between device and host pools on this CPU.

Question: what share of the speed of one contiguous copy is left when the same bytes are pages, in each host layout?
Not: what a GPU does, what queueing costs, or what a first touch of fresh memory costs; every page was touched before.

The rivals are one copy of as many bytes from one buffer to another, in memory of the same kind as the pools: by torch on all
its threads, which is the peer, as ours takes as many (up to four), and by numpy on one. All three take turns, a pause before
each, since torch's threads spin a few milliseconds after a copy and would hold a core that the next one needs; medians are
compared. `backup` and `load` are calls of a pair of pools for whole pages; `load_layers` is a load through a CpuEngine, from
`submit` until its last layer opens, and `1st layer` says after what share of that time the first one opened. `load` is the
system's load average, this process included: beyond the number of cores others were at work, and a row says little.
`scattered` pages are random on both sides; of `fresh` ones the targets are consecutive, as a free list gives them out that
nothing came back to. Last comes what a cache's `poll` costs when nothing moves.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Any

import numpy as np
import torch

from benches.machine import commit, machine
from unified_tree import Component, Point, Trailing
from unified_tree import Path as ComponentPath
from unified_tree.controllers import HostTier, PrefixCache, WritePolicy
from unified_tree.controllers.pools import (
    DevicePool,
    HostLayout,
    HostPool,
    PageFormat,
    PagePair,
    mha_format,
    mla_format,
    state_format,
)
from unified_tree.controllers.pools.cpu_memory import cpu_memory
from unified_tree.controllers.transfer_engines import CpuEngine, Transfer
from unified_tree.effect import Copy, EffectKind

PAGE_SIZE = 64
QUICK_LAYERS = 2
PAUSE_S = 0.015
OPERATIONS = ("backup", "load", "load_layers")
HEAD = (
    f"{'composition':<12}{'layout':<18}{'operation':<12}{'pages':<10}{'MiB':>6}{'GB/s':>7}"
    f"{'of torch':>10}{'min':>6}{'max':>6}{'of numpy':>10}{'1st layer':>11}{'load':>6}  answers"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """Formats by the number of pages that are moved of each."""

    name: str
    pages: dict[PageFormat, int]

    @property
    def moved_bytes(self) -> int:
        """Bytes of one operation."""
        return sum(page_format.page_bytes * pages for page_format, pages in self.pages.items())


def compositions(quick: bool) -> list[Composition]:
    """Llama-3.1-8B's KV, DeepSeek-V3's latents, and Qwen3-Next's KV with two of its states; few of all in quick mode."""

    def layers(ids: range) -> tuple[int, ...]:
        return tuple(ids)[:QUICK_LAYERS] if quick else tuple(ids)

    mha = mha_format("full", layer_ids=layers(range(32)), page_size=PAGE_SIZE, kv_heads=8, head_dim=128)
    mla = mla_format("full", layer_ids=layers(range(61)), page_size=PAGE_SIZE, latent_dim=576)
    full = mha_format("full", layer_ids=layers(range(3, 48, 4)), page_size=PAGE_SIZE, kv_heads=2, head_dim=256)
    linear = tuple(layer for layer in range(48) if layer % 4 != 3)[: QUICK_LAYERS if quick else None]
    state = state_format("mamba", layer_ids=linear, conv_shape=(8192, 3), state_shape=(32, 128, 128))
    return [
        Composition(name="mha-32", pages={mha: 8 if quick else 32}),
        Composition(name="mla-61", pages={mla: 15 if quick else 60}),
        Composition(name="mamba", pages={full: 16 if quick else 64, state: 2}),
    ]


class Subject:
    """The pools of one composition in one layout, twice as many pages as are moved, filled from a seed."""

    def __init__(self, composition: Composition, layout: HostLayout) -> None:
        self.counts = composition.pages
        self.pairs = [
            PagePair(DevicePool(page_format, 2 * pages), HostPool(page_format, 2 * pages, layout))
            for page_format, pages in composition.pages.items()
        ]
        random = np.random.default_rng(0)
        for pair in self.pairs:
            for part in pair.device.format.parts:
                words = pair.device.words(part.name)
                words.copy_(torch.from_numpy(random.integers(0, 256, words.nbytes, np.uint8)).view(words.dtype).view_as(words))
            every = np.arange(pair.device.page_count)
            pair.backup(every, random.permutation(every))
        self.engine = CpuEngine({pair.device.format.component: pair for pair in self.pairs})
        self.layer_ids = sorted({layer_id for pair in self.pairs for layer_id in pair.layer_ids})
        self.first_layer_ns: list[int] = []
        self._tickets = count()

    def ids(self, pages: str) -> list[tuple[Any, Any]]:
        """Sources and targets by pair, from a seed."""
        random = np.random.default_rng(1)
        chosen = []
        for pair in self.pairs:
            total, moved = pair.device.page_count, self.counts[pair.device.format]
            targets = np.arange(moved) if pages == "fresh" else random.permutation(total)[:moved]
            chosen.append((random.permutation(total)[:moved], targets))
        return chosen

    def operation(self, name: str, pages: str) -> Callable[[], None]:
        """What is measured."""
        chosen = list(zip(self.pairs, self.ids(pages), strict=True))

        def backup() -> None:
            for pair, (source, target) in chosen:
                pair.backup(source, target)

        def load() -> None:
            for pair, (source, target) in chosen:
                pair.load_layers(pair.layer_ids, source, target)

        copies = tuple(
            Copy(component=pair.device.format.component, source=source, target=target) for pair, (source, target) in chosen
        )

        def load_layers() -> None:
            start, ticket = perf_counter_ns(), next(self._tickets)
            self.engine.submit([Transfer(ticket=ticket, kind=EffectKind.LOAD, copies=copies)])
            self.engine.wait_layer(ticket, self.layer_ids[0])
            self.first_layer_ns.append(perf_counter_ns() - start)
            self.engine.wait_layer(ticket, self.layer_ids[-1])
            self.engine.poll()

        return {"backup": backup, "load": load, "load_layers": load_layers}[name]

    def answers(self, operation: str, pages: str) -> tuple[str, str]:
        """Digests of what was to be moved and of what lies at the targets, after clearing those and moving once more."""
        backup = operation == "backup"
        sources, targets = hashlib.sha256(), hashlib.sha256()
        for pair, (_, target) in zip(self.pairs, self.ids(pages), strict=True):
            for part in pair.device.format.parts:
                (pair.host if backup else pair.device).words(part.name)[:, target] = 0
        self.operation(operation, pages)()
        for pair, (source, target) in zip(self.pairs, self.ids(pages), strict=True):
            for part in pair.device.format.parts:
                device, host = pair.device.words(part.name), pair.host.words(part.name)
                sources.update((device if backup else host)[:, source].contiguous().numpy().data)
                targets.update((host if backup else device)[:, target].contiguous().numpy().data)
        return sources.hexdigest()[:12], targets.hexdigest()[:12]


def measure(moved_bytes: int, ours: Callable[[], None], rounds: int) -> dict[str, list[int]]:
    """Nanoseconds of ours and of the two contiguous copies, in turns after a warm-up."""
    source, target = cpu_memory(moved_bytes).fill_(1), cpu_memory(moved_bytes).fill_(0)
    rivals: dict[str, Callable[[], Any]] = {
        "ours": ours,
        "torch": lambda: target.copy_(source),
        "numpy": lambda: np.copyto(target.numpy(), source.numpy()),
    }
    times: dict[str, list[int]] = {name: [] for name in rivals}
    for run in rivals.values():
        run()
    for turn in range(rounds):
        for name in rivals if turn % 2 == 0 else reversed(rivals):
            sleep(PAUSE_S)
            start = perf_counter_ns()
            rivals[name]()
            times[name].append(perf_counter_ns() - start)
    return times


def rows(quick: bool, rounds: int) -> list[dict[str, Any]]:
    """Measure everything, printing a line each."""
    found = []
    for composition in compositions(quick):
        for layout in HostLayout:
            subject = Subject(composition, layout)
            for operation in OPERATIONS:
                for pages in ("scattered", "fresh"):
                    subject.first_layer_ns.clear()
                    times = measure(composition.moved_bytes, subject.operation(operation, pages), rounds)
                    row = row_of(composition, layout, operation, pages, times)
                    if subject.first_layer_ns:
                        row["first_layer"] = round(
                            statistics.median(subject.first_layer_ns) / statistics.median(times["ours"]), 4
                        )
                    expected, row["hash"] = subject.answers(operation, pages)
                    row["right"] = row["hash"] == expected
                    found.append(row)
                    print(line_of(row), flush=True)
            subject.engine.close()
    return found


def row_of(
    composition: Composition, layout: HostLayout, operation: str, pages: str, times: dict[str, list[int]]
) -> dict[str, Any]:
    """One object of the JSON file. `ratio` is ours to torch's contiguous copy, `ratio_numpy` to numpy's; more is faster."""
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    by_round = [theirs / ours for ours, theirs in zip(times["ours"], times["torch"], strict=True)]
    return {
        "composition": composition.name,
        "layout": layout.value,
        "operation": operation,
        "pages": pages,
        "moved_bytes": composition.moved_bytes,
        **{f"{name}_gb_per_s": round(composition.moved_bytes / median, 3) for name, median in medians.items()},
        "ratio": round(medians["torch"] / medians["ours"], 4),
        "ratio_min": round(min(by_round), 4),
        "ratio_max": round(max(by_round), 4),
        "ratio_numpy": round(medians["numpy"] / medians["ours"], 4),
        "rounds": len(by_round),
        "load": round(os.getloadavg()[0], 2),
    }


def line_of(row: dict[str, Any]) -> str:
    """One line of the table."""
    return (
        f"{row['composition']:<12}{row['layout']:<18}{row['operation']:<12}{row['pages']:<10}{row['moved_bytes'] >> 20:>6}"
        f"{row['ours_gb_per_s']:>7.1f}{row['ratio']:>10.2f}{row['ratio_min']:>6.2f}{row['ratio_max']:>6.2f}"
        f"{row['ratio_numpy']:>10.2f}{row.get('first_layer', ''):>11}{row['load']:>6.1f}"
        f"  {row['hash']}{'' if row['right'] else ' WRONG'}"
    )


def idle_tick_us(write_policy: WritePolicy, rounds: int) -> float:
    """What a `poll` costs when nothing moves, with three kinds of state; the median of rounds of a thousand."""
    kinds = (
        Component(name="full", coverage=ComponentPath()),
        Component(name="swa", coverage=Trailing(1023)),
        Component(name="mamba", coverage=Point()),
    )
    counts = {"full": 1000, "swa": 500, "mamba": 50}
    tier = HostTier(page_counts=counts, engine=CpuEngine({}), write_policy=write_policy)
    cache = PrefixCache(kinds, PAGE_SIZE, counts, host=tier)
    times = []
    for _ in range(rounds):
        start = perf_counter_ns()
        for _ in range(1000):
            cache.poll()
        times.append((perf_counter_ns() - start) / 1e6)
    cache.close()
    return statistics.median(times)


def main(arguments: list[str] | None = None) -> int:
    """Measure and report; 1 if bytes did not arrive as they were sent."""
    parser = argparse.ArgumentParser(prog="python -m benches.transfers", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="few layers and pages and one round, to see that it runs")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of turns")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    options = parser.parse_args(arguments)
    where = {"machine": f"{machine()}, torch {torch.__version__} on {torch.get_num_threads()} threads", "commit": commit()}
    print(f"machine  {where['machine']}\ncommit   {where['commit'] or 'unknown'}\n\n{HEAD}")
    found = rows(options.quick, 1 if options.quick else options.rounds)
    for policy in WritePolicy:
        print(f"a tick with nothing to move, {policy.value}: {idle_tick_us(policy, options.rounds):.2f} µs")
    if options.json is not None:
        options.json.write_text(json.dumps([row | where for row in found], indent=1) + "\n")
        print(f"\nwrote {options.json}")
    return 0 if all(row["right"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
