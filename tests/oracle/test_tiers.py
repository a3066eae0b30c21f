"""Where only the tier changed that a prefix came from, with the same chunks, logits are equal to the last bit.

The reference is the model over the cache of `transformers`, run in the engine's chunks. A further tier is one more entry in
`MOVES`: what brings a cached prefix from the device to it and away from all tiers before it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
import torch
from oracle.families import FAMILIES
from oracle.mix import Bench, Tiers
from oracle.oracle_engine import OracleEngine
from oracle.stock import stock_logits
from oracle.tiny_model import SINGLE

from unified_tree.controllers import WritePolicy
from unified_tree.controllers.reference_engine import EngineSettings, Request
from unified_tree.controllers.reference_engine.model_runner import Pass
from unified_tree.controllers.reference_engine.request import Running

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
    assert not any(bench.cache.tree.evictable_pages(name) for name in bench.cache.device.allocators)
    for pool in bench.tiers.device.values():
        for part in pool.format.parts:
            for layer_id in pool.format.layer_ids:
                pool.tensor(layer_id, part.name).fill_(float("nan"))


MOVES: dict[str, Callable[[Bench], None]] = {"device": stay, "host": to_host}


@pytest.mark.parametrize("policy", [WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_BACK], ids=lambda policy: policy.value)
@pytest.mark.parametrize("tier", MOVES)
@pytest.mark.parametrize("name", FAMILIES)
def test_only_the_tier_changed(name: str, tier: str, policy: WritePolicy) -> None:
    family, random = FAMILIES[name], Random(5)
    chunk = 1 if family.chunk_tokens == (1,) else 32
    settings = EngineSettings(chunk_tokens=chunk)
    bench = Bench(family, SINGLE, Tiers(write_policy=policy), random, settings=settings, engine=Recorded)
    engine = bench.engine
    assert isinstance(engine, Recorded)
    first, second = ([random.randrange(bench.vocabulary) for _ in range(count)] for count in (SHARED + 5, 21))
    engine.runs = []
    bench.serve(Request(prompt=first, new_tokens=1, checkpoints=[SHARED]))
    shared_ends = [run.start + len(run.logits) for run in engine.runs if run.start < SHARED]
    assert shared_ends[-1] == SHARED
    MOVES[tier](bench)

    engine.runs = []
    request = bench.serve(Request(prompt=[*first[:SHARED], *second], new_tokens=4))
    tokens = request.tokens[:-1]
    ends = [*shared_ends, *(run.start + len(run.logits) for run in engine.runs)]
    stats = bench.cache.stats()
    bench.close()
    if tier == "host" and stats.drops.get("load not known to be exact"):
        pytest.skip("loads of such a composition are refused")
    assert engine.runs[0].start == SHARED == stats.hit_tokens
    assert stats.host_hit_tokens == (SHARED if tier == "host" else 0)
    reference = stock_logits(engine.runners[""].model, tokens, ends)
    assert torch.equal(torch.cat([run.logits for run in engine.runs]), reference[SHARED:])
