"""`python -m benches.transfers`: how fast pages move between device and host pools, on this CPU or a GPU (`--device cuda`).

Question: what share of the speed of one contiguous copy is left when the same bytes are pages, in each host layout?
Not: what queueing costs, or what a first touch of fresh memory costs; every page was touched before.

The rivals are one copy of as many bytes from one buffer to another, in memory of the same kind as the pools: by torch on all
its threads, which is the peer, as ours takes as many (up to four), and by numpy on one. All three take turns, a pause before
each, since torch's threads spin a few milliseconds after a copy and would hold a core that the next one needs; medians are
compared. `backup` and `load` are calls of a pair of pools for whole pages; `load_layers` is a load through a CpuEngine, from
`submit` until its last layer opens, and `1st layer` says after what share of that time the first one opened. `load` is the
system's load average, this process included: beyond the number of cores others were at work, and a row says little.
`scattered` pages are random on both sides; of `fresh` ones the targets are consecutive, as a free list gives them out that
nothing came back to. Last comes what a cache's `poll` costs when nothing moves.

On a GPU the rivals are one copy of pinned memory by the GPU's copy engine (`torch`), and torch's index kernels, which gather
and scatter the same pages (`other`, which is numpy on a CPU); a load goes through a CudaEngine. `call µs` is how long a call
holds the calling thread. `benches.beside` measures what a model pays meanwhile.

Lines below the table: the first composition in a device memory of one budget, with a host pool and with a host tier of one
budget (every page went there and came back before), to one contiguous copy; and, on a GPU, vLLM's blocks.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import perf_counter_ns, sleep
from typing import Any

import numpy as np
import torch

from benches.machine import machine
from benches.rounds import options_of, told, written
from unified_tree import Component, Point, Trailing
from unified_tree import Path as ComponentPath
from unified_tree.components import Composition as ModelComposition
from unified_tree.controllers import HostTier, PrefixCache, WritePolicy
from unified_tree.controllers.adapters.vllm.block_group import BlockGroup
from unified_tree.controllers.adapters.vllm.block_pages import BlockPages
from unified_tree.controllers.adapters.vllm.messages import PageCopies
from unified_tree.controllers.pools import (
    ArenaPair,
    BlockArena,
    BlockLayout,
    DevicePool,
    HostArena,
    HostLayout,
    HostPool,
    PageFormat,
    PageMover,
    PagePair,
    StagedPair,
    mha_format,
    mla_format,
    state_format,
)
from unified_tree.controllers.pools.copier import CopyPages, copy_by_kernels
from unified_tree.controllers.pools.cpu_memory import cpu_memory
from unified_tree.controllers.transfer_engines import CpuEngine, CudaEngine, Transfer, TransferEngine, cuda_lanes
from unified_tree.controllers.transfer_engines.schedule import step_blocks
from unified_tree.nodes.effect import Copy, EffectKind

PAGE_SIZE = 64
QUICK_LAYERS = 2
PAUSE_S = 0.015
OPERATIONS = ("backup", "load", "load_layers")
OTHERS = ("numpy", "index")
HEAD = (
    f"{'composition':<12}{'layout':<18}{'operation':<12}{'pages':<10}{'MiB':>6}{'GB/s':>7}"
    f"{'of torch':>10}{'min':>6}{'max':>6}{'of other':>10}{'1st layer':>11}{'load':>6}{'call µs':>9}  answers"
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


def compositions(quick: bool, device: str) -> list[Composition]:
    """Llama-3.1-8B's KV, DeepSeek-V3's latents, and Qwen3-Next's KV with two of its states; few of all in quick mode. On a GPU
    the first in pages of a token, too.
    """

    def layers(ids: range) -> tuple[int, ...]:
        return tuple(ids)[:QUICK_LAYERS] if quick else tuple(ids)

    mha, tokens = (
        mha_format("full", layer_ids=layers(range(32)), page_size=size, kv_heads=8, head_dim=128) for size in (PAGE_SIZE, 1)
    )
    mla = mla_format("full", layer_ids=layers(range(61)), page_size=PAGE_SIZE, latent_dim=576)
    full = mha_format("full", layer_ids=layers(range(3, 48, 4)), page_size=PAGE_SIZE, kv_heads=2, head_dim=256)
    linear = tuple(layer for layer in range(48) if layer % 4 != 3)[: QUICK_LAYERS if quick else None]
    state = state_format("mamba", layer_ids=linear, conv_shape=(8192, 3), state_shape=(32, 128, 128))
    found = [
        Composition(name="mha-32", pages={mha: 8 if quick else 32}),
        Composition(name="mla-61", pages={mla: 15 if quick else 60}),
        Composition(name="mamba", pages={full: 16 if quick else 64, state: 2}),
    ]
    if device != "cpu":
        found.append(Composition(name="mha-32/1", pages={tokens: 512 if quick else 2048}))
    return found


class Subject:
    """The pools of one composition in one layout, twice as many pages as are moved, filled from a seed.

    Args:
        copy_pages: what copies; None for the library's choice.
    """

    def __init__(
        self, composition: Composition, layout: HostLayout, device: str = "cpu", copy_pages: CopyPages | None = None
    ) -> None:
        self.counts = composition.pages
        self.device = device
        pin = device != "cpu"
        self.pairs = [
            PagePair(DevicePool(page_format, 2 * pages, device), HostPool(page_format, 2 * pages, layout, pin), copy_pages)
            for page_format, pages in composition.pages.items()
        ]
        random = np.random.default_rng(0)
        for pair in self.pairs:
            for part in pair.device.format.parts:
                words = pair.device.words(part.name)
                words.copy_(
                    torch.from_numpy(random.integers(0, 256, words.nbytes, np.uint8)).view(words.dtype).view(words.shape)
                )
            every = np.arange(pair.device.page_count)
            pair.backup(every, random.permutation(every))
        movers = {pair.device.format.component: pair for pair in self.pairs}
        self.engine: TransferEngine = CpuEngine(movers)
        if pin:
            self.engine = CudaEngine(
                movers, cuda_lanes(device), chunk_blocks=step_blocks({kept.component: kept for kept in composition.pages})
            )
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
            if self.device != "cpu":
                torch.cuda.current_stream().synchronize()
            self.first_layer_ns.append(perf_counter_ns() - start)
            self.engine.wait_layer(ticket, self.layer_ids[-1])
            wait(self.device)
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
        wait(self.device)
        for pair, (source, target) in zip(self.pairs, self.ids(pages), strict=True):
            for part in pair.device.format.parts:
                device, host = pair.device.words(part.name), pair.host.words(part.name)
                sources.update((device if backup else host)[:, source].cpu().contiguous().numpy().data)
                targets.update((host if backup else device)[:, target].cpu().contiguous().numpy().data)
        return sources.hexdigest()[:12], targets.hexdigest()[:12]


def wait(device: str) -> None:
    """Until all that a GPU was given is done."""
    if device != "cpu":
        torch.cuda.synchronize()


def rivals(
    composition: Composition, operation: str, pages: str, layout: HostLayout, device: str
) -> dict[str, Callable[[], Any]]:
    """What ours is compared with, by name: first one contiguous copy."""
    size = composition.moved_bytes
    if device == "cpu":
        source, target = cpu_memory(size).fill_(1), cpu_memory(size).fill_(0)
        return {"torch": lambda: target.copy_(source), "numpy": lambda: np.copyto(target.numpy(), source.numpy())}
    host, held = torch.ones(size, dtype=torch.uint8).pin_memory(), torch.zeros(size, dtype=torch.uint8, device=device)
    into, out_of = (host, held) if operation == "backup" else (held, host)
    gathers = Subject(composition, layout, device, copy_by_kernels).operation(operation, pages)
    return {"torch": lambda: into.copy_(out_of, non_blocking=True), "index": gathers}


def measure(
    ours: Callable[[], None], others: dict[str, Callable[[], Any]], rounds: int, device: str
) -> tuple[dict[str, list[int]], list[int]]:
    """Nanoseconds of ours and of the others, in turns after a warm-up; and those that a call of ours held the thread."""
    contestants = {"ours": ours, **others}
    times: dict[str, list[int]] = {name: [] for name in contestants}
    calls = []
    for run in contestants.values():
        run()
        wait(device)
    for turn in range(rounds):
        for name in contestants if turn % 2 == 0 else reversed(contestants):
            sleep(PAUSE_S)
            start = perf_counter_ns()
            contestants[name]()
            called = perf_counter_ns()
            wait(device)
            times[name].append(perf_counter_ns() - start)
            if name == "ours":
                calls.append(called - start)
    return times, calls


def rows(quick: bool, rounds: int, device: str) -> list[dict[str, Any]]:
    """Measure everything, printing a line each."""
    found = []
    for composition in compositions(quick, device):
        for layout in HostLayout:
            subject = Subject(composition, layout, device)
            for operation in OPERATIONS:
                for pages in ("scattered", "fresh"):
                    subject.first_layer_ns.clear()
                    others = rivals(composition, operation, pages, layout, device)
                    times, calls = measure(subject.operation(operation, pages), others, rounds, device)
                    row = row_of(composition, layout, operation, pages, times)
                    if operation != "load_layers":
                        row["call_us"] = round(statistics.median(calls) / 1000)
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
    """One object of the JSON file. `ratio` is ours to torch's contiguous copy, `ratio_numpy` and `ratio_index` to that of
    others; more is faster.
    """
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
        **{f"ratio_{name}": round(medians[name] / medians["ours"], 4) for name in OTHERS if name in medians},
        "rounds": len(by_round),
        "load": round(os.getloadavg()[0], 2),
    }


def line_of(row: dict[str, Any]) -> str:
    """One line of the table."""
    return (
        f"{row['composition']:<12}{row['layout']:<18}{row['operation']:<12}{row['pages']:<10}{row['moved_bytes'] >> 20:>6}"
        f"{row['ours_gb_per_s']:>7.1f}{row['ratio']:>10.2f}{row['ratio_min']:>6.2f}{row['ratio_max']:>6.2f}"
        f"{row.get('ratio_numpy', row.get('ratio_index', 0)):>10.2f}{row.get('first_layer', ''):>11}{row['load']:>6.1f}"
        f"{row.get('call_us', ''):>9}"
        f"  {row['hash']}{'' if row['right'] else ' WRONG'}"
    )


def arena_movers(quick: bool, device: str) -> tuple[Composition, dict[str, PageMover]]:
    """The first composition in a device memory of one budget, and what moves its pages to a host pool and to host memory of one
    budget. Each page has gone there and come back; raises ValueError if it is not the same.
    """
    composition = compositions(quick, "cpu")[0]
    [(page_format, moved)] = composition.pages.items()
    pages = 2 * moved
    kind = Component(name=page_format.component, coverage=ComponentPath())
    model = ModelComposition(name=composition.name, page_size=PAGE_SIZE, components=(kind,))
    model = model.with_formats({page_format.component: page_format})
    size, pin, every = pages * page_format.page_bytes, device != "cpu", np.random.default_rng(0).permutation(pages)
    arena = BlockArena(model, BlockLayout.of(model, size), device)
    blocks = HostArena(model, size + (size >> 4), pin=pin)
    for tables in (arena.tables, blocks.tables):
        tables.assign(kind.name, every)
    movers: dict[str, PageMover] = {
        "a host pool": ArenaPair(arena, kind.name, HostPool(page_format, pages, HostLayout.PAGE_FIRST_DIRECT, pin)),
        "host blocks": StagedPair(arena, kind.name, blocks),
    }
    for name, mover in movers.items():
        arena.memory.random_(256)
        before = arena.memory.clone()
        mover.backup(every, every[::-1].copy())
        wait(device)
        arena.memory.zero_()
        mover.load_layers(mover.layer_ids, every[::-1].copy(), every)
        if not torch.equal(arena.memory, before):
            raise ValueError(f"{name}: pages did not come back as they went")
    return composition, movers


def arena_operations(mover: PageMover, composition: Composition) -> dict[str, Callable[[], None]]:
    """What is measured of a mover: random pages on both sides."""
    [moved], random = composition.pages.values(), np.random.default_rng(1)
    source, target = random.permutation(2 * moved)[:moved], random.permutation(2 * moved)[:moved]
    return {
        "backup": partial(mover.backup, source, target),
        "load": partial(mover.load_layers, mover.layer_ids, source, target),
    }


def arena_lines(quick: bool, device: str, rounds: int) -> Iterator[str]:
    """A device memory of one budget, beside a contiguous copy."""
    composition, movers = arena_movers(quick, device)
    for name, mover in movers.items():
        for operation, run in arena_operations(mover, composition).items():
            others = rivals(composition, operation, "scattered", HostLayout.PAGE_FIRST_DIRECT, device)
            times, calls = measure(run, others, rounds, device)
            row = row_of(composition, HostLayout.PAGE_FIRST_DIRECT, operation, "scattered", times)
            yield (
                f"one budget, {operation:<6} with {name}: {row['ours_gb_per_s']:.1f} GB/s, {row['ratio']:.2f} of torch, "
                f"a call {statistics.median(calls) / 1000:.0f} µs"
            )


def block_lines(device: str, rounds: int) -> Iterator[str]:
    """vLLM's blocks of 16 tokens, 128 at a time, of 32 layers with a tensor each; by the GPU and by the processor."""
    caches = {f"layer {i}": torch.randn(512, 2, 16, 8, 128, dtype=torch.bfloat16, device=device) for i in range(32)}
    size = sum(cache[0].nbytes for cache in caches.values())
    group = BlockGroup(index=0, coverage=ComponentPath(), layer_names=tuple(caches), block_bytes=size)
    pages = BlockPages(group, caches, 256, verify=False)
    random = np.random.default_rng(0)
    copies = PageCopies(
        group=0, blocks=tuple(random.permutation(512)[:128].tolist()), pages=tuple(random.permutation(256)[:128].tolist())
    )
    for by in ("GPU", "processor"):
        if by == "processor":
            pages._bus = None
        for name, run in (("save", pages.save), ("load", pages.load)):
            times, _ = measure(partial(run, copies), {}, rounds, device)
            yield f"vLLM's blocks, {name} by the {by}: {len(copies.pages) * size / statistics.median(times['ours']):.1f} GB/s"


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
    parser = options_of("transfers", __doc__, quick="few layers and pages and one round", rounds=9)
    parser.add_argument("--device", default="cpu", help="where the device pools are: cpu or cuda")
    options = parser.parse_args(arguments)
    on = f"{machine()}, torch {torch.__version__} on {torch.get_num_threads()} threads"
    if options.device != "cpu":
        on += f", {torch.cuda.get_device_name(options.device)}"
    where = told(HEAD, on)
    rounds = 1 if options.quick else options.rounds
    found = rows(options.quick, rounds, options.device)
    for line in arena_lines(options.quick, options.device, rounds):
        print(line, flush=True)
    if options.device != "cpu":
        for line in block_lines(options.device, rounds):
            print(line, flush=True)
    for policy in WritePolicy:
        print(f"a tick with nothing to move, {policy.value}: {idle_tick_us(policy, options.rounds):.2f} µs")
    return written(found, where, options.json)


if __name__ == "__main__":
    sys.exit(main())
