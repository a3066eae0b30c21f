"""Processes that stand still."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from waiting import PATIENCE_S


def freeze(process: subprocess.Popen[bytes]) -> None:
    """Stop a process, and wait until all its threads have stopped."""
    process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE_S
    while not all(_is_stopped(task) for task in Path(f"/proc/{process.pid}/task").iterdir()):
        assert time.monotonic() < deadline, "it does not stop"
        time.sleep(0.001)


def thaw(process: subprocess.Popen[bytes]) -> None:
    """Let it go on."""
    process.send_signal(signal.SIGCONT)


def _is_stopped(task: Path) -> bool:
    return (task / "stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}
