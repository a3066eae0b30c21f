"""The contestants as seen from the process that runs the benchmarks: where they are, and how to talk to them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benches.case import Case

ROOT = Path(__file__).resolve().parent.parent
LONGEST_STEP_S = 300.0
"""A contestant that needs longer for one step is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where a contestant lives.

    Attributes:
        python: its interpreter.
        path: folders for its PYTHONPATH.
        environment: what else it wants set.
        imports: what `import` measures.
        absent: why it cannot take part; empty if it can.
    """

    name: str
    python: str
    path: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    imports: str = ""
    absent: str = ""

    def variables(self) -> dict[str, str]:
        """The environment of its process."""
        single = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        path = os.pathsep.join(self.path) if self.path else os.environ.get("PYTHONPATH", "")
        paths = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        return {**os.environ, **single, **paths, **dict(self.environment)}


def entries(engine: Path | None) -> list[Entry]:
    """All contestants; rivals without an `engine` are absent.

    Args:
        engine: an interpreter with SGLang installed, and with what else of the rivals is to take part.
            `tests/e2e/sglang/install.sh` makes one.
    """
    own = [Entry(name=name, python=sys.executable) for name in ("prefix_cache", "floor")]
    absent = "" if engine and engine.exists() else f"there is no {engine}" if engine else "no interpreter of rivals given"
    standins = (str(ROOT / "tests" / "e2e" / "sglang" / "standins"),)
    on_cpu = (("SGLANG_USE_CPU_ENGINE", "1"),)
    return [
        Entry(name="ours", python=sys.executable, imports="import unified_tree"),
        *own,
        *(
            Entry(
                name=name,
                python=str(engine),
                path=standins,
                environment=on_cpu,
                imports="import sglang.srt.mem_cache.unified_radix_cache",
                absent=absent,
            )
            for name in ("rust", "python", "sglang", "sglang_pools")
        ),
    ]


# The installed package comes before the working tree: what is measured is what users get, compiled if it was.
WORKER = f"import sys; sys.path.append({str(ROOT)!r}); from benches.worker import main; main()"


class Contestant:
    """A running worker. Every step returns its reply; a broken worker answers with an error for good."""

    def __init__(self, entry: Entry, cpu: int) -> None:
        self.entry = entry
        self.series = ""
        self._started = False
        self._broken = ""
        self._process = subprocess.Popen(
            [entry.python, "-W", "ignore", "-c", WORKER, entry.name, str(cpu)],
            cwd=ROOT,
            env=entry.variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.hello = self._receive()

    def begin(self, case: Case) -> dict[str, Any]:
        """A clean process for the case, or the one of its series; then set it up."""
        if not (case.series and case.series == self.series):
            self.leave()
            self._ask({"do": "start"})
            self._started = True
        self.series = case.series
        return self._ask({"do": "prepare", "case": asdict(case)})

    def round(self) -> list[int] | None:
        """One round's samples; None if it failed."""
        samples: list[int] | None = self._ask({"do": "round"}).get("samples")
        return samples

    def close(self) -> dict[str, Any]:
        """Digest, facts and parts of the case."""
        return self._ask({"do": "close"})

    def leave(self) -> None:
        """Let the process of the last tree go."""
        if self._started:
            self._ask({"do": "stop"})
            self._started = False
            self.series = ""

    def quit(self) -> None:
        """End the worker."""
        self.leave()
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        if self._broken:
            return {"error": self._broken}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            self._broken = f"the worker is gone: {error}"
            return {"error": self._broken}
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], LONGEST_STEP_S)[0]:
            self._broken = f"took longer than {LONGEST_STEP_S:.0f} s for one step"
            self._process.kill()
            return {"error": self._broken}
        line = stdout.readline()
        if not line:
            self._broken = "the worker is gone"
            return {"error": self._broken}
        reply: dict[str, Any] = json.loads(line)
        return reply
