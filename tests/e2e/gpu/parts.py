"""The parts of the kit: which engines run, one after another or at once, and what is said of them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny_models
from cache_times import Times
from caches import CONFIG_VARIABLE, HOST, OURS, Cache
from cases import CASES, Case
from host_hits import saved_shape
from imported_engine import ImportedEngine
from run_mixes import Run, Serving, base_environment, compare, last_error, served
from written import written

HERE = Path(__file__).resolve().parent
REHEARSAL = HERE / "rehearsal"
PLAIN = ("llama", "mellum", "qwen3-next", "deepseek")
WITH_GRAPHS = ("llama-page16", "mellum-page16", "qwen3-next-extra-overlap", "deepseek-page16")
"""Cases with overlap scheduling, and with CUDA graphs where there are any."""
GRAPHS = "+graphs"
FAULTS = {
    "slow loads": True,
    "slow loads, no gate": False,
    "late passes": True,
    "late passes, no fence": False,
}
"""By what is planted whether outputs are those of no cache all the same."""
PASSED, FAILED, NOT_REACHED, LEFT_OUT = "passed", "failed", "not reached", "not run: needs CUDA"
"""What the summary says of a part."""
REHEARSED = "none,ours+host"
SHORT: dict[str, object] = {"waves": 2, "at_once": 2, "longest": 64, "longest_answer": 3}
"""The mix of a rehearsal, in which Triton's kernels are interpreted."""
ON_GPU_ALONE = ("late passes", "late passes, no fence")
"""On a CPU a pass has ended when its copies are asked for."""
NEEDS_CUDA = {
    "outputs": ("CUDA graphs", "streams beside overlap scheduling"),
    "faults": ON_GPU_ALONE,
    "speed": ("HiCache, which pins its memory",),
    "loads": ("the shape of Llama 3.1 8B",),
}
"""What each part leaves out on a CPU."""
HIERARCHICAL: dict[str, object] = {"enable_hierarchical_cache": True, "hicache_ratio": 2.0}
SPEED_CACHES = (
    Cache(name="builtin", engine={}),
    Cache(name="hicache", engine={**HIERARCHICAL, "hicache_io_backend": "direct", "hicache_mem_layout": "layer_first"}),
    Cache(name="ours", engine=OURS, config={}),
    Cache(name="ours+host", engine={**OURS, **HIERARCHICAL}, config={}, write_policy="write-through"),
)
OUTPUT_CACHES = {
    "none": Cache(name="none", engine={"disable_radix_cache": True}),
    "builtin": SPEED_CACHES[0],
    "ours": SPEED_CACHES[2],
    "ours+host": Cache(name="ours+host", engine={**OURS, **HIERARCHICAL, "hicache_ratio": 4.0}, config=HOST),
}


class FreshEngine:
    """As `ImportedEngine`, with a process of its own for each spec: after CUDA has started no process can fork."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def serve(
        self, spec: Path, environment: dict[str, str], log: Path, timeout: float, program: str = "serve_mixes.py"
    ) -> None:
        """Run a program on a spec, to its end or to the end of the time."""
        command = [sys.executable, "-W", "ignore", str(next(p for p in programs(program) if p.exists())), str(spec)]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def close(self) -> None:
        """Nothing runs on."""


def programs(name: str) -> list[Path]:
    """Where a program may be."""
    return [HERE / name, HERE.parent / "sglang" / name]


class Bench:
    """All parts, with one deadline.

    Attributes:
        found: what is written as JSON.
    """

    def __init__(self, options: argparse.Namespace, begun: float) -> None:
        self.options = options
        self.is_cuda = options.device == "cuda"
        self.is_gpu = self.is_cuda and not options.rehearse
        self.end = begun + options.minutes * 60
        self.work = options.out / "work"
        self.models = options.out / "models"
        for folder in (self.work, self.models):
            folder.mkdir(exist_ok=True)
        self.environment = self._environment()
        self.engines: dict[str, FreshEngine | ImportedEngine] = {}
        self.found: dict[str, Any] = {"machine": self._machine(), "kit MB": options.kit_mb, "summary": []}
        self.wrong: list[str] = []
        self.not_reached: list[str] = []

    def _environment(self) -> dict[str, str]:
        """What all engines are told."""
        base = {**base_environment(self.work, self.options.source), "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1"}
        path = [base["PYTHONPATH"], os.environ.get("PYTHONPATH", "")]
        if self.is_cuda:
            base.pop("SGLANG_USE_CPU_ENGINE")
            base["SGLANG_FORCE_FUSED_OP_BACKEND"] = "torch"
            base["SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK"] = "1"
            base["SGLANG_PLUGINS"] = "unified_tree,cache_timing,cuda_operators,planted_faults"
            base["TRITON_F32_DEFAULT"] = "ieee"  # and not tf32, of which a sum depends on how a prompt was cut
        if self.options.rehearse or self.options.kit:
            # The other core, in Rust, is compiled for one version of torch, and makes tensors by itself.
            base["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"] = "python"
        if self.options.rehearse:
            path.insert(0, str(REHEARSAL))
            base |= {"UNIFIED_TREE_REHEARSAL": "1", "TRITON_INTERPRET": "1"}
        return {**base, "PYTHONPATH": os.pathsep.join(each for each in path if each)}

    def _machine(self) -> dict[str, object]:
        import torch
        import triton

        is_gpu = self.is_gpu and torch.cuda.is_available()
        return {
            "device": torch.cuda.get_device_name() if is_gpu else "CPU, passing for a GPU" if self.is_cuda else "CPU",
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cores": os.cpu_count(),
            "SGLang's tree core": self.environment.get("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "rust"),
        }

    def run(self, parts: Iterable[str]) -> int:
        """Run these parts; 1 unless all of them passed."""
        for part in parts:
            self.found["summary"] += self._run(part)
            written(self.found, self.options.out)
            line = self.found["summary"][-1 - len(self._left_out(part))]
            print(f"{part}: {line['status']} in {line['seconds']} s. {line['reason']}", flush=True)
        print((self.options.out / "gpu.md").read_text())
        return 0 if all(line["status"] in (PASSED, LEFT_OUT) for line in self.found["summary"]) else 1

    def _run(self, part: str) -> list[dict[str, object]]:
        """Run a part; what the summary says of it, and of what it leaves out."""
        begun = time.monotonic()
        self.wrong, self.not_reached = [], []
        try:
            self.found[part] = getattr(self, f"_{part}")()
        except Exception as error:  # the other parts run all the same
            traceback.print_exc()
            self.found[part] = []
            self.wrong.append(f"{type(error).__name__}: {error}")
        told = {"engines": len(self.found[part]), "seconds": round(time.monotonic() - begun, 1)}
        reasons = [*self.wrong[:3], *([f"not reached in time: {'; '.join(self.not_reached)}"] if self.not_reached else [])]
        status = FAILED if self.wrong else NOT_REACHED if self.not_reached else PASSED
        line = {"part": part, "status": status, **told, "reason": "; ".join(reasons)}
        left_out: list[dict[str, object]] = [{"part": f"{part}: {name}", "status": LEFT_OUT} for name in self._left_out(part)]
        return [line, *left_out]

    def _left_out(self, part: str) -> tuple[str, ...]:
        """What a part does not run on this device."""
        return () if self.is_gpu else NEEDS_CUDA.get(part, ())

    def close(self) -> None:
        """End what was started."""
        for engine in self.engines.values():
            engine.close()

    def _engine(self, case: Case) -> FreshEngine | ImportedEngine:
        """What runs engines: on a CPU forks of one process that has imported SGLang, by what is read at the import."""
        early = {key: value for key, value in case.environment.items() if key.startswith("TRITON")}
        key = str(early)
        if key not in self.engines:
            kind = FreshEngine if self.is_gpu else ImportedEngine
            self.engines[key] = kind({**self.environment, **early})
        return self.engines[key]

    def _placed(self, name: str, *, suffix: str = "", graphs: bool = False, **engine: object) -> Case:
        """A case of the mixes on this device."""
        case = next(each for each in CASES if each.name == name)
        environment = dict(case.environment)
        settings: dict[str, object] = {**case.engine, **engine, "disable_overlap_schedule": not graphs}
        if self.is_cuda:
            environment.pop("TRITON_INTERPRET", None)
            settings |= {"device": "cuda", "attention_backend": "triton", "sampling_backend": "pytorch"}
            settings["disable_cuda_graph"] = not graphs or self.options.rehearse
            settings["disable_prefill_cuda_graph"] = True
        name = f"{name}{suffix}{GRAPHS if graphs else ''}"
        return replace(case, name=name, engine=settings, environment=environment, mix={**case.mix, **self.options.mix})

    def _allowed(self, cache: Cache) -> Cache:
        """The cache with a host tier on a GPU."""
        is_held_back = self.is_cuda and cache.is_ours and cache.has_host
        return replace(cache, config={**(cache.config or {}), "allow_unproven_gpu": True}) if is_held_back else cache

    def _serve(
        self, case: Case, cache: Cache, *, turn: int = 0, seeds: Iterable[int] = (), is_timed: bool = False, **more: object
    ) -> Run:
        left = self.end - time.monotonic()
        options = Serving(models=self.models, no_aborts=is_timed, timing=is_timed, timeout=max(1, left))
        if left <= 0:
            self.not_reached.append(f"{case.name}, {cache.name}")
            return Run(case, cache, turn)
        run = served(case, self._allowed(cache), turn, list(seeds), self.work, options, self._engine(case), more)
        if run.trouble and time.monotonic() >= self.end:
            self.not_reached.append(f"{case.name}, {cache.name}")
        else:
            self.wrong += [f"{case.name}, {cache.name}: {line}" for line in run.trouble]
        print(f"{case.name}, {cache.name}: {len(run.requests)} requests; {run.trouble[:1] or 'served'}", flush=True)
        return run

    def _at_once(self) -> ThreadPoolExecutor:
        """Runs engines at once, where each has a process of its own."""
        return ThreadPoolExecutor(self.options.workers if self.is_gpu else 1)

    def _beside(self, cases: list[tuple[Case, list[Cache]]]) -> list[dict[str, Any]]:
        """Serve each case without a cache, then with its caches on the same conversations; a row for each."""
        seeds = range(self.options.mixes)
        for name in sorted({case.model for case, _ in cases}):
            tiny_models.saved(name, self.models)
        with self._at_once() as pool:
            first = list(pool.map(lambda c: self._serve(c[0], OUTPUT_CACHES["none"], seeds=seeds, margins=True), cases))
            jobs = []
            for index, (reference, (case, caches)) in enumerate(zip(first, cases, strict=True)):
                known = str(self.work / f"{case.name}.none.json") if reference.mixes else None
                for turn, cache in enumerate(caches, start=index):
                    jobs.append((reference, pool.submit(self._serve, case, cache, turn=turn, seeds=seeds, answers=known)))
        rows = [self._row(run, None) for run in first]
        rows += [self._row(job.result(), reference) for reference, job in jobs]
        return rows

    def _row(self, run: Run, reference: Run | None) -> dict[str, Any]:
        if reference is not None and run.mixes:
            compare(run, reference, None)
        requests = run.requests
        return {
            "case": run.case.name,
            "cache": run.cache.name,
            "writes": run.cache.writes(run.turn),
            "requests": len(requests),
            "prompt tokens": sum(request["prompt_tokens"] for request in requests),
            "cached tokens": sum(request["cached_tokens"] for request in requests),
            "retractions": sum(request["retractions"] for request in requests),
            "equal": run.equal if reference is not None else len(requests),
            "undecided": run.ties,
            "seconds": round(sum(mix["seconds"] for mix in run.mixes), 1),
            "trouble": run.trouble[:3],
        }

    def _outputs(self, plain: Iterable[str] = PLAIN) -> list[dict[str, object]]:
        def caches(names: str) -> list[Cache]:
            return [
                OUTPUT_CACHES[name] for name in names.split(",") if name != "none" and name in self.options.caches.split(",")
            ]

        pool = {} if self.options.pool is None else {"max_total_tokens": self.options.pool}
        cases = [(self._placed(name, **pool), caches(self.options.caches)) for name in plain]
        cases += [(self._placed(name, graphs=True, **pool), caches(self.options.overlap_caches)) for name in WITH_GRAPHS]
        rows = self._beside([(case, with_caches) for case, with_caches in cases if case.name.startswith(self.options.cases)])
        for row in rows:
            if row["requests"]:
                self.wrong += [f"{row['case']}, {row['cache']}: {line}" for line in row["trouble"]]
        return rows

    def _faults(self) -> list[dict[str, object]]:
        """What is planted, and whether the outputs show it. A fault that shows is no trouble."""
        case = self._placed("llama-small", suffix="+faults", max_total_tokens=600)
        reference = self._beside([(case, [])])
        known = str(self.work / f"{case.name}.none.json")
        wanted = (
            Run(case, OUTPUT_CACHES["none"], 0, json.loads(Path(known).read_text())["mixes"])
            if reference[0]["requests"]
            else None
        )
        planted = [name for name in FAULTS if self.is_gpu or name not in ON_GPU_ALONE]
        rows = []
        with self._at_once() as pool:
            jobs = []
            for name in planted:
                spoilt = replace(case, name=f"{case.name}-{name.replace(', ', '-').replace(' ', '-')}")
                spoilt = replace(spoilt, environment={**case.environment, "SGLANG_PLANTED_FAULT": name})
                cache = replace(OUTPUT_CACHES["ours+host"], write_policy="write-through")
                jobs.append(pool.submit(self._serve, spoilt, cache, seeds=range(self.options.mixes), answers=known))
            for name, job in zip(planted, jobs, strict=True):
                row = self._row(job.result(), wanted)
                differs = bool(row["requests"]) and bool(row["trouble"])
                rows.append({"planted": name, "outputs": "differ" if differs else "equal", **row})
                if row["requests"] and differs == FAULTS[name]:
                    self.wrong.append(f"{name}: outputs {rows[-1]['outputs']}")
        return rows

    def _speed(self) -> list[dict[str, object]]:
        """Engines start at once and serve in turns."""
        tiny_models.saved("llama", self.models)
        rows: list[dict[str, object]] = []
        with ThreadPoolExecutor(8 if self.is_gpu else 1) as pool:
            jobs = []
            for crowd in self.options.crowds.split(","):
                tokens: dict[str, Any] = {"max_total_tokens": 384 * int(crowd), "max_running_requests": int(crowd)}
                case = self._placed("llama-64", graphs=True, **tokens)
                at_once = 500 if self.is_gpu else 2 * int(crowd)
                case = replace(case, name=f"llama-{crowd}{GRAPHS}", mix={**case.mix, "at_once": at_once})
                if self.is_cuda:
                    case.engine["cuda_graph_max_bs_decode"] = int(crowd)
                turn = str(self.work / "turn")
                for cache in SPEED_CACHES:
                    if cache.name == "hicache" and (not self.is_gpu):
                        continue  # it pins its memory
                    jobs.append(pool.submit(self._serve, case, cache, seeds=[0, 1], is_timed=True, turn_file=turn))
            for job in jobs:
                rows += self._timed(job.result())
        return rows

    def _timed(self, run: Run) -> list[dict[str, object]]:
        path = self.work / f"{run.case.name}.{run.cache.name}.timing.jsonl"
        if not run.mixes or not path.exists():
            self.wrong += [f"{run.case.name}, {run.cache.name}: not timed"] if run.mixes else []
            return [{"case": run.case.name, "cache": run.cache.name, "trouble": run.trouble or ["not timed"]}]
        cached = sum(request["cached_tokens"] for request in run.requests)
        prompts = sum(request["prompt_tokens"] for request in run.requests)
        times = Times.read(path)
        return [
            {
                "case": run.case.name,
                "cache": run.cache.name,
                "requests": len(run.requests),
                "prompt tokens": prompts,
                "cached tokens": cached,
                "steps/s": round(times.steps / times.wall, 1),
                "steps/s of each mix": [round(rate, 1) for rate in times.rates],
                "requests a decode step": round(times.decode_rows / max(1, times.decode_steps), 1),
                "cache us a request": round(1e6 * times.total / len(run.requests)),
                "cache us a step": round(1e6 * times.total / max(1, times.steps)),
                "cache's share": round(times.total / times.wall, 4),
            }
        ]

    def _loads(self) -> list[dict[str, object]]:
        """A prompt that is computed, and one that the host tier has, with a model of a usual shape on a GPU."""
        lengths = [int(length) for length in self.options.lengths.split(",")]
        is_large = self.is_gpu
        model = saved_shape(self.models, is_large=is_large)
        case = self._placed("llama", graphs=False, page_size=16, chunked_prefill_size=4096)
        tokens = 3 * max(lengths)
        engine = {
            **case.engine,
            **OURS,
            **HIERARCHICAL,
            "model_path": str(model),
            "load_format": "dummy",
            "dtype": "bfloat16" if is_large else "float32",
            "max_total_tokens": tokens,
            "context_length": max(lengths) + 64,
            "max_running_requests": 4,
        }
        spec, result = self.work / "loads.spec.json", self.work / "loads.json"
        contents = {"engine": engine, "lengths": lengths, "tokens": tokens, "rounds": 3, "result": str(result)}
        spec.write_text(json.dumps(contents))
        config = {**({"allow_unproven_gpu": True} if self.is_cuda else {}), "write_policy": "write-through"}
        environment = {**self.environment, **case.environment, CONFIG_VARIABLE: json.dumps(config)}
        log = self.work / "loads.log"
        left = max(1.0, self.end - time.monotonic())
        FreshEngine(self.environment).serve(spec, environment, log, left, "host_hits.py")
        if not result.exists():
            if time.monotonic() >= self.end:
                self.not_reached.append("loads")
            else:
                self.wrong.append(f"no result: {log}: {last_error(log)}")
            return []
        rows: list[dict[str, Any]] = json.loads(result.read_text())
        self.wrong += [f"{row['prompt tokens']} tokens: nothing came from host" for row in rows if not min(row["from host"])]
        return rows

    def _branches(self) -> list[dict[str, object]]:
        """The part outputs with SGLang's branches for CUDA: pages, and overlap scheduling, with short requests."""
        told = {
            "device": "cuda",
            "rehearse": True,
            "out": self.options.out / "rehearsal",
            "mixes": 1,
            "overlap_caches": REHEARSED,
            "mix": SHORT,
            "minutes": (self.end - time.monotonic()) / 60,
        }
        options = argparse.Namespace(**{**vars(self.options), **told})
        options.out.mkdir(exist_ok=True)
        bench = Bench(options, time.monotonic())
        try:
            return bench._outputs(plain=())
        finally:
            bench.close()
            self.wrong, self.not_reached = bench.wrong, bench.not_reached
