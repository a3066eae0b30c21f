"""Time in the connector inside vLLM: `python connector_times.py --requests 160 --rounds 3`, run by the engine's python.

Engines without a connector, with vLLM's `SimpleCPUOffloadConnector` and with this library's serve the same mix in turns, from a
cache of vLLM's that is small enough to evict; `ours-causes` is this library's without the causes of misses. vLLM's connector
copies by CUDA streams, which a CPU lacks: a stand-in copies instead, within the call. So only the scheduler's side of the two
can be compared.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

SUPPORT = Path(__file__).resolve().parents[2] / "support"
sys.path.insert(0, str(SUPPORT))
CONNECTORS = ("none", "vllm", "ours")
HOST_BYTES = 1 << 28
WORKER = (
    "register_kv_caches", "start_load_kv", "wait_for_layer_load", "save_kv_layer", "wait_for_save", "get_finished",
    "get_transfer_results", "get_block_ids_with_load_errors", "build_connector_worker_meta", "handle_preemptions",
    "bind_connector_metadata", "clear_connector_metadata", "get_kv_connector_stats",
)  # fmt: skip
SCHEDULER = (
    "on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta",
    "update_connector_output", "request_finished", "request_finished_all_groups", "has_pending_push_work", "take_events",
    "get_kv_connector_stats", "get_boundary_store_stats", "get_finished_count", "bind_gpu_block_pool",
)  # fmt: skip


class Copied:
    """The stand-in for a CUDA event whose copies have been made."""

    def query(self) -> bool:
        """See torch.Event."""
        return True

    def synchronize(self) -> None:
        """See torch.Event."""


class HereCopies:
    """The stand-in for `DmaCopyBackend`: copies by torch, in the caller's thread."""

    def init(self, gpu_caches: dict[str, Any], cpu_caches: dict[str, Any], *_: Any) -> None:
        """See there."""
        self._pairs = [(gpu_caches[name], cpu_caches[name]) for name in gpu_caches]

    def launch_copy(
        self, sources: list[int], targets: list[int], is_store: bool, event_idx: int, events_list: list[Any], **_: Any
    ) -> None:
        """See there."""
        for gpu, cpu in self._pairs:
            source, target = (gpu, cpu) if is_store else (cpu, gpu)
            target[targets] = source[sources]
        events_list.append((event_idx, Copied()))

    def shutdown(self) -> None:
        """See there."""


class HereTorch:
    """The stand-in for `torch` in the module that copies: without streams and events."""

    def __init__(self) -> None:
        self.cuda, self.Event = mock.MagicMock(), mock.Mock()
        self.cuda.Stream.priority_range.return_value = (0, 0)

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)


class Totals:
    """Calls and seconds by method; a method that another one calls counts as part of the outer one."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._is_inside = False

    def wrap(self, owner: Any, names: tuple[str, ...], side: str) -> None:
        """Time the methods of an object."""
        for name in names:
            if callable(getattr(owner, name, None)):
                setattr(owner, name, self._timed(f"{side} {name}", getattr(owner, name)))

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:
                return call(*args, **kwargs)
            self._is_inside = True
            begin = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds[name] += time.perf_counter() - begin
                self.calls[name] += 1
                self._is_inside = False

        return timed


def engine_with(connector: str, model: str, path: Path) -> Any:
    """An engine of vLLM."""
    from vllm_served_mix import Engine

    if connector.startswith("ours"):
        settings = {"host_gib": HOST_BYTES / (1 << 30), "boundary_tokens": 64}
        return Engine(model, path, settings={**settings, "miss_memory_mib": 0} if connector == "ours-causes" else settings)
    if connector == "none":
        return Engine(model, path, settings={}, connector=None)
    from vllm.v1.simple_kv_offload import worker

    standins: Any = worker
    standins.torch, standins.DmaCopyBackend = HereTorch(), HereCopies
    theirs = {"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both"}
    return Engine(model, path, settings={"cpu_bytes_to_use": HOST_BYTES}, connector=theirs)


def measured(connector: str, model: str, path: Path, seed: int, count: int, profile: Path | None) -> dict[str, Any]:
    """Serve a mix with one connector; what took how long."""
    from vllm_served_mix import mix

    engine = engine_with(connector, model, path)
    totals = Totals()
    if connector != "none":
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        totals.wrap(engine.core.scheduler.connector, SCHEDULER, "scheduler")
        totals.wrap(get_kv_transfer_group(), WORKER, "worker")
    steps = Totals()
    steps.wrap(engine.llm.llm_engine, ("step",), "engine")
    mix(engine, seed + 1, 20, aborts=0, forgets=False)
    for each in (totals, steps):
        each.calls.clear()
        each.seconds.clear()
    engine.hits.clear()
    if profile is not None:
        import cProfile

        profiler = cProfile.Profile()
        profiler.enable()
    begin = time.perf_counter()
    served = mix(engine, seed, count, aborts=0, forgets=False)
    seconds = time.perf_counter() - begin
    if profile is not None:
        profiler.disable()
        profiler.dump_stats(profile)
    found = {
        "seconds": seconds, "steps": steps.calls["engine step"], "calls": totals.calls, "spent": totals.seconds,
        "prompt": sum(len(tokens) for tokens, *_ in served), "hits": sum(engine.hits.values()), "requests": len(served),
        "outputs": [output for *_, output in served],
    }  # fmt: skip
    engine.core.shutdown()
    return found


def line(name: str, rounds: list[dict[str, Any]]) -> str:
    """The rounds of one connector: hits, and the time for each request and step, scheduler's side and worker's."""
    cells = [f"{name}: {rounds[0]['hits']:,} of {rounds[0]['prompt']:,} tokens were hits"]
    for side in ("scheduler", "worker"):
        for unit in ("requests", "steps"):
            each = [sum(s for key, s in r["spent"].items() if key.startswith(side)) / r[unit] * 1e6 for r in rounds]
            cells.append(f"{side} us for each of {rounds[0][unit]:,} {unit}: " + ", ".join(f"{us:.0f}" for us in each))
    cells.append("seconds: " + ", ".join(f"{r['seconds']:.1f}" for r in rounds))
    for key in sorted(rounds[0]["spent"], key=lambda key: -rounds[0]["spent"][key])[:12]:
        each = [1e6 * r["spent"][key] / r["calls"][key] for r in rounds]
        cells.append(f"    {key}: {rounds[0]['calls'][key]:,} calls, us a call: " + ", ".join(f"{us:.1f}" for us in each))
    return "\n".join(cells)


def main() -> None:
    """Measure in turns, each engine in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connectors", default=",".join(CONNECTORS))
    parser.add_argument("--model", default="llama")
    parser.add_argument("--requests", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--profile", type=Path, help="a file for the profile of one round of one connector")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    model = Path(tempfile.gettempdir()) / f"unified-tree-vllm-{options.model}"
    if options.one is not None:
        found = measured(options.connectors, options.model, model, options.seed, options.requests, options.profile)
        options.one.write_text(json.dumps(found))
        return
    import vllm_tiny_models

    if not model.exists():
        vllm_tiny_models.MODELS[options.model](model)
    work = Path(tempfile.mkdtemp(prefix="unified-tree-connector-times-"))
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in options.connectors.split(",")}
    for turn in range(options.rounds):
        for name, turns in rounds.items():
            result = work / f"{name}.{turn}.json"
            command = [sys.executable, "-W", "ignore", __file__, "--one", str(result), "--connectors", name]
            command += ["--model", options.model, "--requests", str(options.requests), "--seed", str(options.seed)]
            command += ["--profile", str(options.profile)] if options.profile else []
            with (work / f"{name}.{turn}.log").open("w") as log:
                subprocess.run(command, stdout=log, stderr=log, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            turns.append(json.loads(result.read_text()))
    outputs = [each["outputs"] for turns in rounds.values() for each in turns]
    assert all(each == outputs[0] for each in outputs), "outputs differ"
    for name, turns in rounds.items():
        print(line(name, turns), flush=True)
    print(f"all outputs are equal; logs: {work}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
