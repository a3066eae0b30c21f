"""`python -m benches.worlds`: what eviction policies hit in random worlds that no policy was fitted to.

Question: how many points of token hit rate does each policy gain or lose against each expert, and how is that distributed over
worlds? A world is a pure function of its seed; `benches.world` publishes what they are drawn from. Policies are developed on
the seeds 0 to 149, and confirmed once on seeds that were never looked at (docs/lab/worlds.md says which). Rejected requests are
misses. Silent on: time, stores, ranks, and arrivals that leave the server idle.

Rows are appended to the file of `--json` world by world, and those that it has are not replayed again: where the cache has
changed since, begin with a new file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from benches.machine import commit, core, machine
from benches.world import SIZES, World
from unified_tree.controllers.workbench.runs.plan import RowKind
from unified_tree.controllers.workbench.runs.row import run_row

UNBOUNDED = RowKind.UNBOUNDED.value
DEVELOPED_ON = "0-149"
GROUPS = ("family", "scarce", "size", "concurrency", "has_host")
LOSSES = (0.3, 0.5)
"""Points."""
Row = dict[str, Any]
Rows = dict[int, dict[str, Row]]
"""By seed and policy."""


def measured(world: World, policies: Sequence[str], is_bounded: bool = False) -> list[Row]:
    """The rows of a world."""
    plan, page_counts = world.plan()
    rows = []
    for policy in policies:
        begin_s = process_time()
        row = run_row(plan, world.row(policy, page_counts, is_bounded=is_bounded))
        rows.append(
            asdict(world)
            | {
                "policy": policy,
                "page_counts": page_counts,
                "prompt_tokens": row.prompt_tokens,
                "hit_tokens": row.hit_tokens,
                "rejected": row.rejected,
                "bound_tokens": row.optimum_high_tokens,
                "processor_s": round(process_time() - begin_s, 2),
            }
        )
    return rows


def in_turn(tasks: Sequence[tuple[World, list[str]]], jobs: int, *, is_bounded: bool) -> Iterator[list[Row]]:
    """The rows of world after world, of as many at a time as there are jobs."""
    columns = [world for world, _ in tasks], [policies for _, policies in tasks], repeat(is_bounded)
    if jobs == 1:
        yield from map(measured, *columns)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as executor:
        yield from executor.map(measured, *columns)


def rate(row: Row) -> float:
    """Percent of the prompt tokens that were hit."""
    return 100.0 * float(row["hit_tokens"]) / max(1, int(row["prompt_tokens"]))


def world_line(rows: dict[str, Row], policies: Iterable[str]) -> str:
    """A world and what each policy hits of it."""
    row = next(iter(rows.values()))
    what = f"{row['seed']} | {row['family']} | {row['model']} | {row['scarce']} | {row['size']} | {row['concurrency']}"
    host = "" if row["host_share"] is None else f"{row['host_share']:.1f}"
    return " | ".join([what, host, *(f"{rate(rows[policy]):.1f}" if policy in rows else "" for policy in policies)])


def distribution(points: Sequence[float]) -> str:
    """Of gains and losses, in points."""
    values = np.array(points)
    shown = (values.mean(), np.median(values), np.percentile(values, 5), values.min())
    lost = [str(int((values < -loss).sum())) for loss in LOSSES]
    return " | ".join([str(len(points)), *(f"{value:+.2f}" for value in shown), *lost])


def grouped(rows: Rows) -> Iterator[tuple[str, list[int]]]:
    """The seeds of all worlds, and of those that have something in common."""
    yield "all", sorted(rows)
    firsts = {seed: next(iter(of.values())) for seed, of in sorted(rows.items())}
    facts = {seed: row | {"has_host": "host" if row["host_share"] is not None else "no host"} for seed, row in firsts.items()}
    for group in GROUPS:
        for value in sorted(
            {row[group] for row in facts.values()}, key=lambda each: SIZES.index(each) if each in SIZES else each
        ):
            name = f"{value} at a time" if group == "concurrency" else str(value)
            yield name, [seed for seed, row in facts.items() if row[group] == value]


def compare(rows: Rows, policy: str, expert: str, show: Callable[[str], None]) -> None:
    """Print what a policy gains and loses beside an expert, and the ten worlds where it loses most."""
    points = {seed: rate(of[policy]) - rate(of[expert]) for seed, of in rows.items() if policy in of and expert in of}
    both = {seed: rows[seed] for seed in points}
    if not both:
        return
    show(f"\n`{policy}` beside `{expert}`, points of the prompt tokens:\n")
    heads = f"worlds | count | mean | median | 5 % | worst | {' | '.join(f'lost over {loss}' for loss in LOSSES)}"
    show(f"| {heads} |\n|{'---|' * (heads.count('|') + 1)}")
    for name, seeds in grouped(both):
        show(f"| {name} | {distribution([points[seed] for seed in seeds])} |")
    heads = f"seed | traffic | model | scarce | memory | at a time | host | `{expert}` | `{policy}` | points"
    show(f"\n| {heads} |\n|{'---|' * (heads.count('|') + 1)}")
    for seed in sorted(points, key=points.__getitem__)[:10]:
        show(f"| {world_line(rows[seed], (expert, policy))} | {points[seed]:+.2f} |")


def of_bound(rows: Rows, policies: Iterable[str], show: Callable[[str], None]) -> None:
    """Print what share each policy hits of what no eviction could exceed in its order of admissions."""
    heads = "policy | worlds | mean | median | 5 % | worst"
    show(f"\nHits as a share of the certified bound, percent:\n\n| {heads} |\n|{'---|' * (heads.count('|') + 1)}")
    for policy in policies:
        found = [of[policy] for of in rows.values() if policy in of and of[policy]["bound_tokens"]]
        if found:
            shares = np.array([100.0 * row["hit_tokens"] / row["bound_tokens"] for row in found])
            shown = (shares.mean(), np.median(shares), np.percentile(shares, 5), shares.min())
            show(f"| `{policy}` | {len(found)} | {' | '.join(f'{value:.1f}' for value in shown)} |")


def seeds_of(text: str) -> range:
    """`0-149` or `7`."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def has(row: Row | None, world: World, policy: str, *, is_bounded: bool) -> bool:
    """Whether a row of a file is what is asked for."""
    if row is None or row["request_count"] != world.request_count:
        return False
    return not is_bounded or policy == UNBOUNDED or row["bound_tokens"] is not None


def main(arguments: list[str] | None = None) -> int:
    """Parse, replay what the file has not, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benches.worlds", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of(DEVELOPED_ON), help="FIRST-LAST, or one; 0-149 if not said")
    parser.add_argument("--policies", default=f"{UNBOUNDED},lru,cost,density", help="names, or module:factory")
    parser.add_argument("--experts", default="lru,cost", help="of these policies, those to compare with")
    parser.add_argument("--jobs", type=int, default=2, help="worlds at a time")
    parser.add_argument("--bound", action="store_true", help="certify what no eviction could exceed; takes longer")
    parser.add_argument("--requests", type=int, default=None, metavar="N", help="so many a world, to see that it runs")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="so many times as many requests a world")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="append rows there; what it has is kept")
    options = parser.parse_args(arguments)
    policies, experts = (list(dict.fromkeys(text.split(","))) for text in (options.policies, options.experts))
    worlds = {seed: World.of(seed) for seed in options.seeds}
    for seed, world in worlds.items():
        count = world.request_count if options.requests is None else options.requests
        worlds[seed] = replace(world, request_count=options.times * count)
    rows: Rows = {seed: {} for seed in worlds}
    lines = options.json.read_text().splitlines() if options.json and options.json.exists() else []
    for row in map(json.loads, lines):
        if row["seed"] in worlds and has(row, worlds[row["seed"]], row["policy"], is_bounded=options.bound):
            rows[row["seed"]][row["policy"]] = row
    missing = {seed: [policy for policy in policies if policy not in rows[seed]] for seed in worlds}
    print(f"machine  {machine()}\ncommit   {commit() or 'unknown'}, {core()}\n")
    heads = "seed | traffic | model | scarce | memory | at a time | host | " + " | ".join(f"`{name}`" for name in policies)
    print(f"| {heads} |\n|{'---|' * (heads.count('|') + 1)}")
    found = in_turn([(worlds[seed], names) for seed, names in missing.items() if names], options.jobs, is_bounded=options.bound)
    for seed, names in missing.items():
        made = next(found) if names else []
        rows[seed] |= {row["policy"]: row for row in made}
        if made and options.json:
            with options.json.open("a") as file:
                file.writelines(f"{json.dumps(row)}\n" for row in made)
        print(f"| {world_line(rows[seed], policies)} |", flush=True)
    for policy in policies:
        for expert in experts:
            if policy not in (expert, UNBOUNDED) and (policy not in experts or experts.index(policy) > experts.index(expert)):
                compare(rows, policy, expert, print)
    if options.bound:
        of_bound(rows, [policy for policy in policies if policy != UNBOUNDED], print)
    return 0


if __name__ == "__main__":
    sys.exit(main())
