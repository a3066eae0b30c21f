"""Starts many engines for the price of one import of SGLang: `ImportedEngine` holds a process that forks for each engine.

The import takes 25 of the 30 seconds that an engine needs on two cores. SGLang spawns its scheduler anew; here the scheduler is
a fork of the process that has imported everything, and else the same.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

DONE = "served"


class ImportedEngine:
    """A process that serves specs of `serve_mixes`, one at a time, each in a fork of its own.

    Args:
        environment: what SGLang reads while it is imported.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def serve(self, spec: Path, environment: dict[str, str], log: Path, timeout: float) -> None:
        """Serve a spec to its end, or to the end of the time. Raises RuntimeError if the process is gone."""
        line = {"spec": str(spec), "environment": environment, "log": str(log), "timeout": timeout}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        for answer in self._process.stdout:
            if answer.strip() == DONE:
                return
        raise RuntimeError(f"the process that has imported SGLang ended with {self._process.wait()}")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _serve(line: dict[str, Any]) -> None:
    """In a fork: run one engine, all its output in its log."""
    import serve_mixes

    os.setsid()
    log = os.open(line["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(line["environment"])
    status = 1
    try:
        serve_mixes.serve(Path(line["spec"]))
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Import SGLang, then fork for each line."""
    import signal
    import time

    import sglang.srt.entrypoints.engine
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler
    import sglang.srt.models.registry  # noqa: F401  # all are imported to be forked
    from transformers import AutoConfig  # noqa: F401

    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *_, **__: None
    for text in sys.stdin:
        line = json.loads(text)
        child = os.fork()
        if not child:
            _serve(line)
        end = time.monotonic() + line["timeout"]
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.05)
        print(DONE, flush=True)


if __name__ == "__main__":
    main()
