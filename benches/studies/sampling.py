"""`python -m benches.studies.sampling TRACES`: how far off is a sample that knows exactly what each of its requests hits?

Question: what do some root subtrees of a workload say of all, at best? All requests are served once, paths alone, by the model
of `unified-tree size`, and what each hits is noted. A sample is then asked for nothing but its share of hit tokens, as if it
had been served among all others. So what it is off by is the sample's own: no model of a cache can do better with these
requests alone. Silent on: what a model of a cache adds to it, which `docs/sizing.md` has beside it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from benches.cell import Cell
from unified_tree.controllers.workbench.sizing.needs import Needs
from unified_tree.controllers.workbench.sizing.sample import choose, subtrees
from unified_tree.controllers.workbench.sizing.surface import ModelServer

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.runs.plan import Plan
    from unified_tree.controllers.workbench.traces.workload import Int64s, Request

MODEL = "llama-3.1-8b"
"""Of full attention alone."""
SHARES = (0.01, 0.03, 0.1, 0.3)
SEEDS = 40
ROOMS: dict[str, tuple[int | None, ...]] = {
    "conversations": (1_000_000, 3_000_000, 10_000_000, None),
    "all coding agents": (2_000_000, 12_000_000, None),
    "built-in agents": (200_000, 1_000_000, None),
}
"""Tokens of path; None for no end."""
HEADS = "workload | subtrees | path, tokens | hit | " + " | ".join(f"{100 * share:g} %" for share in SHARES)


class Noted(ModelServer):
    """A pass that notes what each request hits.

    Attributes:
        tokens: of the prompt, and of these hit, by request; 0 for one that never fits. int64 [2, requests].
    """

    def __init__(self, plan: Plan, room_tokens: int | None) -> None:
        needs = Needs.of(plan.composition.components, plan.composition.page_size, plan.settings.chunk_tokens)
        super().__init__(plan.workload, needs, plan.settings, room_tokens)
        self.tokens: Int64s = np.zeros((2, len(plan.workload.requests)), np.int64)

    def _begin(self, request: Request, now_s: float) -> None:
        super()._begin(request, now_s)
        [held] = [held for _, index, held in self._running if index == request.index]
        self.tokens[:, request.index] = request.prompt_tokens, held.hit_tokens


def off_by(tokens: Int64s, trees: list[list[Request]], share: float) -> list[float]:
    """Points of hit rate between samples of a share and all requests, by seed."""
    prompt_tokens, hit_tokens = tokens.sum(axis=1)
    found = []
    for seed in range(SEEDS):
        chosen, _ = choose(trees, share, seed)
        prompts, hits = tokens[:, [request.index for request in chosen]].sum(axis=1)
        found.append(100.0 * abs(float(hits / max(1, prompts) - hit_tokens / max(1, prompt_tokens))))
    return found


def rows(workload: str, plan: Plan, rooms: tuple[int | None, ...]) -> list[str]:
    """The rows of a workload: points off in the median, and at most."""
    trees, _ = subtrees(plan.workload.requests)
    lines = []
    for room in rooms:
        noted = Noted(plan, room)
        noted.run()
        prompts, hits = noted.tokens.sum(axis=1)
        cells = [f"{median(off):.1f} ({max(off):.1f})" for share in SHARES for off in [off_by(noted.tokens, trees, share)]]
        size = "no end" if room is None else f"{room / 1e6:g}M"
        lines.append(" | ".join([workload, f"{len(trees):,}", size, f"{100 * hits / prompts:.1f} %", *cells]))
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.studies.sampling", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("traces", type=Path, help="the folder under which the two traces lie")
    parser.add_argument("--only", default="", metavar="TEXT", help="workloads whose name has it")
    options = parser.parse_args(arguments)
    print(f"| {HEADS} |\n|{'---|' * (HEADS.count('|') + 1)}")
    for workload, rooms in ROOMS.items():
        if options.only in workload:
            plan = Cell(workload, MODEL, 100).plan(options.traces)
            print("\n".join(f"| {line} |" for line in rows(workload, plan, rooms)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
