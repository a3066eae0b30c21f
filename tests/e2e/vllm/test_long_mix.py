"""A long mix in vLLM 0.33: sleeps at random moments, some with new weights, faults of the store, aborts and restarts. Every
output of a request that saw one version of the weights equals no cache. Hits are counted beside those of vLLM's own cache.

Run as test_served_models.py. REQUESTS is the number of the mix, SLEEPS how often vLLM sleeps, LIVES how many engines serve it.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import vllm_tiny_models as tiny_models
from vllm_served_mix import BLOCK_TOKENS, CONNECTOR, Engine, host_and_files, nothing_leaks, small_host
from vllm_sleep import SleepyMemory, loads_end, skip_without_sleep, sleep, sleepy_memory

from unified_tree.controllers.storage import Outcome
from unified_tree.controllers.storage.checked_storage import CheckedStorage
from unified_tree.terms.errors import StorageError

skip_without_sleep()
MODELS = os.environ.get("MODELS", "llama,gemma3").split(",")
REQUESTS = int(os.environ.get("REQUESTS", "60"))
SLEEPS = int(os.environ.get("SLEEPS", "8"))
LIVES = int(os.environ.get("LIVES", "2"))
HOST_PAGES = 40
SHIFTS = (0.0, 0.01, 0.02)
"""Each version of the weights is the model's plus one of these."""

Asked = dict[str, tuple[tuple[int, ...], int, set[int]]]
"""A request's prompt, how many tokens it is to have, and the versions of the weights that it saw."""


class Faults:
    """Makes some calls of the workers' stores fail, while they are ill."""

    def __init__(self, pick: random.Random) -> None:
        self._pick = pick
        self.counts: Counter[str] = Counter()
        self.is_ill = False

    def _fails(self, kind: str) -> bool:
        fails = self.is_ill and self._pick.random() < 0.3
        self.counts[kind] += fails
        return fails

    @contextmanager
    def planted(self) -> Iterator[None]:
        """While it is open."""
        read, write, answer = CheckedStorage._verified, CheckedStorage._sealed, CheckedStorage._answers

        def reading(store: Any, pool: str, keys: Any, pages: Any) -> Any:
            if self._fails("reads"):
                raise StorageError("planted")
            outcomes = read(store, pool, keys, pages)
            for at, outcome in enumerate(outcomes):
                if outcome is Outcome.DONE and self._fails("pages"):
                    pages[at][0] ^= 255
                    outcomes[at] = Outcome.CORRUPT
            return outcomes

        def writing(store: Any, pool: str, keys: Any, pages: Any) -> Any:
            if self._fails("writes"):
                raise StorageError("planted")
            return write(store, pool, keys, pages)

        def answering(store: Any, pool: str, keys: Any) -> Any:
            if self._fails("look-ups"):
                raise StorageError("planted")
            return answer(store, pool, keys)

        with mock.patch.multiple(CheckedStorage, _verified=reading, _sealed=writing, _answers=answering):
            yield


class Mix:
    """The draws of a mix, the same for every cache, and what they begin with, also after a restart: two heads, and what was
    said last.
    """

    def __init__(self, page: int) -> None:
        self.pick = random.Random(7)
        self.past = [[self.pick.randrange(3, tiny_models.VOCABULARY) for _ in range(3 * page + 7)] for _ in range(2)]


def versions_of(memory: SleepyMemory) -> list[dict[str, torch.Tensor]]:
    """The weights of every version."""
    own = {name: each.clone() for name, each in memory.weights.items()}
    return [{name: each + shift for name, each in own.items()} for shift in SHIFTS]


@contextmanager
def life(model: str, path: Path, directory: Path | None, memory: SleepyMemory) -> Iterator[Engine]:
    """An engine with a small host tier and a file store, that can sleep; with vLLM's own cache alone if it has no directory."""
    memory.runner = None
    with small_host(HOST_PAGES):
        settings, connector = ({}, None) if directory is None else (host_and_files(directory), CONNECTOR)
        engine = Engine(model, path, settings=settings, connector=connector, enable_sleep_mode=True)
        try:
            memory.runner = engine.core.model_executor.driver_worker.worker.model_runner
            if connector is not None:
                worker = engine.worker()
                worker._weights = worker._digest()  # which it could not see at the start
            yield engine
        finally:
            engine.llm.llm_engine.engine_core.shutdown()  # the client's: it would end the next engine when it is collected


def serve(engine: Engine, memory: SleepyMemory, mix: Mix, faults: Faults, versions: list[Any]) -> Asked:
    """One life of the mix."""
    page, count, pick, past = engine.page, REQUESTS // LIVES, mix.pick, mix.past
    asked: Asked = {}
    current, naps = 0, set(pick.sample(range(count), SLEEPS // LIVES))
    open_names: list[str] = []
    for head in past[:2]:  # which an engine before this one has stored
        asked[engine.add(head, output_tokens=1)] = (tuple(head), 1, {current})
    finish(engine)
    for number in range(count):
        head = pick.choice(past)
        tail = [pick.randrange(3, tiny_models.VOCABULARY) for _ in range(pick.randrange(1, page))]
        tokens = [*head[: pick.choice([len(head), pick.randrange(len(head) + 1)])], *tail][: 6 * page]
        output_tokens = pick.randrange(1, 6)
        name = engine.add(tokens, output_tokens=output_tokens, salt=pick.choice([None, None, "salt"]))
        asked[name] = (tuple(tokens), output_tokens, {current})
        open_names.append(name)
        for _ in range(pick.randrange(4)):
            engine.step()
        if pick.random() < 0.1:
            victim = pick.choice(open_names)
            if victim not in engine.outputs:
                engine.llm.llm_engine.abort_request([victim])
                asked.pop(victim, None)
        if pick.random() < 0.05:
            faults.is_ill = not faults.is_ill
        if number in naps:
            loads_end(engine)
            changes = pick.random() < 0.1
            current = pick.randrange(len(versions)) if changes else current
            sleep(engine, memory, level=1, weights=versions[current] if changes else None)
            for other in open_names:
                if other in asked and other not in engine.outputs:
                    asked[other][2].add(current)
        if pick.random() < 0.3 or len(open_names) > 5:
            finish(engine)
            past[2:] = [*past[2:][-4:], tokens + engine.outputs.get(name, [])]
            open_names.clear()
            if pick.random() < 0.5:
                engine.forget()
    finish(engine)
    faults.is_ill = False
    return asked


def finish(engine: Engine) -> None:
    """Run until nothing is left to do. vLLM makes no step without a request, and the connector asks with a step."""
    engine.add([7], output_tokens=1)
    engine.run()


def compare(engine: Engine, memory: SleepyMemory, asked: Asked, versions: list[Any]) -> tuple[int, int]:
    """How many outputs were compared with no cache, and how many of them were wrong."""
    connector, compared, wrong = type(engine.core.scheduler.connector), 0, 0
    for version, weights in enumerate(versions):
        sleep(engine, memory, weights=weights)
        known: dict[tuple[tuple[int, ...], int], str] = {}
        with mock.patch.object(
            connector, "on_new_request"
        ):  # which neither loads nor saves a request of which it has not heard
            for prompt, output_tokens, seen in asked.values():
                if seen == {version} and (prompt, output_tokens) not in known:
                    salt = f"alone {version} {len(known)}"
                    known[prompt, output_tokens] = engine.add(list(prompt), output_tokens=output_tokens, salt=salt)
                    if len(known) % 4 == 0:
                        engine.run()
            finish(engine)
        assert not any(engine.hits[name] for name in known.values())
        for name, (prompt, output_tokens, seen) in asked.items():
            if seen == {version}:
                compared += 1
                wrong += engine.outputs[name] != engine.outputs[known[prompt, output_tokens]]
    return compared, wrong


def spoil(directory: Path, pick: random.Random) -> None:
    """Change some bytes of the files."""
    for table in sorted(directory.rglob("*.pages")):
        with table.open("r+b") as opened:
            for at in range(0, table.stat().st_size, 1 << 16):
                if pick.random() < 0.1:
                    opened.seek(at)
                    byte = opened.read(1)
                    opened.seek(at)
                    opened.write(bytes([byte[0] ^ 1]))


def own_hits(model: str, path: Path, memory: SleepyMemory) -> int:
    """How many tokens of the mix are hits with vLLM's own cache alone."""
    mix, hits = Mix(BLOCK_TOKENS[model]), 0
    for _ in range(LIVES):
        with life(model, path, None, memory) as engine:
            asked = serve(engine, memory, mix, Faults(random.Random(8)), versions_of(memory))
            hits += sum(engine.hits[name] for name in asked)
    return hits


@pytest.mark.parametrize("model", MODELS)
def test_every_output_of_a_long_mix_equals_no_cache(model: str, tmp_path: Path) -> None:
    path, directory = tmp_path / "model", tmp_path / "store"
    tiny_models.MODELS[model](path)
    mix, faults, totals = Mix(BLOCK_TOKENS[model]), Faults(random.Random(8)), Counter[str]()
    with sleepy_memory() as memory, faults.planted():
        for number in range(LIVES):
            with life(model, path, directory, memory) as engine:
                versions = versions_of(memory)
                asked = serve(engine, memory, mix, faults, versions)
                totals += Counter({name: count for name, count in engine.counters().items() if count > 0})
                totals += Counter({"tokens": sum(len(prompt) for prompt, _, _ in asked.values())})
                totals += Counter({"requests": REQUESTS // LIVES, "hits": sum(engine.hits[name] for name in asked)})
                nothing_leaks(engine)
                compared, wrong = compare(engine, memory, asked, versions)
                nothing_leaks(engine)
            totals += Counter({"compared": compared, "wrong": wrong})
            print(f"{model}, life {number}: {dict(totals)}, faults {dict(faults.counts)}", flush=True)
            spoil(directory, random.Random(number))
        own = own_hits(model, path, memory)
    print(f"{model}: {totals['hits']} of {totals['tokens']} tokens were hits, by vLLM's own cache alone {own}", flush=True)
    assert totals["wrong"] == 0
    assert totals["compared"] > REQUESTS // 2
    assert totals["kept_sleeps"] > SLEEPS // 2
    assert totals["loaded_tokens"] > REQUESTS
    assert totals["fetched_tokens"] > 0
    assert totals["hits"] > own
    assert faults.counts.total() > 0
