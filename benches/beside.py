"""`python -m benches.beside`: how much longer a GPU takes for a model's products while pages move.

Question: what do copies cost the requests that run beside them?
Not: how fast they are; `benches.transfers --device cuda` says that.

Two kinds of products in bf16 run on the current stream: a prefill's of 8,192 rows, bound by arithmetic, and a decode's of 128
rows, bound by memory, for its weights are larger than the L2 cache. Pages of Llama-3.1-8B move meanwhile on the lane that the
engine would take, 3 GiB in calls of 256 MiB: by ours, by torch's index kernels, and as contiguous copies of pinned memory by
the copy engine, the best there can be; and pages of a device memory of one budget, by ours. `time` is that of the products, to
what they take alone; `GB/s` that of the copies.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benches.machine import commit
from benches.transfers import Composition, Subject, arena_movers, arena_operations, compositions, rivals
from unified_tree.controllers.pools import HostLayout
from unified_tree.controllers.transfer_engines import cuda_lanes
from unified_tree.nodes.effect import EffectKind

WIDTH = 8192
CALLS = 12
LANES = {"backup": EffectKind.BACKUP, "load": EffectKind.LOAD}


class Products:
    """A model's work.

    Args:
        rows: tokens at a time.
        count: products.
    """

    def __init__(self, rows: int, count: int) -> None:
        self.count = count
        self._weights = [torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
        self._rows = torch.randn(rows, WIDTH, device="cuda", dtype=torch.bfloat16)
        self._into = torch.empty_like(self._rows)
        self.milliseconds()
        self.alone = statistics.median(self.milliseconds() for _ in range(3))

    def milliseconds(self) -> float:
        """Run them all."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for number in range(self.count):
            torch.mm(self._rows, self._weights[number % len(self._weights)], out=self._into)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))


def beside(products: Products, lane: Any, copy: Callable[[], Any], moved_bytes: int) -> tuple[float, float]:
    """The time of the products, to that alone, and GB/s of the copies, which begin first; if they end first, a line says so."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    with lane.entered():
        copy()  # memory that it takes for the first time would wait for all work
        torch.cuda.synchronize()
        begin.record()
        for _ in range(CALLS):
            copy()
        end.record()
    taken = products.milliseconds() / products.alone
    if end.query():
        print("the copies ended before the products", file=sys.stderr)
    torch.cuda.synchronize()
    return taken, CALLS * moved_bytes / begin.elapsed_time(end) / 1e6


def rows(rounds: int) -> Iterator[dict[str, Any]]:
    """Measure."""
    work = {"prefill": Products(WIDTH, 12), "decode": Products(128, 300)}
    lanes = cuda_lanes("cuda")
    for composition in _kept():
        for layout in HostLayout:
            for operation, kind in LANES.items():
                subject = Subject(composition, layout, "cuda")
                others = rivals(composition, operation, "scattered", layout, "cuda")
                contestants = {"ours": subject.operation(operation, "scattered"), **others}
                for name, products in work.items():
                    for contestant, copy in contestants.items():
                        found = [beside(products, lanes[kind], copy, composition.moved_bytes) for _ in range(rounds)]
                        yield _row(composition, layout.value, operation, name, contestant, found)
                subject.engine.close()
    composition, movers = arena_movers(quick=False, device="cuda")
    for mover_name, mover in movers.items():
        for operation, copy in arena_operations(mover, composition).items():
            for name, products in work.items():
                found = [beside(products, lanes[LANES[operation]], copy, composition.moved_bytes) for _ in range(rounds)]
                yield _row(composition, mover_name, operation, name, "ours", found)


def _row(
    composition: Composition, where: str, operation: str, work: str, contestant: str, found: list[tuple[float, float]]
) -> dict[str, Any]:
    """One object of the JSON file."""
    return {
        "composition": composition.name,
        "layout": where,
        "operation": operation,
        "work": work,
        "copies": contestant,
        "time": round(statistics.median(taken for taken, _ in found), 3),
        "gb_per_s": round(statistics.median(speed for _, speed in found), 1),
    }


def _kept() -> list[Composition]:
    return [composition for composition in compositions(quick=False, device="cuda") if composition.name.startswith("mha")]


def main(arguments: list[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benches.beside", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="of each; medians are printed")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("torch finds no GPU here")
        return 1
    where = {"machine": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": commit()}
    print(*where.values(), sep=", ")
    found = []
    for row in rows(options.rounds):
        found.append(row | where)
        print(
            f"{row['composition']:<10}{row['layout']:<18}{row['operation']:<8}{row['work']:<9}{row['copies']:<7}"
            f"time {row['time']:.2f} at {row['gb_per_s']:4.1f} GB/s",
            flush=True,
        )
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
