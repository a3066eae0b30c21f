"""A namespace with a lone surrogate became a label, and from then on every scrape failed.

Each exit, by a table of nasty names: metrics, spans, the page, a recording, figures, the log, and what prints.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inspected_cache import FULL, PAGE, serve_one
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from replay_rows import invoke

from unified_tree import Key
from unified_tree.controllers import CacheCollector, PrefixCache, RequestSpans
from unified_tree.controllers.cache import prefix_cache
from unified_tree.controllers.cli.diagnosis import diagnosis, read_figures
from unified_tree.controllers.doctor import Figures
from unified_tree.controllers.inspector import Inspector
from unified_tree.controllers.inspector.recording_page import read_recording
from unified_tree.controllers.storage.rate_limited_log import RateLimitedLog
from unified_tree.controllers.storage_tier.store_settings import weights_version
from unified_tree.controllers.workbench.sizing.live_sizes import LiveSizes
from unified_tree.controllers.workbench.traces.trace import read_trace
from unified_tree.inputs.printable import LONGEST, printable
from unified_tree.terms.errors import ConfigurationError, LeaseError

NASTY = {
    "empty": "",
    "lone surrogate": "\ud800",
    "low surrogate first": "\udc00\ud800",
    "bytes that are no UTF-8": b"caf\xe9 \xff".decode("utf-8", "surrogateescape"),
    "NUL": "a\0b",
    "lines": "one\ntwo\r\nthree\x0bfour\x85five\u2028six",
    "terminal": "\x1b[31mred\x1b[0m\x07",
    "right to left": "\u202eabc\u2066def\u200f",
    "zero width": "a\u200bb\ufeff",
    "million": "m" * 1_000_000,
    "million of surrogates": "\udfff" * 1_000_000,
    "HTML": '<script>alert("1")</script>&amp;',
    "quotes": "a\"b'c\\d{e}%s%d{0}",
    "braces": "{} {0!r} {figures.__class__} %(name)s",
    "emoji": "\U0001f600 \U0001f469\u200d\U0001f469\u200d\U0001f467",
    "not a character": "\ufdd0\uffff\U0010ffff",
    "combining": "e\u0301" + "\u0301" * 400,
    "spaces": "  \t ",
    "path": "../../etc/passwd",
    "number": "NaN",
}
"""By what is nasty about them."""


def require_fit(text: str, longest: int) -> None:
    """A text is of printable characters, and not too long."""
    assert text.isprintable(), repr(text[:200])
    assert len(text) <= longest, len(text)
    text.encode()


names = pytest.mark.parametrize("name", NASTY.values(), ids=NASTY)


def of(name: str, tracer: Tracer | None = None, **options: Any) -> PrefixCache:
    """A cache where a namespace made room for itself, missed for another's sake, and has seen another's tokens."""
    cache = PrefixCache([FULL], PAGE, {"full": 12}, **options)
    if tracer is not None:
        RequestSpans(cache, tracer=tracer)
    for namespace, first in (("plain", 0), (name, 0), (name, 100), ("plain", 0), (name, 0), ("", 100), ("plain", 100)):
        serve_one(cache, namespace, list(range(first, first + 40)))
    cache.invalidate(name)
    serve_one(cache, name, list(range(40)))
    return cache


def scraped(registry: CollectorRegistry) -> dict[str, list[dict[str, str]]]:
    """Labels by sample, from the text of a scrape."""
    text = generate_latest(registry).decode()
    samples: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample.labels)
    return samples


@names
def test_metrics(name: str) -> None:
    registry = CollectorRegistry()
    registry.register(CacheCollector(of(name).stats, {"model": name}))
    samples = scraped(registry)
    assert {labels["namespace"] for labels in samples["unified_tree_evicted_miss_beneficiary_tokens_total"]}
    for labels in samples.values():
        assert len({tuple(sorted(each.items())) for each in labels}) == len(labels), "no sample stands twice"
        for each in labels:
            for value in each.values():
                require_fit(value, LONGEST)


def test_labels_are_bounded_in_number() -> None:
    cache = PrefixCache([FULL], PAGE, {"full": 12})
    for number in range(700):
        serve_one(cache, f"tenant {number % 350}", list(range(1000 * (number % 350), 1000 * (number % 350) + 40)))
    for number in range(100):
        cache.counters.count_drop(f"store said: error {number}")
    registry = CollectorRegistry()
    registry.register(CacheCollector(cache.stats))
    assert max(len(labels) for labels in scraped(registry).values()) < 70


@pytest.mark.parametrize("labels", [{"model name": "x"}, {"": "x"}, {"__name__": "x"}, {1: "x"}, {"component": "x"}, ["model"]])
def test_labels_that_would_end_every_scrape_are_refused(labels: Any) -> None:
    with pytest.raises(ConfigurationError, match="label"):
        CacheCollector(PrefixCache([FULL], PAGE).stats, labels)


def test_a_label_that_is_no_text_is_shown_as_text() -> None:
    registry = CollectorRegistry()
    registry.register(CacheCollector(PrefixCache([FULL], PAGE).stats, {"rank": 0}))  # type: ignore[dict-item]
    assert b'unified_tree_nodes{rank="0"} 0.0' in generate_latest(registry)


@names
def test_spans(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    cache = of(name, tracer=provider.get_tracer("tests"))
    with pytest.raises(LeaseError):
        cache.acquire(Key([1, 2, 3], name), request=[name])  # type: ignore[arg-type]

    class NastyError(Exception):
        pass

    def refuse(*_: Any, **__: Any) -> None:
        raise NastyError(name)

    lease = cache.acquire(Key([1, 2, 3], name), reserve_tokens=3)
    monkeypatch.setattr(prefix_cache, "checked_publication", refuse)
    with pytest.raises(NastyError):
        cache.commit(lease, 3)
    cache.release(lease)
    spans = exporter.get_finished_spans()
    assert len(spans) > 10
    for span in spans:
        said = json.loads(span.to_json())
        for text in re.findall('"((?:[^"\\\\]|\\\\.)*)"', json.dumps([said["status"], said["attributes"], said["events"]])):
            require_fit(json.loads(f'"{text}"'), 600)


def texts(told: Any) -> list[str]:
    """All texts in what was told as JSON."""
    if isinstance(told, str):
        return [told]
    parts = [*told, *told.values()] if isinstance(told, dict) else told if isinstance(told, list | tuple) else []
    return [text for part in parts for text in texts(part)]


@names
def test_a_recording_and_its_page(name: str, tmp_path: Path) -> None:
    cache = PrefixCache([FULL], PAGE, {"full": 12})
    file = tmp_path / "cache.rec"
    with Inspector.record(cache, file, figures_every_s=0.0) as inspector:
        for namespace, first in (("plain", 0), (name, 100), ("plain", 0), (name, 0), (name, 100), ("plain", 0)):
            serve_one(cache, namespace, list(range(first, first + 40)))
        cache.invalidate(name)
        held = cache.acquire(Key(list(range(40)), name), reserve_tokens=40)
        inspector.record_tree()
    cache.release(held)
    assert inspector.failure is None
    picture = read_recording(file)
    told: list[Any] = [
        picture.state(),
        picture.requests(),
        picture.leases,
        picture.over_time(),
        picture.over_time(by_namespace=True),
    ]
    told += [picture.events(0), picture.over_time_of(printable(name)), picture.tree.roots if picture.tree else []]
    assert len(picture.requests()) == 7
    for text in texts(json.loads(json.dumps(told))):
        require_fit(text, LONGEST)
    assert printable(name) in texts(told)
    assert file.stat().st_size < 50_000


@names
def test_figures(name: str, tmp_path: Path) -> None:
    figures = Figures.of(of(name), title=name)
    for text in texts(figures.record()):
        require_fit(text, 2 * LONGEST)
    file = tmp_path / "figures.json"
    file.write_text(figures.to_json(), encoding="utf-8")
    [read] = read_figures(str(file))
    said = diagnosis(read)
    assert said.replace("\n", "").isprintable() and len(said) < 10_000
    said.encode()
    given = json.loads(file.read_text())
    given["title"], given["beneficiaries"], given["details"] = name, {name: 3}, {f"never_saved/{name}": 5}
    file.write_text(json.dumps(given))
    result = invoke("doctor", file)
    assert result.exit_code == 0, result.output
    result.output.encode()


@names
def test_the_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    cache = PrefixCache([FULL], PAGE, {"full": 12})
    with caplog.at_level(logging.DEBUG):
        cache.counters.count_drop(f"prefetch failed {name}")
        RateLimitedLog().warning("kind", "%s: %s", name, OSError(name))
    assert len(caplog.records) == 2
    for record in caplog.records:
        require_fit(record.getMessage(), 2500)


@names
def test_what_prints(name: str) -> None:
    cache = of(name)
    require_fit(repr(Key([1], name)), 250)
    for line in (*cache.tree.dump().split("\n"), *str(cache.explain(Key(list(range(40)), "other"))).split("\n")):
        require_fit(line, 500)


@names
def test_models_of_other_sizes(name: str) -> None:
    cache = PrefixCache([FULL], PAGE, {"full": 60})
    sizes = LiveSizes.watch(cache, one_in=1)
    serve_one(cache, name, list(range(100)))
    stats = cache.stats()
    assert sizes.failure is None and stats.sizes is not None and stats.sizes.requests == 1


@names
def test_names_of_files(name: str, tmp_path: Path) -> None:
    assert weights_version(name, "model") == weights_version(name, "model")
    if not name or "\0" in name or "/" in name or len(name) > 200 or not _can_be_a_file(name):
        return
    folder = tmp_path / name
    folder.mkdir()
    (folder / f"{name}.json").write_text("{}")
    assert weights_version(str(folder), "model").startswith("model-")
    trace = tmp_path / f"{name}.jsonl"
    trace.write_text(json.dumps({"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}) + "\n")
    require_fit(read_trace(trace).name, LONGEST)
    rows = tmp_path / f"{name}.csv"
    result = invoke("replay", trace, "--policy", "lru", "--jobs", 1, "--csv", rows, "--json", tmp_path / f"{name}.out")
    assert result.exit_code == 0, result.output
    assert rows.read_text(encoding="utf-8")
    result = invoke("size", tmp_path / f"{name}.absent")
    assert result.exit_code == 2 and result.output.count("\n") == 1


def _can_be_a_file(name: str) -> bool:
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.parametrize("name", NASTY.values(), ids=NASTY)
@pytest.mark.parametrize("longest", [40, LONGEST, 2000])
def test_printable_text_is_fit_and_plain_text_stays(name: str, longest: int) -> None:
    require_fit(printable(name, longest), longest)
    assert printable("shop \u00e9 \u4e2d", longest) == "shop \u00e9 \u4e2d"


def test_random_text_is_made_fit() -> None:
    rng = np.random.default_rng(0)
    for _ in range(3000):
        codes = rng.integers(0, rng.choice([128, 0x3000, 0xFFFF, 0x110000]), rng.integers(0, 300))
        require_fit(printable("".join(map(chr, codes.tolist()))), LONGEST)
