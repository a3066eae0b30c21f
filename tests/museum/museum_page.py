"""The museum's page: the exhibits as tables. `python tests/museum/museum_page.py` writes docs/lab/museum.md.

With `--sglang PYTHON` or `--vllm PYTHON`, an interpreter that has that engine, its core plays the scripts first. Its hits are
kept beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from exhibits import EXHIBITS, HALLS, Exhibit, Start

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "lab" / "museum.md"
MEASURED = Path(__file__).with_name("engine_hits.json")
STANDINS = ROOT / "tests" / "e2e" / "sglang" / "standins"
ENGINES = ("sglang", "vllm")
HEAD = """| failure | what was reported | prompts | ceiling | here | SGLang | vLLM | lost to | what decides |
|---|---|--:|--:|--:|--:|--:|---|---|"""
INTRODUCTION = """# The museum

Hybrid prefix caches fail silently: a hit rate falls, and nothing says why. These are {count} failures that users and
developers of vLLM and SGLang published, each as a small scripted workload. The tests play every script on `PrefixCache`.

- **prompts** are the script's prompt tokens. They are the report's where those are few, else scaled down.
- The **ceiling** is how many of them any cache with these pools can hit, even one that knows the future. Each exhibit
  states it with a reason, and a test tries all ways to fill the pools.
- **here** is what this library hits, with the policy `lru`. {reached} exhibits reach their ceiling. {below} stay below it.
- **lost to** are tokens that were known once, by the [cause](../debugging.md) that `lease.misses` names. They cover each gap to
  a ceiling. A loss to another namespace or to other weights is right.
- **SGLang** is what the tree core of SGLang 0.5.23 hits with the same script and pools, called as its scheduler calls it:
  {sglang}.
  It saves a state at the end of each chunk, which this library does not.
- **vLLM** is what the scheduler and the block manager of vLLM 0.33.0 hit with the same script, without a model:
  {vllm}.
  All its kinds live in one pool, here of as many blocks as both pools have. Blocks are as long as the report or a thread
  beside it says, else 528 tokens where states and paths share a pool, else a page.
- Neither can be told a checkpoint. A dash stands where an engine has no such kinds or pools, where a host tier is needed, and
  where a layer above the core decides.

**The engines' columns show that a failure is one there, too; they rank nothing.** The scripts were written for this library:
its pools are often the smallest in which it still reaches the ceiling, prompts end beside multiples of the page, and some name
checkpoints. In chunks of 256 instead of 8,192 tokens SGLang hits more in one exhibit (3,776 where this library has 1,984). In
larger pools most differences go away. Speed is not shown, nor a failure of an engine's kernels. A thread may have been fixed
since. Of the threads that this collection set out to show, SGLang #35837 and #38371 were not found in public.
"""
ENDING = """## Run it

```
python -m pytest tests/museum
python tests/museum/museum_page.py --sglang PYTHON --vllm PYTHON
```

The second command writes this page. An engine that is left out keeps the figures that were measured last.
"""


def cells(exhibit: Exhibit, measured: dict[str, dict[str, int]]) -> Iterator[str]:
    """A row of a table."""
    yield f"{exhibit.title} ([{exhibit.thread.label}]({exhibit.thread.link}))"
    yield exhibit.reported
    yield f"{sum(len(step.request.prompt) for step in exhibit.script if isinstance(step, Start)):,}"
    yield f"{exhibit.ceiling:,}"
    yield f"{exhibit.ceiling - exhibit.gap:,}"
    for engine in ENGINES:
        hits = measured[engine].get(exhibit.name)
        yield "-" if hits is None else f"{hits:,}"
    yield ", ".join(f"`{cause}` {tokens:,}" for cause, tokens in exhibit.lost.items()) or "nothing"
    yield f"{exhibit.why} {exhibit.lesson}"


def comparison(measured: dict[str, int]) -> str:
    """In how many exhibits an engine hits less, as much, and more."""
    pairs = [(exhibit.ceiling - exhibit.gap, measured[exhibit.name]) for exhibit in EXHIBITS if exhibit.name in measured]
    fewer, more = (sum(1 for ours, theirs in pairs if (theirs - ours) * sign > 0) for sign in (-1, 1))
    return f"of {len(pairs)} exhibits fewer tokens than this library in {fewer}, more in {more}"


def page() -> str:
    """The page's text."""
    measured: dict[str, dict[str, int]] = json.loads(MEASURED.read_text(encoding="utf-8"))
    below = sum(1 for exhibit in EXHIBITS if exhibit.gap)
    compared = {engine: comparison(measured[engine]) for engine in ENGINES}
    parts = [INTRODUCTION.format(count=len(EXHIBITS), reached=len(EXHIBITS) - below, below=below, **compared)]
    for hall in HALLS:
        rows = ["| " + " | ".join(cells(exhibit, measured)) + " |" for exhibit in hall.exhibits]
        parts.append("\n".join((f"## {hall.name}\n\n{hall.what}\n", HEAD, *rows)) + "\n")
    return "\n".join((*parts, ENDING))


def measure(engine: str, python: Path) -> dict[str, int]:
    """Play the scripts on an engine's core."""
    visited = subprocess.run(
        [str(python), "-W", "ignore", str(Path(__file__).with_name(f"{engine}_visit.py"))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(STANDINS)))},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    hits: dict[str, int] = json.loads(visited.stdout.splitlines()[-1])
    return hits


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for engine in ENGINES:
        parser.add_argument(f"--{engine}", type=Path, default=None, metavar="PYTHON", help="an interpreter that has the engine")
    options = vars(parser.parse_args())
    measured: dict[str, dict[str, int]] = json.loads(MEASURED.read_text(encoding="utf-8"))
    for engine in ENGINES:
        if options[engine] is not None:
            measured[engine] = measure(engine, options[engine].absolute())
    MEASURED.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
