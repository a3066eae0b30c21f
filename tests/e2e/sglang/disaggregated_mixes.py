"""Prefill on one server and decode on another, by SGLang's own schedulers, with this cache on both: `python
disaggregated_mixes.py`.

Random prompts with common beginnings are served by one engine without a cache, then by a prefill and a decode server that
share a folder for what is transferred (`sglang_standins.file_transfer`). Transfers take time, some fail when a part has
arrived, some requests are aborted at random moments. `--prefill` names the cache of the prefill server, which may have a host
tier and files behind it. Every output that came to its end must be that without a cache, and both servers, whose pools SGLang
checks after each step, must be able to empty their caches at the end. The engine's python runs it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import plugin_path
import tiny_models
from caches import CONFIG_VARIABLE, Cache, chosen
from run_mixes import CHECKS, ENGINE
from server_kills import Kills

ROLES = ("none", "prefill", "decode")
AT_ONCE = 6
PATIENCE_S = 300.0
SETTINGS: dict[str, dict[str, object]] = {
    "llama": {},
    "mellum": {"swa_full_tokens_ratio": 0.5, "page_size": 16},
    "qwen3-next": {"max_mamba_cache_size": 24},
    "deepseek": {"page_size": 16},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt, how many tokens are asked for, and whether it is aborted."""

    prompt: list[int]
    new_tokens: int
    is_aborted: bool


def drawn(count: int, aborts: float, seed: int) -> list[Request]:
    """Prompts that begin alike, or as a part of an earlier one does."""
    draw = random.Random(seed)

    def tokens(length: int) -> list[int]:
        return [draw.randrange(tiny_models.VOCABULARY) for _ in range(length)]

    heads, found = [tokens(length) for length in (40, 80, 130)], list[Request]()
    for _ in range(count):
        is_new = not found or draw.random() < 0.7
        start = draw.choice(heads) if is_new else draw.choice(found).prompt[: draw.randint(1, 200)]
        prompt = (start + tokens(draw.randint(1, 50)))[:300]
        found.append(Request(prompt=prompt, new_tokens=draw.randint(2, 12), is_aborted=draw.random() < aborts))
    return found


class Served:
    """One engine in its role, and what it gave."""

    def __init__(
        self, role: str, engine: dict[str, object], requests: list[Request], rooms: Path, prefill: Cache, ratio: float
    ) -> None:
        import sglang

        apart: dict[str, object] = {"radix_cache_backend": "unified_tree", "disaggregation_mode": role}
        apart |= {"disaggregation_transfer_backend": "nixl", "disaggregation_decode_enable_radix_cache": role == "decode"}
        if role == "prefill":
            apart |= prefill.engine
            settings = prefill.settings(rooms.parent / "files")
            if prefill.has_host:
                settings["host"] = {"ratio": ratio}
            os.environ[CONFIG_VARIABLE] = json.dumps(settings)
        more = {"disable_radix_cache": True} if role == "none" else apart
        self.role, self.requests, self.rooms = role, requests, rooms
        self.engine: Any = sglang.Engine(**engine, **more)
        self.manager = self.engine.tokenizer_manager

    def run(self, begin: int, rows: Path) -> bool:
        """Serve all from a request on, in groups that both servers begin together, each written as it ends; then empty the
        cache, and say whether it is empty."""
        loop = self.engine.loop
        loop.run_until_complete(self._all(begin, rows))
        return bool(loop.run_until_complete(self._emptied()))

    async def _all(self, begin: int, path: Path) -> None:
        for first in range(begin, len(self.requests), AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, len(self.requests)))
            tasks = [asyncio.create_task(self._one(number)) for number in numbers]
            for number in numbers if self.role != "none" else ():
                if self.requests[number].is_aborted:
                    await asyncio.sleep(random.Random(number).random() * 0.1)
                    self.manager.abort_request(rid=f"r{number}")
            answers = await asyncio.gather(*tasks)
            with path.open("a") as out:
                out.write("".join(json.dumps({"number": n, **row}) + "\n" for n, row in zip(numbers, answers, strict=True)))
            await self._meet(first)

    async def _meet(self, group: int) -> None:
        """Wait for the other server."""
        if self.role == "none":
            return
        (self.rooms / f"{self.role}.{group}").touch()
        other = self.rooms / f"{'decode' if self.role == 'prefill' else 'prefill'}.{group}"
        end = time.monotonic() + PATIENCE_S
        while not other.exists():
            assert time.monotonic() < end, f"no {other}"
            await asyncio.sleep(0.02)

    async def _one(self, number: int) -> dict[str, Any]:
        from fastapi import HTTPException
        from sglang.srt.managers.io_struct import GenerateReqInput

        request = self.requests[number]
        apart = {"bootstrap_host": "10.0.0.1", "bootstrap_port": 1, "bootstrap_room": number + 1}
        asked = GenerateReqInput(
            input_ids=request.prompt,
            sampling_params={"temperature": 0, "max_new_tokens": request.new_tokens},
            rid=f"r{number}",
            **({} if self.role == "none" else apart),
        )
        answer: dict[str, Any] = {}
        try:
            async for chunk in self.manager.generate_request(asked, None):
                answer = chunk
        except (HTTPException, ValueError) as error:  # a transfer failed
            return {"output": None, "cached": 0, "tiers": {}, "finish": str(error)[:200]}
        told = answer["meta_info"]
        kind = (told.get("finish_reason") or {}).get("type")
        return {
            "output": answer["output_ids"] if kind == "length" else None,
            "cached": told.get("cached_tokens", 0),
            "tiers": told.get("cached_tokens_details") or {},
            "finish": kind,
        }

    async def _emptied(self) -> bool:
        for _ in range(100):
            if (await self.manager.flush_cache()).success:
                return True
            await asyncio.sleep(0.1)
        return False


def apart(
    work: Path, engine: dict[str, object], requests: list[Request], prefill: Cache, ratio: float, role: str, begin: int
) -> int:
    """Fork a process that serves in a role, from a request on; its number."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    try:
        served = Served(role, engine, requests, work / "rooms", prefill, ratio)
        (work / f"{role}.json").write_text(json.dumps({"is_empty": served.run(begin, work / f"{role}.rows")}))
        served.engine.shutdown()
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(0)


def rows_of(path: Path) -> dict[int, dict[str, Any]]:
    """What a server gave, by request."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {line["number"]: line for line in lines}


def compared(work: Path, requests: list[Request], asked_prefixes: list[int]) -> tuple[str, bool]:
    """A line of what was found, and whether all is right."""
    found = {role: json.loads((work / f"{role}.json").read_text()) for role in ROLES if (work / f"{role}.json").exists()}
    if len(found) < len(ROLES):
        return f"no result of {sorted(set(ROLES) - found.keys())}", False
    rows = {role: rows_of(work / f"{role}.rows") for role in ROLES}
    pairs = [(rows["none"][number], row) for number, row in rows["decode"].items()]
    ended = [(wanted["output"], got["output"]) for wanted, got in pairs if got["output"] is not None]
    wrong = sum(wanted != got for wanted, got in ended)
    is_empty = all(each["is_empty"] for each in found.values())
    hits = sum(row["cached"] for row in rows["prefill"].values())
    tiers = {
        tier: sum(row["tiers"].get(tier) or 0 for row in rows["prefill"].values()) for tier in ("device", "host", "storage")
    }
    line = (
        f"{len(ended) - wrong} equal, {wrong} wrong, {len(requests) - len(ended)} aborted, failed or lost; "
        f"{sum(len(request.prompt) for request in requests):,} prompt tokens, {hits:,} from the cache of prefill "
        f"({', '.join(f'{count:,} {tier}' for tier, count in tiers.items() if count)}), "
        f"{sum(asked_prefixes):,} not transferred; {'both caches were emptied' if is_empty else 'A CACHE IS NOT EMPTY'}"
    )
    return line, not wrong and is_empty and bool(ended)


def main() -> int:
    """Serve each model; status 1 if an output is wrong or something is left over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama,mellum", help=f"of {','.join(SETTINGS)}")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--aborts", type=float, default=0.15, help="share of requests")
    parser.add_argument("--fails", type=float, default=0.15, help="share of transfers")
    parser.add_argument("--lasts", type=float, default=0.3, help="seconds that a transfer takes at most")
    parser.add_argument("--prefill", default="ours", help="the cache of the prefill server, of those of `caches` with `ours`")
    parser.add_argument("--ratio", type=float, default=4.0, help="host pages of the prefill server for each device page")
    parser.add_argument("--tokens", type=int, default=1200, help="of each server's pool")
    parser.add_argument("--tp", type=int, default=1, help="ranks of each server, joined by gloo")
    parser.add_argument("--kills", type=int, default=0, help="of either server, while transfers are under way")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overlap", action="store_true", help="with overlap scheduling")
    parser.add_argument("--source", type=Path, help="a checkout of unified_tree that the engine imports, if not installed")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "unified-tree-tiny-models")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="unified-tree-apart-"))
    path = plugin_path.joined(work, options.source)
    sys.path[:0] = path.split(os.pathsep)
    os.environ |= {**CHECKS, "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    os.environ |= {"TRITON_INTERPRET": "1", "SGLANG_MAMBA_CONV_DTYPE": "float32", "SGLANG_TRANSFER_FAILS": str(options.fails)}
    os.environ["SGLANG_TRANSFER_S"] = str(options.lasts)
    if options.tp > 1:  # SGLang asks for a core of its own for each rank, where a machine has fewer memory nodes
        os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(core) for core in range(options.tp))
    [prefill] = chosen([options.prefill])
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler  # noqa: F401  # both are imported to be forked

    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *_, **__: None
    requests = drawn(options.requests, options.aborts, options.seed)
    is_right = True
    for name in options.models.split(","):
        rooms = work / name / "rooms"
        rooms.mkdir(parents=True)
        (work / name / "files").mkdir()
        os.environ["SGLANG_FILE_TRANSFER"] = str(rooms)
        engine = {
            **ENGINE,
            "max_total_tokens": options.tokens,
            "page_size": 1,
            "tp_size": options.tp,
            "max_running_requests": 8,
        }
        engine |= {"num_reserved_decode_tokens": 16, **SETTINGS[name]}
        engine |= {"model_path": str(tiny_models.saved(name, options.folder)), "attention_backend": "cpu_windows"}
        engine["disable_overlap_schedule"] = not options.overlap
        start = partial(apart, work / name, engine, requests, prefill, options.ratio)
        os.waitpid(start("none", 0), 0)
        groups = list(range(0, len(requests), AT_ONCE))
        times = {"ranks": options.tp, "lasts_s": options.lasts, "seed": options.seed}
        kills = Kills(rooms, start, groups, options.kills, **times)
        kills.run()
        prefixes = [int(path.read_text()) for path in rooms.glob("*.0/prefix")]
        line, is_well = compared(work / name, requests, prefixes)
        is_right = is_right and is_well and not kills.ended and bool(kills.done) == bool(options.kills)
        told = f"; {len(kills.done)} kills: {kills.done}" if kills.done else ""
        told += f"; ENDED BY ITSELF: {kills.ended}" if kills.ended else ""
        print(f"{name}: {line}{told}", flush=True)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
