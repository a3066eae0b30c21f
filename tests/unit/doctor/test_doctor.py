"""The doctor: what it finds in the figures of a cache, and where it takes them from."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from kinds import FULL, MAMBA
from waiting import wait_until

from unified_tree import ConfigurationError, Key
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cli.commands import app
from unified_tree.controllers.cli.diagnosis import diagnosis, read_figures
from unified_tree.controllers.doctor import Figures, PoolFigures, findings
from unified_tree.controllers.inspector import Inspector


def figures(misses: dict[str, int], prompt_tokens: int = 1000, **more: object) -> Figures:
    given = {"page_size": 16, "save_grid_tokens": 64, "hit_tokens": prompt_tokens - sum(misses.values()), **more}
    return Figures(prompt_tokens=prompt_tokens, misses=misses, **given)  # type: ignore[arg-type]


def serve(cache: PrefixCache, first: int, namespace: str = "", count: int = 8) -> None:
    tokens = list(range(first, first + count))
    with cache.acquire(Key(tokens, namespace)) as lease:
        cache.allocate(lease, count)
        cache.commit(lease, tokens, dict(lease.save_pages))


def starved() -> PrefixCache:
    """Too few states for as many paths: each prompt comes back after its state has gone."""
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 400, "mamba": 4})
    for _ in range(4):
        for first in range(0, 800, 100):
            serve(cache, first)
            serve(cache, first, count=12)
    return cache


def test_a_starved_pool_is_the_first_finding_with_what_it_takes() -> None:
    told = Figures.of(starved())
    [first, *_] = findings(told)
    assert first.what.startswith("device pool of mamba: ")
    assert "(a pool of 4 pages; " in first.what
    assert first.what.endswith("ticks, ranked as by lru until 64 turns are known.")
    assert "pages more" in first.advice
    assert first.tokens == next(pool.evicted_tokens for pool in told.pools if pool.component == "mamba") > 0
    assert first.tokens == sum(tokens for pool in told.pools for _, tokens in pool.short_by)


def test_a_namespace_that_floods_the_others_is_named() -> None:
    cache = PrefixCache([FULL], 2, {"full": 40})
    for turn in range(6):
        serve(cache, 0, "small", 16)
        for first in range(5):
            serve(cache, 1000 + turn * 100 + first * 20, "greedy", 16)
    assert any("'greedy'" in finding.what for finding in findings(Figures.of(cache)))


@pytest.mark.parametrize(
    ("misses", "details", "words"),
    [
        ({"never_saved": 500}, {"never_saved/not saved where it was due": 500}, "save_pages"),
        ({"never_saved": 500}, {"never_saved/aborted": 500}, "ended before"),
        ({"never_saved": 500}, {}, "checkpoints"),
        ({"other_namespace": 500}, {}, "cache_salt"),
        ({"other_weights": 500}, {}, "invalidate"),
        ({"load_refused": 500}, {"load_refused/cost": 500}, "LoadCost"),
        ({"load_refused": 500}, {"load_refused/room": 500}, "no room"),
        ({"load_failed": 500}, {}, "log"),
        ({"in_flight": 500}, {}, "one step later"),
        ({"prefetch_given_up": 500}, {}, "PrefetchPolicy"),
        ({"page_remainder": 500}, {}, "smaller pages"),
        ({"save_grid": 500}, {}, "save_grid_tokens"),
        ({"diverged": 500}, {}, "date"),
        ({"never_seen": 500}, {}, "new template"),
        ({"unknown": 500}, {}, "ghost_bytes"),
    ],
)
def test_each_cause_has_its_advice(misses: dict[str, int], details: dict[str, int], words: str) -> None:
    [finding] = findings(figures(misses, details=details))
    assert finding.tokens == 500
    assert finding.share == 0.5
    assert words in str(finding)


def unsaved(namespaces: list[str], *, saves: bool) -> PrefixCache:
    """Prompts that branch off where no state is, one in each namespace."""
    cache = PrefixCache([FULL, MAMBA], 2)
    for namespace in namespaces:
        for end in (8, 8, 8):
            tokens = [*range(8), *range(100 + cache.counters.requests, 100 + cache.counters.requests + end)]
            with cache.acquire(Key(tokens, namespace)) as lease:
                cache.allocate(lease, len(tokens))
                cache.commit(lease, tokens, dict(lease.save_pages) if saves else {})
    return cache


@pytest.mark.parametrize("saves", [True, False])
def test_states_that_were_not_saved_name_the_namespace(saves: bool) -> None:
    told = Figures.of(unsaved(["shop", "shop", "shop", "shop"], saves=saves))
    labels = {"never_saved", "never_saved/not saved where it was due"}
    for label, by_namespace in told.namespaces.items():
        assert label in labels
        assert set(by_namespace) == {"shop"}
    assert sum(sum(each.values()) for each in told.namespaces.values()) == told.misses["never_saved"]
    found = [finding for finding in findings(told) if "state" in finding.what]
    assert found and all("in namespace 'shop'" in finding.what for finding in found)
    nameless = Figures.of(unsaved(["", "", ""], saves=saves))
    assert not any("namespace" in finding.what for finding in findings(nameless))


def test_changed_weights_name_the_namespace() -> None:
    cache = PrefixCache([FULL], 2)
    for namespace in ("shop", "code"):
        serve(cache, 0, namespace, 40)
    for namespace in ("shop", "code"):
        cache.invalidate("shop")
        serve(cache, 0, namespace, 40)
    told = Figures.of(cache)
    assert told.namespaces == {"other_weights": {"shop": told.misses["other_weights"]}}
    [finding] = [finding for finding in findings(told) if "weights changed" in finding.what]
    assert finding.what.endswith(f"{finding.tokens:,} tokens, {finding.tokens:,} of them in namespace 'shop'.")


def test_no_namespace_is_named_that_has_less_than_half() -> None:
    many = {"other_weights": {"a": 150, "b": 150, "": 200}}
    [finding] = findings(figures({"other_weights": 500}, namespaces=many))
    assert "namespace" not in finding.what
    [finding] = findings(figures({"other_weights": 500}, namespaces={"other_weights": {"a": 250, "b": 100}}))
    assert "500 tokens, 250 of them in namespace 'a'" in finding.what


def test_what_costs_less_than_half_a_percent_is_no_finding() -> None:
    assert findings(figures({"page_remainder": 4})) == []
    assert "nothing" in diagnosis(figures({"page_remainder": 4}))
    assert diagnosis(figures({}, 0)).startswith("the cache: 0.0% of 0")


def test_a_store_that_lies_or_fails_comes_first() -> None:
    lying = figures({"page_remainder": 500}, store_quarantined=3)
    assert "not what had been put" in findings(lying)[0].what
    assert str(findings(lying)[0]).startswith("broken")
    failing = figures({"page_remainder": 500}, store_errors=2, store_is_degraded=True)
    assert "it is tried again by look-ups" in findings(failing)[0].what


def test_new_prompts_are_a_finding_where_they_cost_most() -> None:
    misses = {"never_seen": 620, "diverged": 20, "page_remainder": 28}
    told = figures(misses, namespaces={"never_seen": {"good": 20, "batch": 600}})
    first, second = findings(told)
    assert first.what.endswith("had these tokens: 620 tokens, 600 of them in namespace 'batch'.") and first.is_normal
    assert second.tokens == 28
    found = findings(figures({**misses, "evicted": 621, "in_flight": 300}, 2000))
    assert [each.tokens for each in found] == [300, 28], "and nowhere else"


def test_a_flood_of_new_prompts_is_told_by_the_inspector_with_its_namespace(tmp_path: Path) -> None:
    cache = PrefixCache([FULL], 2, {"full": 400})
    with Inspector.record(cache, tmp_path / "recording") as recorder:
        for turn in range(10):
            serve(cache, 0, "good", 16)
            serve(cache, 1000 + 100 * turn, "batch", 16)
        recorder.record_tree()
    [told] = read_figures(str(tmp_path / "recording"))
    first = findings(told)[0]
    assert "had these tokens" in first.what and "140 of them in namespace 'batch'" in first.what


def test_a_namespace_that_takes_the_room_is_limited_as_a_tenant_first() -> None:
    told = figures({"evicted": 500}, beneficiaries={"batch": 400})
    [found] = findings(told)
    assert found.advice.startswith("Limit it with `tenants`")


def test_five_at_most_and_the_dearest_first() -> None:
    causes = ["other_namespace", "other_weights", "load_failed", "in_flight", "page_remainder", "save_grid"]
    found = findings(figures({cause: 100 + i for i, cause in enumerate(causes)}))
    assert [each.tokens for each in found] == [105, 104, 103, 102, 101]


def test_a_pool_that_is_locked_or_stranded_says_so() -> None:
    kind = {"component": "full", "tier": "host", "kind": "path", "total": 100, "page_bytes": 1 << 20, "victims": 9}
    locked = PoolFigures(used=100, protected=90, stranded=0, evicted_tokens=500, short_by=[(1023, 500)], **kind)  # type: ignore[arg-type]
    [finding] = findings(figures({"evicted": 500}, pools=[locked]))
    assert "1,023 pages more (0.999 GiB)" in finding.advice
    assert "fewer requests at once" in finding.advice
    stranded = PoolFigures(used=100, protected=0, stranded=50, evicted_tokens=500, **kind)  # type: ignore[arg-type]
    [finding] = findings(figures({"evicted": 500}, pools=[stranded]))
    assert "50 of its pages are stranded" in finding.advice and "save at other lengths" in finding.advice
    short = replace(stranded, component="swa", kind="window", stranded=0, victims=7)
    finding = next(each for each in findings(figures({"evicted": 1000}, pools=[stranded, short])) if "of full" in each.what)
    assert "the host pool of swa evicted what belongs to them; enlarge that first" in finding.advice


def test_figures_survive_the_way_through_json(tmp_path: Path) -> None:
    told = Figures.of(starved(), "mine")
    path = tmp_path / "figures.json"
    path.write_text(told.to_json())
    assert read_figures(str(path)) == [told]
    path.write_text(f"[{told.to_json()}, {told.to_json()}]")
    assert read_figures(str(path)) == [told, told]
    result = CliRunner().invoke(app, ["doctor", str(path)])
    assert result.exit_code == 0
    assert result.output.count("mine: ") == 2


@pytest.mark.parametrize("text", ["", "{}", "[1]", "null", '{"unified_tree_figures": 99}', '{"unified_tree_figures": 1}'])
def test_what_are_no_figures_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError):
        read_figures(str(path))
    result = CliRunner().invoke(app, ["doctor", str(path)])
    assert result.exit_code == 2
    assert result.output.count("\n") == 1


def test_a_file_of_another_kind_is_named_and_a_trace_is_told_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"chat_id": 1}\n{"chat_id": 2}\n')
    with pytest.raises(ConfigurationError, match=r"trace\.jsonl: these are no figures .*replay FILE --figures"):
        read_figures(str(path))
    path.write_text('{"chat_id":\n1')
    with pytest.raises(ConfigurationError, match=r"trace\.jsonl: these are no figures [^`]*$"):
        read_figures(str(path))


@contextmanager
def answering(said: bytes, token: str | None = None) -> Iterator[str]:
    """The address of an endpoint that says the same to each question, or to those for figures that bring a token."""

    class Endpoint(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = (self.headers["Authorization"], self.path)
            allowed = token is None or asked == (f"Bearer {token}", "/api/doctor")
            self.send_response(200 if allowed else 403)
            self.end_headers()
            self.wfile.write(said if allowed else b"")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("said", [b"# HELP up\nup 1\n", b"<html>"])
def test_a_port_that_is_no_inspectors_is_told_as_by_inspect(said: bytes) -> None:
    with answering(said) as address:
        by_doctor, by_inspect = (CliRunner().invoke(app, [command, address]).output for command in ("doctor", "inspect"))
        assert f"{address}: no inspector answers there: " in by_doctor
        assert by_doctor == by_inspect


def test_figures_of_a_cache_that_stands_still_say_their_age() -> None:
    assert "s ago" not in diagnosis(figures({"page_remainder": 400}, age_s=2.0))
    assert "were hits, 35 s ago: the cache has told nothing since" in diagnosis(figures({"page_remainder": 400}, age_s=35.4))


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_figures(str(tmp_path / "none.json"))
    with pytest.raises(ConfigurationError, match="127"):
        read_figures("http://127.0.0.1:9/")


def test_figures_come_from_an_endpoint_that_wants_a_token() -> None:
    told = Figures.of(starved()).to_json().encode()
    with answering(told, "secret") as address:
        assert [json.loads(each.to_json()) for each in read_figures(address, "secret")] == [json.loads(told)]
        assert len(read_figures(f"{address}?token=secret")) == 1
        with pytest.raises(ConfigurationError, match="403"):
            read_figures(address)


def test_figures_come_from_an_inspector_and_its_recording(tmp_path: Path) -> None:
    cache = starved()
    path = tmp_path / "recording"
    with Inspector.record(cache, path) as recorder:
        recorder.record_tree()
    assert read_figures(str(path)) == [Figures.of(cache)]
    inspector = Inspector.open(cache)
    try:
        assert inspector.url is not None
        url = inspector.url
        told: list[Figures] = []

        def is_told() -> bool:
            cache.poll()
            inspector.step()
            with suppress(ConfigurationError):  # nothing was told yet
                told[:] = read_figures(url)
            return bool(told)

        wait_until(is_told, "the figures")
        assert told == [Figures.of(cache)]
    finally:
        inspector.close()
