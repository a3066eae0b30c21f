"""Resumption at every kind of boundary: a page's end, in mid-node, where a state was saved, where a window is rebuilt."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from oracle.families import DEEPSEEK_V4, FAMILIES, GEMMA3, GPT_OSS, MIMO, RECENT
from oracle.mix import Bench, Tiers
from oracle.tiny_model import DOUBLE, SINGLE, Family, Precision

from reference_engine import EngineSettings, Request
from unified_tree import Key, Trailing
from unified_tree.components import Composition
from unified_tree.controllers.pools.page_pair import PagePair
from unified_tree.terms.errors import ConfigurationError

WINDOWED = {family.name: family for family in (GPT_OSS, GEMMA3, MIMO)}
ROOMY = Tiers(host=False, paths=8.0, windows=8.0, states=40)


def drawn(bench: Bench, count: int) -> list[int]:
    return [bench.random.randrange(bench.vocabulary) for _ in range(count)]


def path_bytes(bench: Bench, pages: Any) -> list[torch.Tensor]:
    return [bench.tiers.device["full"].words(part)[:, torch.tensor(pages)].clone() for part in ("k", "v")]


@pytest.mark.parametrize("name", [*FAMILIES, *RECENT])
def test_a_prompt_goes_on_from_any_token_of_another(name: str) -> None:
    """Deepest first, so that each later prompt ends inside a node that was there before."""
    family = {**FAMILIES, **RECENT}[name]
    settings = EngineSettings(chunk_tokens=family.chunk_tokens[0])
    bench = Bench(family, SINGLE, ROOMY, Random(2), settings=settings)
    size, longest = family.page_size, family.prompt_tokens - 9
    prompt = drawn(bench, longest)
    points = [longest // 2 // size * size, longest // size * size]
    bench.serve(Request(prompt=prompt, new_tokens=2, checkpoints=points))
    found = set()
    for length in range(longest, size, -(size // 2 + 1) * (1 if name != "Jamba" else 3)):
        before = bench.cache.stats().hit_tokens
        bench.serve(Request(prompt=[*prompt[:length], *drawn(bench, 3)], new_tokens=1))
        found.add(bench.cache.stats().hit_tokens - before)
    bench.close()
    assert len(found - {0}) >= 2


@pytest.mark.parametrize("name", FAMILIES)
def test_a_prompt_goes_on_from_output(name: str) -> None:
    """Two turns of a chat; the second's prompt is all of the first, whose end is on the grid or not."""
    family = FAMILIES[name]
    grid = 64
    bench = Bench(family, SINGLE, ROOMY, Random(3), settings=EngineSettings(chunk_tokens=family.chunk_tokens[-1]))
    first = bench.serve(Request(prompt=drawn(bench, 30), new_tokens=grid - 30 + 1))
    second = bench.serve(Request(prompt=[*first.tokens, *drawn(bench, 4)], new_tokens=3))
    hits = bench.cache.stats().hit_tokens
    bench.close()
    assert len(first.tokens) == grid + 1 and second.finished
    assert hits == grid


@pytest.mark.parametrize("chunk_tokens", [5, 64])
@pytest.mark.parametrize("name", WINDOWED)
def test_a_lost_window_is_rebuilt_over_the_cached_path(name: str, chunk_tokens: int) -> None:
    family = WINDOWED[name]
    bench = Bench(family, DOUBLE, ROOMY, Random(4), settings=EngineSettings(chunk_tokens=chunk_tokens))
    prompt = drawn(bench, 80)
    bench.serve(Request(prompt=prompt, new_tokens=1))
    match = bench.cache.tree.match_prefix(Key(prompt))
    pages = bench.cache.tree.pages(match.device, "full")
    assert match.device.length == 80
    before = path_bytes(bench, pages)
    least = bench.composition.rebuild_tokens
    assert least is not None
    for rebuilds in (1, 2):
        bench.evict("swa")
        bench.serve(Request(prompt=[*prompt, *drawn(bench, 9)], new_tokens=6))
        assert least <= bench.cache.stats().rebuilt_tokens / rebuilds < least + 2 * family.page_size
    assert all(torch.equal(old, new) for old, new in zip(before, path_bytes(bench, pages), strict=True))
    hits = bench.cache.stats().hit_tokens
    bench.serve(Request(prompt=[*prompt, *drawn(bench, 3)], new_tokens=2))
    assert bench.cache.stats().hit_tokens == hits + 80, "the rebuilt window was not kept"
    assert bench.close().largest < 1e-9


def test_two_tenants_never_meet() -> None:
    """Equal tokens, other weights."""
    bench = Bench(FAMILIES["Llama"], SINGLE, ROOMY, Random(6))
    prompt = drawn(bench, 60)
    for namespace in ("", "other", "", "other"):
        bench.serve(Request(prompt=prompt, new_tokens=3, namespace=namespace))
    assert bench.cache.stats().hit_tokens == 2 * 56
    bench.close()


@pytest.mark.parametrize("name", ["Llama", "GPT-OSS", "Qwen3-Next", "DeepSeek-V4"])
def test_new_weights_see_nothing_of_the_old_ones(name: str) -> None:
    """Not even of a request that was at work when they came, and commits later."""
    family: Family = FAMILIES[name]
    bench = Bench(family, SINGLE, ROOMY, Random(7), settings=EngineSettings(chunk_tokens=family.chunk_tokens[0]))
    prompt = drawn(bench, 75)
    bench.serve(Request(prompt=prompt, new_tokens=2))
    bench.engine.submit(Request(prompt=[*prompt, *drawn(bench, 10)], new_tokens=3))
    bench.engine.step()
    bench.change_weights("")
    bench.engine.run()
    hits = bench.cache.stats().hit_tokens
    assert hits >= 64
    bench.serve(Request(prompt=prompt, new_tokens=2))
    assert bench.cache.stats().hit_tokens == hits
    bench.serve(Request(prompt=[*prompt, 1], new_tokens=2))
    assert bench.cache.stats().hit_tokens > hits
    bench.close()


@pytest.mark.parametrize("name", FAMILIES)
def test_preempted_requests_go_on(name: str) -> None:
    """A few times everybody loses their pages, and what the device still had of them."""
    family: Family = FAMILIES[name]
    bench = Bench(family, SINGLE, Tiers(), Random(8), settings=EngineSettings(chunk_tokens=family.chunk_tokens[0]))
    requests = [Request(prompt=drawn(bench, 30 + 20 * i), new_tokens=9) for i in range(2)]
    with bench.precision.context():
        for request in requests:
            bench.engine.submit(request)
        for steps in (3, 7, 11):
            for _ in range(steps):
                bench.engine.step()
            for request in list(bench.engine.running):
                bench.engine.preempt(request)
            bench.evict()
        bench.engine.run()
    assert all(len(request.output) == 9 for request in requests)
    assert sum(request.preemptions for request in requests) >= 2
    bench.close()


@pytest.mark.parametrize("name", ["Llama", "GPT-OSS", "Falcon-H1"])
def test_transfers_that_die_cost_only_time(name: str, monkeypatch: Any) -> None:
    """The thread that moves pages ends in the middle of a load: what waited for it starts anew."""
    family: Family = FAMILIES[name]
    bench = Bench(family, SINGLE, Tiers(), Random(12), settings=EngineSettings(chunk_tokens=family.chunk_tokens[1]))
    prompt = drawn(bench, 70)
    bench.serve(Request(prompt=prompt, new_tokens=2, checkpoints=[64]))
    bench.cache.flush()
    bench.evict()
    load_layers = PagePair.load_layers

    def dies(self: PagePair, layer_ids: tuple[int, ...], source: Any, target: Any) -> None:
        if 0 not in layer_ids:
            raise RuntimeError("the bus is gone")
        load_layers(self, layer_ids, source, target)

    monkeypatch.setattr(PagePair, "load_layers", dies)
    request = bench.serve(Request(prompt=[*prompt[:66], *drawn(bench, 5)], new_tokens=3))
    again = bench.serve(Request(prompt=[*request.tokens, 1], new_tokens=3))
    assert request.preemptions == 1
    assert len(again.output) == 3
    bench.close()


@pytest.mark.parametrize("precision", [SINGLE, DOUBLE], ids=["f32", "f64"])
def test_deepseek_v4_at_its_published_ratios(precision: Precision) -> None:
    """4:1 and 128:1, so pages of 128 tokens; prompts that go on from both pages' ends, and from tokens between them."""
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    family = replace(DEEPSEEK_V4, config={**DEEPSEEK_V4.config, "compress_rates": rates}, page_size=128, prompt_tokens=330)
    bench = Bench(family, precision, ROOMY, Random(13), settings=EngineSettings(chunk_tokens=90))
    prompt = drawn(bench, 300)
    bench.serve(Request(prompt=prompt, new_tokens=1, checkpoints=[128, 256]))
    for length, hit in ((300, 256), (256, 128), (257, 256), (200, 128), (130, 128)):
        before = bench.cache.stats().hit_tokens
        bench.serve(Request(prompt=[*prompt[: length - 1], 7], new_tokens=4))
        assert bench.cache.stats().hit_tokens - before == hit
    bench.close()


def test_a_window_that_was_declared_one_token_short_is_refused() -> None:
    def one_short(composition: Composition) -> Composition:
        components = [
            replace(c, coverage=Trailing(c.coverage.window_tokens - 1)) if isinstance(c.coverage, Trailing) else c
            for c in composition.components
        ]
        return replace(composition, components=tuple(components))

    with pytest.raises(ConfigurationError, match="needs 11 past tokens"):
        Bench(GPT_OSS, SINGLE, ROOMY, Random(0), composition=one_short)
