"""The museum's page: the exhibits as tables. `python tests/museum/museum_page.py` writes docs/museum.md.

With `--sglang PYTHON`, an interpreter that has SGLang, its core plays the scripts first; its hits are kept beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from collection import EXHIBITS, HALLS
from exhibit import Exhibit, Start

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "museum.md"
MEASURED = Path(__file__).with_name("sglang_hits.json")
STANDINS = ROOT / "tests" / "e2e" / "sglang" / "standins"
HEAD = """| failure | what was reported | prompts | ceiling | here | SGLang's core | lost to | what decides |
|---|---|--:|--:|--:|--:|---|---|"""
INTRODUCTION = """# The museum

Hybrid prefix caches fail silently: a hit rate falls, and nothing says why. These are {count} failures that users and
developers of vLLM and SGLang published, each as a small scripted workload. The tests play every script on `PrefixCache`.

- **prompts** are the script's prompt tokens. They are the report's where those are few, else scaled down.
- The **ceiling** is how many of them any cache with these pools can hit, even one that knows the future. Each exhibit
  states it with a reason, and a test tries all ways to fill the pools.
- **here** is what this library hits, with the policy `lru`. {reached} exhibits reach their ceiling. {below} stay below it.
- **lost to** are tokens that were known once, by the [cause](debugging.md) that `lease.misses` names. They cover each gap to
  a ceiling. A loss to another namespace or to other weights is right.
- **SGLang's core** is what the tree core of SGLang 0.5.23 hits with the same script and pools, called as its scheduler calls
  it. It hits fewer tokens than this library in {fewer} of {measured} exhibits, as many in {same} and more in {more}. Nobody can
  name a checkpoint to it. It saves a state at the end of each chunk, which this library does not. A dash stands where it has
  no such kinds, where a host tier is needed, and where a layer above it decides. vLLM's core was not measured.

A script decides how prompts share tokens, their order, and the pools. It does not show speed, and a failure of an engine's
kernels is not in it. A thread may have been fixed since.
"""
ENDING = """## Run it

```
python -m pytest tests/museum
python tests/museum/museum_page.py --sglang PYTHON
```

The second command writes this page. Without `--sglang` it keeps the figures of SGLang's core that were measured last.
"""


def cells(exhibit: Exhibit, measured: dict[str, int]) -> Iterator[str]:
    """A row of a table."""
    yield f"{exhibit.title} ([{exhibit.thread.label}]({exhibit.thread.link}))"
    yield exhibit.reported
    yield f"{sum(len(step.request.prompt) for step in exhibit.script if isinstance(step, Start)):,}"
    yield f"{exhibit.ceiling:,}"
    yield f"{exhibit.ceiling - exhibit.gap:,}"
    yield f"{measured[exhibit.name]:,}" if exhibit.name in measured else "-"
    yield ", ".join(f"`{cause}` {tokens:,}" for cause, tokens in exhibit.lost.items()) or "nothing"
    yield f"{exhibit.why} {exhibit.lesson}"


def page() -> str:
    """The page's text."""
    measured: dict[str, int] = json.loads(MEASURED.read_text(encoding="utf-8"))
    both = [(exhibit.ceiling - exhibit.gap, measured[exhibit.name]) for exhibit in EXHIBITS if exhibit.name in measured]
    below = sum(1 for exhibit in EXHIBITS if exhibit.gap)
    parts = [
        INTRODUCTION.format(
            count=len(EXHIBITS),
            reached=len(EXHIBITS) - below,
            below=below,
            measured=len(both),
            fewer=sum(1 for ours, theirs in both if theirs < ours),
            same=sum(1 for ours, theirs in both if theirs == ours),
            more=sum(1 for ours, theirs in both if theirs > ours),
        )
    ]
    for hall in HALLS:
        name, _, what = (hall.__doc__ or "").partition(": ")
        rows = ["| " + " | ".join(cells(exhibit, measured)) + " |" for exhibit in hall.EXHIBITS]
        parts.append("\n".join((f"## {name}\n\n{what[0].upper()}{what[1:].strip()}\n", HEAD, *rows)) + "\n")
    return "\n".join((*parts, ENDING))


def measure(python: Path) -> None:
    """Play the scripts on SGLang's core."""
    visited = subprocess.run(
        [str(python), "-W", "ignore", str(Path(__file__).with_name("sglang_visit.py"))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(STANDINS)))},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    hits: dict[str, int] = json.loads(visited.stdout.splitlines()[-1])
    MEASURED.write_text(json.dumps(hits, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sglang", type=Path, default=None, metavar="PYTHON", help="an interpreter that has SGLang")
    options = parser.parse_args()
    if options.sglang is not None:
        measure(options.sglang.absolute())
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
