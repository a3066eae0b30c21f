"""What was measured on, and what."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import time
from pathlib import Path

import numpy as np

from benches.contestants import ROOT
from unified_tree.lookup import matching


def machine() -> str:
    """Processor, cores, system and interpreter in a line."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{processor}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}, {python}, numpy {np.__version__}"


def core() -> str:
    """Whether the tree's hot modules run `compiled` or `interpreted` here."""
    return "compiled" if Path(matching.__file__).suffix in {".so", ".pyd"} else "interpreted"


def commit() -> str | None:
    """The commit, with `+` if files differ from it; None outside a repository."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return f"{head}+" if _git("status", "--porcelain") else head
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def quiet_cpu() -> int:
    """The processor that was idlest over a moment, of those this process may use."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    before = _idle_ticks()
    time.sleep(0.3)
    after = _idle_ticks()
    return max(allowed, key=lambda cpu: (after.get(cpu, 0) - before.get(cpu, 0), cpu))


def _idle_ticks() -> dict[int, int]:
    ticks = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/stat").read_text().splitlines():
            name, *figures = line.split()
            if name.startswith("cpu") and name[3:].isdigit():
                ticks[int(name[3:])] = int(figures[3]) + int(figures[4])
    return ticks
