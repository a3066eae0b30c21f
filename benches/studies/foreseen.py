"""`python -m benches.studies.foreseen TRACES`: what could be hit by an order that knew the traffic's statistics before?

Question: the best possible hits are those of an order that knows the future. How much of that could be known from what was
before? Each use of a block is described (how many turns came before, lengths, gaps, growth, how often the block was used, its
place), and boosted decision trees are fitted to how soon uses were followed by the next one: over the whole trace, but for the
sessions that they are asked about. What is worth least by that goes first; no cache knows so much when it begins. *Learned* is
the same from what was before, fitted anew every 1,000 requests, as a cache could do that had minutes for it. Beside them `lru`,
`density`, and the best possible. Paths alone, one request at a time, in blocks of 512 tokens, no answers. And in what share of
the memory is hit what `lru` hits in all of it?

Silent on: clients that take turns, whose requests have no times of their own; windows and states; requests side by side; what
other descriptions or another learner would tell. It is a way to foresee, not a bound. Needs scikit-learn.

`--sweep` compares `density` with `lru` alone, in many more sizes: a single figure moves by a point with any detail of the
learning.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benches.cell import Cell
from benches.studies.foreseen_orders import Order, hit_by_order, hit_by_tree, most_possible
from benches.studies.foreseen_uses import UNIT_TOKENS, foreseen_chances, learned_chances, prompts_of, uses_of, worth
from benches.studies.memory import PARTS, fewest_parts

TOKENS: dict[str, tuple[int, ...]] = {
    "conversations": (1_000_000, 3_000_000, 10_000_000),
    "coding agents": (500_000, 1_200_000, 3_000_000),
    "built-in agents": (200_000, 500_000, 1_000_000),
}
HEADS = "workload | tokens | `lru` | `density` | learned | foreseen | best possible | `density` needs | foreseen needs"

SWEPT = 40
SWEEP_HEADS = f"workload | tokens | `density` beside `lru`, in the mean | least | most | over 0.3 below, of {SWEPT} sizes"


def least_parts(wanted: float, hit_in: Callable[[int], float]) -> int | None:
    """The fewest sixteenths of the memory in which so much is hit; None where all of it is not enough."""
    if wanted <= 0.0 or hit_in(PARTS) < wanted:
        return None
    return fewest_parts(lambda parts: hit_in(parts) >= wanted)


def rows_of(workload: str, traces: Path, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """A row for each size of a workload."""
    plan = Cell(workload, "llama-3.1-8b", 8).plan(traces)
    prompts = prompts_of(plan.workload)
    uses = uses_of(prompts)
    foreseen, learned = (Order(uses, worth(chances(uses))) for chances in (foreseen_chances, learned_chances))
    rows = []
    for tokens in sizes:
        units = tokens // UNIT_TOKENS

        def by_density(parts: int, units: int = units) -> float:
            return hit_by_tree(prompts, units * parts // PARTS, "density")

        def by_foresight(parts: int, units: int = units) -> float:
            return hit_by_order(prompts, units * parts // PARTS, foreseen)

        lru = hit_by_tree(prompts, units, "lru")
        rows.append(
            {
                "workload": workload,
                "tokens": tokens,
                "lru": lru,
                "density": by_density(PARTS),
                "learned": hit_by_order(prompts, units, learned),
                "foreseen": by_foresight(PARTS),
                "best": most_possible(prompts, units),
                "density_needs": least_parts(lru, by_density),
                "foreseen_needs": least_parts(lru, by_foresight),
            }
        )
    return rows


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    shown = [f"{100 * row[of]:.1f}" for of in ("lru", "density", "learned", "foreseen", "best")]
    needs = ["" if row[of] is None else f"{100 * row[of] / PARTS:.0f} %" for of in ("density_needs", "foreseen_needs")]
    return f"| {row['workload']} | {row['tokens']:,} | {' | '.join(shown + needs)} |"


def swept(workload: str, traces: Path, sizes: tuple[int, ...]) -> dict[str, Any]:
    """By how many points `density` hits more than `lru`, in memories from half of the first size to twice the second."""
    prompts = prompts_of(Cell(workload, "llama-3.1-8b", 8).plan(traces).workload)
    memories = np.rint(np.geomspace(sizes[0] / 2, 2 * sizes[1], SWEPT) / UNIT_TOKENS).astype(np.int64).tolist()
    more = [100 * (hit_by_tree(prompts, n, "density") - hit_by_tree(prompts, n, "lru")) for n in memories]
    return {"workload": workload, "tokens": [n * UNIT_TOKENS for n in memories], "more": more}


def swept_line(row: dict[str, Any]) -> str:
    """A row of the table."""
    tokens, more = row["tokens"], np.array(row["more"])
    span = f"{tokens[0]:,} to {tokens[-1]:,}"
    return (
        f"| {row['workload']} | {span} | {more.mean():+.2f} | {more.min():+.2f} | {more.max():+.2f} | {(more < -0.3).sum()} |"
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the table, and write the rows."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.studies.foreseen", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("traces", type=Path, help="the folder under which the two traces lie")
    parser.add_argument("--only", choices=TOKENS, help="one workload")
    parser.add_argument("--sweep", action="store_true", help="many sizes, only `lru` and `density`")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    options = parser.parse_args(arguments)
    heads = SWEEP_HEADS if options.sweep else HEADS
    print(f"| {heads} |\n|{'---|' * (heads.count('|') + 1)}")
    rows: list[dict[str, Any]] = []
    for workload, sizes in TOKENS.items():
        if options.only not in (None, workload):
            continue
        if options.sweep:
            rows.append(swept(workload, options.traces, sizes))
            print(swept_line(rows[-1]), flush=True)
        else:
            for row in rows_of(workload, options.traces, sizes):
                rows.append(row)
                print(line(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
