"""Where only the tier changed that a prefix came from, with the same chunks, logits are equal to the last bit.

The reference is the model over the cache of `transformers`, run in the engine's chunks. `MOVES` bring a cached prefix from the
device to a tier and away from all tiers before it; to the store by a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import mooncake_server
import pytest
import torch
from oracle.families import FAMILIES
from oracle.mix import Bench, Tiers
from oracle.oracle_engine import OracleEngine
from oracle.tiny_model import SINGLE, gpu

from reference_engine import EngineSettings, Request
from reference_engine.model_runner import Pass
from reference_engine.request import Running
from unified_tree.controllers import WritePolicy


@torch.no_grad()
def stock_logits(model: Any, tokens: Sequence[int], ends: Sequence[int]) -> torch.Tensor:
    """[token, vocabulary] of all tokens, run in chunks that end at `ends`."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    said = []
    for start, end in zip([0, *ends], ends, strict=False):
        positions = torch.arange(start, end)[None]
        ids = torch.tensor([list(tokens[start:end])])
        said.append(model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True).logits[0])
    return torch.cat(said)


SHARED = 64
"""Tokens shared by both prompts: the end of a page, of a chunk, and on every family's grid."""


class Recorded(OracleEngine):
    """Keeps the runs of the last request."""

    runs: list[Pass]

    def ran(self, request: Request, running: Running, run: Pass) -> None:
        super().ran(request, running, run)
        self.runs.append(run)


def stay(bench: Bench) -> None:
    """The prefix stays where it is."""


def to_host(bench: Bench) -> None:
    """Back everything up, evict it all from the device, and leave nothing readable there."""
    bench.cache.flush()
    bench.evict()
    assert not any(bench.cache.tree.pool(name).evictable_pages for name in bench.cache.device.allocators)
    for pool in bench.tiers.device.values():
        for part in pool.format.parts:
            for layer_id in pool.format.layer_ids:
                pool.tensor(layer_id, part.name).fill_(float("nan"))


def to_store(bench: Bench) -> None:
    """The server is started anew."""
    bench.restart()


MOVES: dict[str, Callable[[Bench], None]] = {"device": stay, "host": to_host, "store": to_store}


@pytest.mark.parametrize("policy", [WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_BACK], ids=lambda policy: policy.value)
@pytest.mark.parametrize("tier", ["device", "host"])
@pytest.mark.parametrize("name", FAMILIES)
def test_only_the_tier_changed(name: str, tier: str, policy: WritePolicy) -> None:
    go_through(name, tier, Tiers(write_policy=policy))


@pytest.mark.parametrize("name", FAMILIES)
def test_only_the_tier_changed_on_a_gpu(name: str) -> None:
    with gpu():
        go_through(name, "host", Tiers())


@pytest.mark.parametrize("name", FAMILIES)
def test_only_the_server_changed(name: str, tmp_path: Path) -> None:
    options = {"directory": tmp_path, "capacity_bytes": 1 << 28}
    go_through(name, "store", Tiers(storage={"name": "file", "options": options}))


@pytest.fixture(scope="module")
def mooncake() -> Iterator[mooncake_server.Mooncake]:
    mooncake_server.skip_unless_it_runs()
    with mooncake_server.Mooncake(segment_bytes=256 << 20) as server:
        yield server


@pytest.mark.parametrize("name", FAMILIES)
def test_only_the_server_changed_and_the_store_is_mooncake(name: str, mooncake: mooncake_server.Mooncake) -> None:
    options = {"master": mooncake.master, **mooncake_server.SETTINGS}
    go_through(name, "store", Tiers(storage={"name": "mooncake", "options": options}))


def go_through(name: str, tier: str, tiers: Tiers) -> None:
    family, random = FAMILIES[name], Random(5)
    chunk = 1 if family.chunk_tokens == (1,) else 32
    settings = EngineSettings(chunk_tokens=chunk)
    bench = Bench(family, SINGLE, tiers, random, settings=settings, engine=Recorded)
    engine = bench.engine
    assert isinstance(engine, Recorded)
    first, second = ([random.randrange(bench.vocabulary) for _ in range(count)] for count in (SHARED + 5, 21))
    engine.runs = []
    bench.serve(Request(prompt=first, new_tokens=1, checkpoints=[SHARED]))
    shared_ends = [run.start + len(run.logits) for run in engine.runs if run.start < SHARED]
    assert shared_ends[-1] == SHARED
    MOVES[tier](bench)

    engine = bench.engine
    assert isinstance(engine, Recorded)
    engine.runs = []
    request = bench.serve(Request(prompt=[*first[:SHARED], *second], new_tokens=4))
    tokens = request.tokens[:-1]
    ends = [*shared_ends, *(run.start + len(run.logits) for run in engine.runs)]
    stats = bench.cache.stats()
    bench.close()
    assert engine.runs[0].start == SHARED == stats.hit_tokens
    assert stats.host_hit_tokens == (SHARED if tier != "device" else 0)
    assert stats.storage_hit_tokens == (SHARED if tier == "store" else 0)
    reference = stock_logits(engine.runners[""].model, tokens, ends)
    assert torch.equal(torch.cat([run.logits for run in engine.runs]), reference[SHARED:])
