"""A vLLM engine in this process, the mixes of requests that it serves step by step, and the outputs without a cache."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import vllm_tiny_models as tiny_models

from unified_tree import Tier
from unified_tree.controllers import PageAllocator

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # so that a test can look into the scheduler and the worker
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

CONNECTOR = {
    "kv_connector": "UnifiedTreeConnector",
    "kv_connector_module_path": "unified_tree.controllers.adapters.vllm.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}
SETTINGS: dict[str, Any] = {"host_gib": 0.05, "boundary_tokens": 64, "verify": True}
"""The connector's, for a small host tier."""
BLOCK_TOKENS = {"llama": 32, "gemma3": 32, "qwen3_next": 256}
"""The smallest that vLLM takes on CPU: attention needs 32, and a block must hold one of Qwen3-Next's states."""
STEP_TOKENS = {"llama": 64, "gemma3": 64, "qwen3_next": 256}


class Engine:
    """One engine with a connector behind it.

    Args:
        model: of tiny_models.
        path: where it was saved.
        blocks: of vLLM's own cache.
        settings: of the connector.
        connector: this library's if left out; None for none.
        more: arguments of vLLM.
    """

    salts: tuple[str | None, ...] = (None, None, "salt")
    """What the requests of a mix choose from."""

    def __init__(
        self,
        model: str,
        path: Path,
        *,
        blocks: int = 60,
        settings: dict[str, Any],
        connector: dict[str, Any] | None = CONNECTOR,
        **more: Any,
    ) -> None:
        from vllm import LLM

        self.model = model
        self.page = BLOCK_TOKENS[model]
        self.llm = LLM(
            str(path), dtype=tiny_models.DTYPES[model], block_size=self.page,
            max_model_len=8 * self.page + 64,
            max_num_batched_tokens=STEP_TOKENS[model], num_gpu_blocks_override=blocks, enable_prefix_caching=True,
            enforce_eager=True, max_num_seqs=4, disable_log_stats=False,
            kv_transfer_config=connector and {**connector, "kv_connector_extra_config": dict(settings)},
            **{"skip_tokenizer_init": True, **more},
        )  # fmt: skip
        self.core = self.llm.llm_engine.engine_core.engine_core
        self._counted: Counter[str] = Counter()
        self.side: Any = None
        if connector is CONNECTOR:
            self.side = self.core.scheduler.connector.scheduler_side
            take = self.side.take_counters

            def counted() -> dict[str, int]:
                counters: dict[str, int] = take()
                self._counted.update(counters)
                return counters

            self.side.take_counters = counted  # which vLLM's statistics call with every step
        self.names = iter(range(1 << 30))
        self.outputs: dict[str, list[int]] = {}
        self.hits: dict[str, int] = {}
        self.hit_tokens = 0

    def counters(self) -> dict[str, int]:
        """What the connector counted since the last call."""
        self.side.take_counters()
        counted, self._counted = dict(self._counted), Counter()
        return counted

    def worker(self) -> Any:
        """The worker's side."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group().worker_side

    def add(self, tokens: list[int], *, output_tokens: int = 8, salt: str | None = None, **more: Any) -> str:
        """A request; its name. `more` are arguments of vLLM."""
        from vllm import SamplingParams

        name = f"request-{next(self.names)}"
        prompt = {"prompt_token_ids": tokens} | ({"cache_salt": salt} if salt is not None else {})
        sampling = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True, detokenize=False)
        self.llm.llm_engine.add_request(name, prompt, sampling, **more)
        return name

    def step(self) -> None:
        """One step of the engine."""
        for output in self.llm.llm_engine.step():
            if output.finished:
                self.outputs[output.request_id] = list(output.outputs[0].token_ids)
                self.hits[output.request_id] = output.num_cached_tokens or 0

    def run(self) -> None:
        """Until every request has its tokens, the loads of those that were aborted have ended, and the store is idle."""
        while self.llm.llm_engine.has_unfinished_requests() or (self.side and (self.side.open_jobs or self.side.has_work)):
            self.step()

    def forget(self, *, host: bool = False) -> None:
        """Empty vLLM's own cache, and the host tier if asked to."""
        assert self.llm.reset_prefix_cache(reset_connector=host)

    def right(self, asked: Iterable[tuple[list[int], str | None]]) -> list[list[int]]:
        """The outputs of prompts with their salts, without any cache."""
        given, alone = list(asked), dict[Any, list[int]]()
        for tokens, salt in given:
            if (tuple(tokens), salt) not in alone:
                alone[tuple(tokens), salt] = self.alone(tokens, salt=salt)
        return [alone[tuple(tokens), salt] for tokens, salt in given]

    def alone(self, tokens: list[int], **options: Any) -> list[int]:
        """The output without any cache."""
        self.forget(host=True)
        name = self.add(tokens, **options)
        self.run()
        assert self.hits[name] == 0
        return self.outputs[name]


def mix(
    engine: Engine, seed: int, count: int, *, aborts: float = 0.15, forgets: bool = True
) -> list[tuple[list[int], str | None, list[int]]]:
    """Serve shared heads, continued conversations, branches and salts, several at once, some aborted; vLLM's own cache is
    emptied now and then, if it forgets. Returns the prompts, their salts, and the outputs of those that were not aborted.
    """
    pick, page = random.Random(seed), engine.page
    past = [[pick.randrange(3, tiny_models.VOCABULARY) for _ in range(3 * page + 7)] for _ in range(2)]
    asked: dict[str, tuple[list[int], str | None]] = {}
    open_names: list[str] = []
    for _ in range(count):
        head = pick.choice(past)
        cut = pick.choice([len(head), len(head), pick.randrange(len(head) + 1)])
        tail = [pick.randrange(3, tiny_models.VOCABULARY) for _ in range(pick.randrange(1, page // 2 + 20))]
        tokens, salt = [*head[:cut], *tail][: 7 * page], pick.choice(engine.salts)
        name = engine.add(tokens, salt=salt)
        asked[name] = (tokens, salt)
        open_names.append(name)
        for _ in range(pick.randrange(4)):
            engine.step()
        if pick.random() < aborts:
            victim = pick.choice(open_names)
            if victim not in engine.outputs:
                engine.llm.llm_engine.abort_request([victim])
                asked.pop(victim, None)
        if pick.random() < 0.35:
            engine.run()
            past += [tokens + engine.outputs[name] for name, (tokens, _) in asked.items() if name in engine.outputs][-2:]
            if forgets:
                engine.forget()
            open_names.clear()
    engine.run()
    return [(tokens, salt, engine.outputs[name]) for name, (tokens, salt) in asked.items()]


def wrong_outputs(engine: Engine, seed: int, count: int, **options: Any) -> tuple[int, dict[str, int]]:
    """Serve a mix; how many outputs differ from no cache, and the connector's counters."""
    served = mix(engine, seed, count, **options)
    counters = engine.counters()
    print(f"{engine.model}: {count} requests, {len(served)} not aborted, {counters}")
    right = engine.right((tokens, salt) for tokens, salt, _ in served)
    return sum(output != without for (*_, output), without in zip(served, right, strict=True)), counters


def small_host(pages: int) -> Any:
    """While it is open, the host tier has so many pages of every group, so that it evicts."""
    return mock.patch.object(PageAllocator, "free_pages", property(lambda pool: pages - pool.used_pages))


@contextmanager
def ended(engine: Engine) -> Iterator[Engine]:
    """An engine that ends with a sound tree and nothing in flight."""
    try:
        yield engine
        assert engine.side.index.tree.check() == []
        assert not engine.side.open_jobs
        assert not engine.side.has_work
    finally:
        engine.core.shutdown()


def keys_of_tokens_alone() -> Any:
    """While it is open, keys do not tell what lies behind placeholders."""

    def tokens_alone(request: Any, begin: int, end: int) -> Any:
        return np.array(request.all_token_ids[begin:end], np.int64)

    return mock.patch("unified_tree.controllers.adapters.vllm.engine_request.key_tokens", tokens_alone)


def host_and_files(directory: Path) -> dict[str, Any]:
    """The connector's settings for a small host tier with a file store behind it, which waits for all that is stored."""
    store = {
        "engine": "file", "directory": str(directory), "capacity_bytes": 1 << 30,
        "prefetch": {"mode": "wait_complete", "min_tokens": 1, "max_host_share": 1.0},
    }  # fmt: skip
    return {**SETTINGS, "store": store}


def nothing_leaks(engine: Engine) -> None:
    """The tree is sound, nothing is in flight, and no page is lost or locked."""
    side = engine.side
    assert side.index.tree.check() == []
    assert side.open_jobs == 0
    pools = {group.name: side.index.tree.pool(group.name, Tier.HOST) for group in side.index.groups}
    assert {name: pool.used_pages for name, pool in pools.items()} == side.index.used_pages
    assert not any(pool.protected_pages for pool in pools.values())
