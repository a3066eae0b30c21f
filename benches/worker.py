"""One contestant's process: imports it once, and forks for each tree, so that every tree starts in a clean process.

Started as `python -m benches.worker NAME CPU`. Commands and replies are JSON, one a line, over stdin and stdout:
`start` forks, `prepare` sets a case up, `round` takes its samples, `close` asks for digest and facts, `stop` ends the fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from benches.case import Case
from benches.catalogue import SCENARIOS
from benches.scenarios import Leaves, Scenario
from benches.subject import Subject, UnsupportedError

ADAPTERS = {
    "ours": ("benches.ours", "TreeSubject", ()),
    "prefix_cache": ("benches.serving", "PrefixCacheServer", ()),
    "floor": ("benches.floor", "FloorServer", ()),
    "sglang": ("benches.sglang_server", "SglangServer", (True,)),
    "sglang_pools": ("benches.sglang_server", "SglangServer", (False,)),
    "rust": ("benches.sglang_peer", "SglangSubject", ("rust",)),
    "python": ("benches.sglang_peer", "SglangSubject", ("python",)),
}
RETAINED_BYTES = 24 << 20
"""glibc hands smaller blocks back to the system, and their pages fault anew in each request, until one so large was freed. In a
server that is soon, so here it is before everything, for every contestant."""


def adapter(name: str) -> Callable[[], Subject]:
    """What makes a contestant's subject; importing its library happens here."""
    module, attribute, arguments = ADAPTERS[name]
    make = getattr(importlib.import_module(module), attribute)
    return lambda: make(*arguments)


class Bout:
    """One fork: a subject, and the scenario under way."""

    def __init__(self, make: Callable[[], Subject]) -> None:
        self._make = make
        self._subject: Subject | None = None
        self._leaves: Leaves | None = None
        self._scenario: Scenario | None = None

    def prepare(self, case: Case) -> dict[str, Any]:
        """Set a case up, in the tree of the case before if both are of a series."""
        self._scenario = None
        if self._subject is None:
            bytes(RETAINED_BYTES)  # freed at once
            self._subject = self._make()
        self._scenario = SCENARIOS[case.operation](self._subject, case, self._leaves)
        self._leaves = self._scenario.leaves if case.series else None
        for _ in range(self._scenario.warm_up):
            self._scenario.sample()
        gc.collect()
        return {"unit": self._scenario.unit, "repeats": self._scenario.repeats}

    def round(self) -> dict[str, Any]:
        """Take a round's samples."""
        assert self._scenario is not None
        self._scenario.begin_round()
        sample = self._scenario.sample
        return {"samples": [sample() for _ in range(self._scenario.case.samples)]}

    def close(self) -> dict[str, Any]:
        """What the samples amounted to."""
        scenario = self._scenario
        assert scenario is not None
        parts = {name: sum(spent) / len(spent) for name, spent in scenario.parts_ns.items()}
        return {"digest": scenario.digest(), "facts": scenario.facts(), "parts_ns": parts}

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Do one command; a failure is an answer too."""
        try:
            if command["do"] == "prepare":
                return self.prepare(Case(**command["case"] | {"only": ()}))
            return self.round() if command["do"] == "round" else self.close()
        except UnsupportedError as reason:
            return {"unsupported": str(reason)}
        except Exception as error:  # the other side of a process boundary: goes into the table
            return {"error": f"{type(error).__name__}: {error}"}


def serve(make: Callable[[], Subject], reply: Callable[[dict[str, Any]], None]) -> None:
    """Fork for each `start`; the fork answers until `stop`."""
    while command := _read():
        if command["do"] != "start":
            reply({} if command["do"] == "stop" else {"error": "the process for this case is gone"})
            continue
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            if status:
                reply({"error": f"the process for this case died with status {status}"})
            continue
        try:
            bout = Bout(make)
            reply({})
            while (command := _read()) and command["do"] != "stop":
                reply(bout.answer(command))
            reply({})
        finally:
            os._exit(0)


def _read() -> dict[str, Any]:
    """The next command; {} at the end. Unbuffered, for parent and fork read in turns."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1 << 16)
        if not part:
            return {}
        line += part
    return json.loads(line)  # type: ignore[no-any-return]


def main() -> None:
    """See the module."""
    name, cpu = sys.argv[1], int(sys.argv[2])
    warnings.simplefilter("ignore")
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not get between the replies

    def reply(message: dict[str, Any]) -> None:
        os.write(out, json.dumps(message).encode() + b"\n")

    with contextlib.suppress(AttributeError, OSError):
        os.sched_setaffinity(0, {cpu})
    try:
        make = adapter(name)
        make()
    except Exception as error:  # an absent rival says so in the table
        reply({"error": f"{type(error).__name__}: {error}"})
        return
    gc.collect()
    gc.freeze()
    reply({})
    serve(make, reply)


if __name__ == "__main__":
    main()
