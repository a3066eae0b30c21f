"""The oracle can fail: each of these defects makes a model say something else, and is seen.

They are planted in the engine or the cache, each by a function that a test's `monkeypatch` undoes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, cast

import numpy as np
import pytest
import torch
from oracle.families import FAMILIES, RECENT
from oracle.mix import Bench, Tiers, serve_mix
from oracle.oracle_engine import OracleEngine, WrongLogitsError
from oracle.tiny_model import SINGLE, Family

from reference_engine import EngineSettings
from reference_engine.attention_layers import FullAttention, SlidingWindow
from reference_engine.compressed_layers import CompressedEntries, Overlap
from reference_engine.request import Request, Running
from reference_engine.sequence_rows import SequenceRows
from unified_tree import Key
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.pools.page_pair import PagePair
from unified_tree.controllers.weights.generations import Generations
from unified_tree.declare.component_layout import ComponentLayout
from unified_tree.tree import UnifiedTree


def serve_mixes(family: Family, most: int = 8) -> None:
    """Random mixes, until one of them fails."""
    for seed in range(most):
        with served(family, Tiers(paths=4.0, windows=2.0, states=8), seed) as bench:
            serve_mix(bench, 12)


def serve_rebuilds(family: Family) -> None:
    """A prompt whose windows are lost, twice, and one that finds them rebuilt."""
    with served(family, Tiers(host=False, paths=8.0, windows=8.0), 4, chunk_tokens=64) as bench:
        prompt = [bench.random.randrange(bench.vocabulary) for _ in range(80)]
        bench.serve(Request(prompt=prompt, new_tokens=1))
        for token, evicted in enumerate((["swa"], ["swa"], [])):
            for name in evicted:
                bench.evict(name)
            bench.serve(Request(prompt=[*prompt, token, token], new_tokens=6))


def serve_new_weights(family: Family) -> None:
    """A prompt that is at work when new weights come, and then once more."""
    with served(family, Tiers(host=False, paths=8.0, windows=8.0), 4, chunk_tokens=7) as bench:
        prompt = [bench.random.randrange(bench.vocabulary) for _ in range(75)]
        bench.engine.submit(Request(prompt=prompt, new_tokens=2))
        bench.engine.step()
        bench.change_weights("")
        bench.engine.run()
        bench.serve(Request(prompt=[*prompt, 1], new_tokens=2))


@contextmanager
def served(family: Family, tiers: Tiers, seed: int, *, chunk_tokens: int | None = None) -> Iterator[Bench]:
    """A bench that is closed whatever happens."""
    settings = None if chunk_tokens is None else EngineSettings(chunk_tokens=chunk_tokens)
    bench = Bench(family, SINGLE, tiers, Random(seed), settings=settings)
    try:
        yield bench
    finally:
        bench.cache.close()


@dataclass(frozen=True)
class Mutant:
    """A defect, the families that show it, and what is served to see it."""

    plant: Callable[[Any], None]
    families: tuple[str, ...]
    serve: Callable[[Family], None] = serve_mixes


def _window_one_short(patch: Any) -> None:
    original = SlidingWindow.open

    def open_one_short(self: SlidingWindow, layer: Any, rows: SequenceRows, start: int, end: int) -> Any:
        save = original(self, layer, rows, start, end)
        if start > rows.window_from + max(1, self.needed.back_tokens) and layer.is_initialized:
            layer.keys[:, :, 0] = layer.values[:, :, 0] = 0
        return save

    patch.setattr(SlidingWindow, "open", open_one_short)


def _window_shifted(patch: Any) -> None:
    original = SequenceRows.read

    def read(self: SequenceRows, component: str, layer_id: int, part: str, first: int, last: int) -> torch.Tensor:
        shift = 1 if component == "swa" and first > self.lease.compute_from else 0
        return original(self, component, layer_id, part, first - shift, last - shift)

    patch.setattr(SequenceRows, "read", read)


def _state_a_page_late(patch: Any) -> None:
    """What is published as the state at one page's end is that at the next page's."""
    original = SequenceRows.save_state
    late: dict[int, int] = {}

    def save_state(self: SequenceRows, page: int) -> None:
        late[id(self)] = page
        original(self, page)

    def ran(self: OracleEngine, request: Request, running: Running, run: Any) -> None:
        if id(running.rows) in late and run.start % self.cache.page_size == 0:
            original(running.rows, late.pop(id(running.rows)))
        observe(self, request, running, run)

    observe = OracleEngine.ran
    patch.setattr(SequenceRows, "save_state", save_state)
    patch.setattr(OracleEngine, "ran", ran)


def _swapped_pages(patch: Any) -> None:
    """A match hands out a window's pages the wrong way round. Full attention could not tell: it has no order of its own."""
    original = UnifiedTree.pages

    def pages(self: UnifiedTree, boundary: Any, component: str) -> Any:
        ids = original(self, boundary, component)
        if component == "swa" and ids.size > 1:
            ids = np.concatenate((ids[1::-1], ids[2:]))
        return ids

    patch.setattr(UnifiedTree, "pages", pages)


def _page_of_another_prompt(patch: Any) -> None:
    """A match hands out one page that is somebody else's."""
    original = UnifiedTree.pages

    def pages(self: UnifiedTree, boundary: Any, component: str) -> Any:
        ids = original(self, boundary, component)
        if component == "full" and ids.size > 1:
            ids = np.concatenate((ids[:1] ^ 1, ids[1:]))
        return ids

    patch.setattr(UnifiedTree, "pages", pages)


def _wrong_ratio(patch: Any) -> None:
    """Entries are read as if each stood for twice the tokens."""
    original = SequenceRows.read

    def read(self: SequenceRows, component: str, layer_id: int, part: str, first: int, last: int) -> torch.Tensor:
        rows = original(self, component, layer_id, part, first, last)
        return rows[: len(rows) // 2].repeat_interleave(2, dim=0) if component == "c4" and len(rows) % 2 == 0 else rows

    patch.setattr(SequenceRows, "read", read)


def _missing_overlap(patch: Any) -> None:
    original = Overlap.open

    def open_without(self: Overlap, layer: Any, rows: SequenceRows, start: int, end: int) -> Any:
        save = original(self, layer, rows, start, end)
        layer.overlap_kv = dict.fromkeys(layer.overlap_kv)
        layer.overlap_gate = dict.fromkeys(layer.overlap_gate)
        return save

    patch.setattr(Overlap, "open", open_without)


def _overlap_of_the_page_before(patch: Any) -> None:
    original = SequenceRows.read_page

    def read_page(self: SequenceRows, component: str, layer_id: int, part: str, page: int) -> torch.Tensor:
        held = self.lease.pages(component)
        return original(self, component, layer_id, part, page - 1 if page and held[page - 1] >= 0 else page)

    patch.setattr(SequenceRows, "read_page", read_page)


def _no_copy_on_write(patch: Any) -> None:
    """A request runs on in the tree's own state, so whoever comes next finds another position's."""
    original = SequenceRows._state_page

    def state_page(self: SequenceRows) -> int:
        copies = self.lease.state_copies
        return copies[0].source if copies else original(self)

    patch.setattr(SequenceRows, "_state_page", state_page)
    patch.setattr(SequenceRows, "copy_cached_state", _nothing)


def _state_not_copied(patch: Any) -> None:
    patch.setattr(SequenceRows, "copy_cached_state", _nothing)


def _states_of_one_shape_copied(patch: Any) -> None:
    """Of states that share a page, only those of the page's owner are copied."""
    original = SequenceRows.__init__

    def init(self: SequenceRows, *args: Any) -> None:
        original(self, *args)
        for sharer in self.layout.sharers:
            self._copies_due.pop(sharer.name, None)

    patch.setattr(SequenceRows, "__init__", init)


def _path_overwritten_in_rebuild(patch: Any) -> None:
    """A rebuild writes what it computes over the cached pages."""
    _rebuild_reads_what_it_computes(patch)
    original = SequenceRows.write

    def write(self: SequenceRows, component: str, *args: Any) -> None:
        writes = cast("dict[str, int]", self.lease.write_from)
        kept = writes[component]
        if component == "full":
            writes[component] = 0
        original(self, component, *args)
        writes[component] = kept

    patch.setattr(SequenceRows, "write", write)


def _rebuild_reads_what_it_computes(patch: Any) -> None:
    """A rebuild's full layers see their own new rows in place of the cached ones. Only layers after them can tell."""
    original = FullAttention.open

    def open_forgetting(self: FullAttention, layer: Any, rows: SequenceRows, start: int, end: int) -> Any:
        writes = cast("dict[str, int]", rows.lease.write_from)
        kept, writes[self.component] = writes[self.component], 0
        save = original(self, layer, rows, start, end)
        writes[self.component] = kept
        return save

    patch.setattr(FullAttention, "open", open_forgetting)


def _rebuild_too_short(patch: Any) -> None:
    """One window's worth of tokens runs again, not one a layer."""
    original = ComponentLayout.__init__

    def init(self: ComponentLayout, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        if self.rebuild_tokens is not None:
            self.rebuild_tokens = 1

    patch.setattr(ComponentLayout, "__init__", init)


def _tenants_meet(patch: Any) -> None:
    original = PrefixCache.acquire

    def acquire(self: PrefixCache, key: Key, *args: Any, **options: Any) -> Any:
        return original(self, Key(np.frombuffer(key.data, np.int64)), *args, **options)

    patch.setattr(PrefixCache, "acquire", acquire)


def _weights_forgotten(patch: Any) -> None:
    patch.setattr(PrefixCache, "invalidate", _nothing)


def _late_commits_count(patch: Any) -> None:
    """What was computed with old weights is published after they changed."""
    patch.setattr(Generations, "end", _nothing)


def _load_of_another_page(patch: Any) -> None:
    """A load brings each page's neighbour."""
    original = PagePair.load_layers

    def load_layers(self: PagePair, layer_ids: tuple[int, ...], source: Any, target: Any) -> None:
        original(self, layer_ids, np.roll(source, 1), target)

    patch.setattr(PagePair, "load_layers", load_layers)


def _index_keys_lost(patch: Any) -> None:
    original = SequenceRows.write

    def write(self: SequenceRows, component: str, *args: Any) -> None:
        if component != "indexer" or self.lease.cached_tokens == 0:
            original(self, component, *args)

    patch.setattr(SequenceRows, "write", write)


def _buffers_kept_past_a_page(patch: Any) -> None:
    """Rows on their way to an entry are taken for empty."""
    original = CompressedEntries.open

    def open_empty(self: CompressedEntries, layer: Any, rows: SequenceRows, start: int, end: int) -> Any:
        save = original(self, layer, rows, start, end)
        for buffers in (layer.buffer_kv, layer.buffer_gate):
            if buffers[self.compressor] is not None:
                buffers[self.compressor] = torch.zeros_like(buffers[self.compressor])
        return save

    patch.setattr(CompressedEntries, "open", open_empty)


def _nothing(*_: Any) -> None:
    """In place of a method."""


MUTANTS = {
    "a window one token short": Mutant(
        _window_one_short,
        ("Gemma 3", "MiMo-V2-Flash", "Llama 4", "Gemma 2", "Gemma 3n", "Gemma 4", "Cohere2", "EXAONE 4", "OLMo-3", "SmolLM3"),
    ),
    "a window off by one": Mutant(_window_shifted, ("GPT-OSS", "Gemma 3")),
    "a state taken one page late": Mutant(_state_a_page_late, ("Bamba", "Falcon-H1")),
    "two pages swapped": Mutant(_swapped_pages, ("GPT-OSS",)),
    "a page of another prompt": Mutant(
        _page_of_another_prompt, ("Llama", "Qwen3", "DeepSeek-V3.2", "GLM-DSA", "GLM-4.7-Flash")
    ),
    "a wrong compression ratio": Mutant(_wrong_ratio, ("DeepSeek-V4",)),
    "a missing overlap": Mutant(_missing_overlap, ("DeepSeek-V4",)),
    "the overlap of the page before": Mutant(_overlap_of_the_page_before, ("DeepSeek-V4",)),
    "rows on their way to an entry lost": Mutant(_buffers_kept_past_a_page, ("DeepSeek-V4",)),
    "no copy on write": Mutant(_no_copy_on_write, ("Bamba", "Qwen3-Next")),
    "a state not copied": Mutant(
        _state_not_copied,
        (
            "Bamba",
            "Qwen3-Next",
            "Qwen3.5",
            "Kimi-Linear",
            "Nemotron-H",
            "Jamba",
            "LFM2",
            "Zamba2",
            "Granite hybrid",
            "OLMo hybrid",
        ),
    ),
    "states of one shape copied": Mutant(_states_of_one_shape_copied, ("Inkling",)),
    "a rebuild too short": Mutant(_rebuild_too_short, ("GPT-OSS", "Gemma 3"), serve_rebuilds),
    "a path overwritten in a rebuild": Mutant(_path_overwritten_in_rebuild, ("GPT-OSS", "Gemma 3"), serve_rebuilds),
    "a rebuild that reads what it computes": Mutant(_rebuild_reads_what_it_computes, ("GPT-OSS",), serve_rebuilds),
    "tenants that meet": Mutant(_tenants_meet, ("Llama",)),
    "an invalidation forgotten": Mutant(_weights_forgotten, ("Llama", "DeepSeek-V4"), serve_new_weights),
    "a late commit of old weights": Mutant(_late_commits_count, ("Llama",), serve_new_weights),
    "a load of another page": Mutant(_load_of_another_page, ("Llama", "GPT-OSS")),
    "index keys lost": Mutant(_index_keys_lost, ("DeepSeek-V3.2",)),
}
"""By what is wrong."""
ALL = {**FAMILIES, **RECENT}
CASES = [(name, family) for name, mutant in MUTANTS.items() for family in mutant.families]
SERVED = {(mutant.serve.__name__, family): mutant.serve for mutant in MUTANTS.values() for family in mutant.families}


@pytest.mark.parametrize(("name", "family"), CASES)
def test_a_defect_is_seen(name: str, family: str, monkeypatch: Any) -> None:
    MUTANTS[name].plant(monkeypatch)
    with pytest.raises(WrongLogitsError):
        MUTANTS[name].serve(ALL[family])


@pytest.mark.deep
@pytest.mark.parametrize(("served", "family"), SERVED)
def test_without_a_defect_nothing_is_seen(served: str, family: str) -> None:
    SERVED[served, family](ALL[family])


@pytest.mark.parametrize("family", ALL)
def test_each_family_has_a_defect_that_is_seen(family: str) -> None:
    assert any(family == seen for _, seen in CASES)
