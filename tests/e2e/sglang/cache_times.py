"""Reads what the plug-in `cache_timing` wrote: time in the cache for each request and each decode step."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path


def table(runs: list[tuple[str, str, int]], work: Path) -> str:
    """One line for each case and cache, then the methods that take the most time. Only caches of one table can be compared.

    The clock's own share of each call, which a method that does nothing shows, is subtracted.

    The steps are batches of prefill and decode; their rate is also given for each mix, in the order of the mixes.
    """
    lines = [
        "case, cache: cache us a request | cache us a step | steps/s (of each mix) | requests a decode step | cache's share"
    ]
    counts: Counter[tuple[str, str]] = Counter()
    for case, cache, requests in runs:
        counts[case, cache] += requests
    for (case, cache), requests in counts.items():
        path = work / f"{case}.{cache}.timing.jsonl"
        if not path.exists() or not requests:
            continue
        seconds: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        batches: Counter[str] = Counter()
        wall = 0.0
        rates: list[str] = []
        for line in path.read_text().splitlines():
            found = json.loads(line)
            wall += found["seconds"]
            rates.append(f"{sum(count for count, _, _ in found['batches'].values()) / found['seconds']:.1f}")
            for name, (count, spent) in found["methods"].items():
                calls[name] += count
                seconds[name] += spent
            for kind, (count, spent, rows) in found["batches"].items():
                batches[f"{kind} count"] += count
                batches[f"{kind} seconds"] += spent
                batches[f"{kind} rows"] += rows
        clock = seconds.pop("nothing") / calls["nothing"]
        spent_in = {name: max(0.0, spent - calls[name] * clock) for name, spent in seconds.items()}
        total = sum(spent_in.values())
        steps = batches["decode count"] + batches["prefill count"]
        lines.append(
            f"{case}, {cache}: {1e6 * total / requests:.0f} | {1e6 * total / max(1, steps):.0f} | "
            f"{steps / wall:.1f} ({', '.join(rates)}) | "
            f"{batches['decode rows'] / max(1, batches['decode count']):.1f} | {total / wall:.1%}"
        )
        for name, spent in sorted(spent_in.items(), key=lambda item: -item[1])[:8]:
            lines.append(f"    {name}: {calls[name]:,} calls, {1e6 * spent / calls[name]:.1f} us a call")
    return "\n".join(lines)
