"""Reads what the plug-in `cache_timing` wrote: time in the cache for each request and each decode step."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Times:
    """The totals of an engine's mixes.

    Attributes:
        spent: seconds by method, without the clock's own share, which a method that does nothing shows.
        calls: by method.
        wall: seconds.
        rates: steps a second of each mix. The steps are batches of prefill and decode.
    """

    spent: dict[str, float] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    wall: float = 0.0
    steps: int = 0
    decode_steps: int = 0
    decode_rows: int = 0
    rates: list[float] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Times:
        """The totals in a file."""
        times, seconds = cls(), Counter[str]()
        for line in path.read_text().splitlines():
            found = json.loads(line)
            times.wall += found["seconds"]
            steps = sum(count for count, _, _ in found["batches"].values())
            times.steps += steps
            times.rates.append(steps / found["seconds"])
            for name, (count, spent) in found["methods"].items():
                times.calls[name] += count
                seconds[name] += spent
            count, _, rows = found["batches"].get("decode", (0, 0.0, 0))
            times.decode_steps += count
            times.decode_rows += rows
        clock = seconds.pop("nothing") / times.calls["nothing"]
        times.spent = {name: max(0.0, spent - times.calls[name] * clock) for name, spent in seconds.items()}
        return times

    @property
    def total(self) -> float:
        """Seconds in the cache."""
        return sum(self.spent.values())


def table(runs: list[tuple[str, str, int]], work: Path) -> str:
    """One line for each case and cache, then the methods that take the most time. Only caches of one table can be compared."""
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
        times = Times.read(path)
        lines.append(
            f"{case}, {cache}: {1e6 * times.total / requests:.0f} | {1e6 * times.total / max(1, times.steps):.0f} | "
            f"{times.steps / times.wall:.1f} ({', '.join(f'{rate:.1f}' for rate in times.rates)}) | "
            f"{times.decode_rows / max(1, times.decode_steps):.1f} | {times.total / times.wall:.1%}"
        )
        for name, spent in sorted(times.spent.items(), key=lambda item: -item[1])[:8]:
            lines.append(f"    {name}: {times.calls[name]:,} calls, {1e6 * spent / times.calls[name]:.1f} us a call")
    return "\n".join(lines)
