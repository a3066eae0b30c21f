"""A draft whose state the cache has, or lacks: it decodes faster or slower, and what is said is the same."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from oracle.families import DRAFT, DRAFT_OF_WINDOWS, FAMILIES, LLAMA
from oracle.mix import Bench, Prompts, Tiers
from oracle.reference import Reference
from oracle.tiny_model import SINGLE, Family

from reference_engine import EngineSettings, ModelRunner, Request, Speculation
from reference_engine.model_runner import Pass
from reference_engine.request import Running

DRAFTED = ["Llama", "GPT-OSS", "Qwen3-Next", "Falcon-H1", "DeepSeek-V3.2", "DeepSeek-V4"]


class Prophet(Speculation):
    """Proposes what the model will say, mostly.

    Attributes:
        off: while it is set, requests decode without a draft, as if there were none.
        missing: requests that had to, because the cache lacked the draft's state.
        future: what the model will say in the end, by prompt.
    """

    def __init__(self, bench: Bench) -> None:
        super().__init__(ModelRunner(bench.draft, bench.composition, full="draft"), proposals=3)
        self.random = bench.random
        self.off = False
        self.missing = 0
        self.future: list[list[int]] = []

    def admit(self, running: Running) -> None:
        super().admit(running)
        self.missing += running.drafted < 0
        if self.off:
            running.drafted = -1

    def propose(self, running: Running, tokens: Any, count: int) -> list[int]:
        super().propose(running, tokens, count)
        known = next(future for future in self.future if future[: len(tokens)] == tokens)
        said = known[len(tokens) : len(tokens) + count]
        return [token if self.random.random() < 0.75 else (token + 1) % 96 for token in said]


@torch.no_grad()
def foretold(model: Any, prompt: list[int], count: int) -> list[int]:
    """A prompt and what the model makes of it, token by token over the cache of `transformers`."""
    from transformers import DynamicCache

    cache, tokens, start = DynamicCache(config=model.config), list(prompt), 0
    for _ in range(count):
        positions = torch.arange(start, len(tokens))[None]
        ids = torch.tensor([tokens[start:]])
        start = len(tokens)
        tokens.append(greedy(model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True).logits[0, -1]))
    return tokens


def greedy(logits: torch.Tensor) -> int:
    return int(logits.argmax())


@pytest.mark.parametrize("host", [False, True], ids=["device", "host"])
@pytest.mark.parametrize(
    ("name", "draft"), [*((name, DRAFT) for name in DRAFTED), ("Llama", DRAFT_OF_WINDOWS), ("GPT-OSS", DRAFT_OF_WINDOWS)]
)
def test_a_draft_changes_nothing(name: str, draft: Family, host: bool) -> None:
    family = FAMILIES[name]
    settings = EngineSettings(chunk_tokens=family.chunk_tokens[1], max_running=2)
    tiers = Tiers(host=host, paths=3.0, windows=3.0, states=9)
    bench = Bench(family, SINGLE, tiers, Random(9), settings=settings, sampler=greedy, draft=draft)
    prophet = bench.engine.speculation = Prophet(bench)
    prompts = Prompts(bench.random, bench.vocabulary, family.prompt_tokens)
    trunk = [bench.random.randrange(bench.vocabulary) for _ in range(family.prompt_tokens // 2)]
    prompts.earlier.append(trunk)
    for number in range(7):
        prophet.off = number in (0, 4)
        prompt = [*trunk, number] if number < 2 else prompts.draw()
        request = Request(prompt=prompt, new_tokens=7)
        prophet.future.append(foretold(bench.engine.runners[""].model, list(request.prompt), 7))
        bench.serve(request)
        assert request.tokens == prophet.future[-1]
        if host and number % 3 == 2:
            bench.cache.flush()
            bench.evict()
    assert prophet.missing
    bench.close()


def runs_of(*, draft_missing: bool) -> tuple[int, list[int]]:
    """How many runs a request takes whose prefix was cached with a draft's state or without; and what it says."""
    settings = EngineSettings(chunk_tokens=64)
    bench = Bench(LLAMA, SINGLE, Tiers(host=False), Random(10), settings=settings, sampler=greedy, draft=DRAFT)
    prophet = bench.engine.speculation = Prophet(bench)
    model = bench.engine.runners[""].model
    prompt = [bench.random.randrange(bench.vocabulary) for _ in range(48)]
    prophet.future += [foretold(model, prompt, 2), foretold(model, [*prompt, 5], 12)]
    prophet.off = draft_missing
    bench.serve(Request(prompt=prompt, new_tokens=2))
    prophet.off = False
    before = bench.engine.tally.runs
    request = bench.serve(Request(prompt=[*prompt, 5], new_tokens=12))
    assert bench.cache.stats().hit_tokens == 48
    assert prophet.missing == draft_missing
    return bench.close().runs - before, request.output


def test_a_missing_draft_only_slows_down() -> None:
    with_draft, said = runs_of(draft_missing=False)
    without, said_without = runs_of(draft_missing=True)
    assert said == said_without
    assert without == 12
    assert with_draft < 9


@pytest.mark.parametrize(
    ("name", "draft"),
    [("Llama", DRAFT), ("GPT-OSS", DRAFT), ("DeepSeek-V4", DRAFT), ("Llama", DRAFT_OF_WINDOWS), ("GPT-OSS", DRAFT_OF_WINDOWS)],
)
@pytest.mark.parametrize("host", [False, True], ids=["device", "host"])
def test_the_drafts_own_state_is_exact(name: str, draft: Family, host: bool, monkeypatch: Any) -> None:
    """What a draft says over cached state of its own is what it says without a cache."""
    family = FAMILIES[name]
    bench = Bench(family, SINGLE, Tiers(host=host), Random(11), sampler=greedy, draft=draft)
    speculation = bench.engine.speculation = Speculation(ModelRunner(bench.draft, bench.composition, full="draft"))
    prompt = [bench.random.randrange(bench.vocabulary) for _ in range(48)]
    bench.serve(Request(prompt=prompt, new_tokens=6))
    if host:
        bench.cache.flush()
        bench.evict()
    said: list[Pass] = []
    run = ModelRunner.run

    def note(self: ModelRunner, *args: Any) -> Pass:
        ran = run(self, *args)
        if self is speculation.draft:
            said.append(ran)
        return ran

    monkeypatch.setattr(ModelRunner, "run", note)
    request = bench.serve(Request(prompt=[*prompt, 3, 1, 4], new_tokens=6))
    assert said[0].start == 48
    assert bench.cache.stats().host_hit_tokens == (48 if host else 0)
    said = [ran for ran in said if ran.start + len(ran.logits) <= len(request.prompt)]
    reference = Reference().logits(bench.draft, request.tokens)
    for ran in said:
        assert (ran.logits - reference[ran.start : ran.start + len(ran.logits)]).abs().max() < 1e-3
    bench.close()
