"""An inspector end to end: what it tells its page, or a recording, is what the cache holds."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inspected_cache import FULL, PAGE, busy_cache, serve, serve_one
from replay_rows import invoke
from waiting import PATIENCE_S, told, wait_until

from unified_tree import Key
from unified_tree.controllers import HostTier, LoadCost, PrefixCache
from unified_tree.controllers.inspector import Inspector
from unified_tree.controllers.inspector.figures import POOL_FIELDS
from unified_tree.controllers.inspector.picture import figures_of
from unified_tree.controllers.inspector.recording_page import read_recording, recording_server
from unified_tree.controllers.inspector.tape import EVENT_FIELDS
from unified_tree.controllers.transfer_engines import NullEngine
from unified_tree.misses.miss_cause import MissCause
from unified_tree.terms.errors import ConfigurationError


class Page:
    """What the page of an inspector answers, while its cache is polled."""

    def __init__(self, cache: PrefixCache, inspector: Inspector) -> None:
        self.cache = cache
        assert inspector.url is not None
        self.url = inspector.url

    def ask(self, name: str, body: Any = None) -> Any:
        found: list[Any] = []

        def fetch() -> None:
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(self.url + "api/" + name, data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                found.append(json.load(answer))

        thread = threading.Thread(target=fetch)
        thread.start()
        while thread.is_alive():
            self.cache.poll()
            time.sleep(0.001)
        thread.join()
        return found[0]

    def until(self, name: str, condition: Any) -> Any:
        return told(lambda: self.ask(name), condition, name)


@contextmanager
def opened(cache: PrefixCache, **settings: Any) -> Iterator[Page]:
    with Inspector.open(cache, figures_every_s=0.05, **settings) as inspector:
        yield Page(cache, inspector)
    assert not cache.counters.observers.all
    assert cache.tree.state.ghosts is not None and cache.tree.state.ghosts.victims_of is None


def test_the_page_shows_what_the_cache_holds() -> None:
    cache = busy_cache()
    held = cache.acquire(Key(list(range(50)), "shop"), reserve_tokens=50)
    with opened(cache) as page:
        lease = serve_one(cache, "new", list(range(60)))
        state = page.until(
            "state", lambda told: told["tree"] and told["figures"]["totals"]["requests"] == cache.counters.requests
        )
        figures, stats = state["figures"], cache.stats()
        assert (figures["nodes"], figures["leases"], state["tree"]["nodes"]) == (stats.nodes, 1, stats.nodes)
        assert figures["misses"] == cache.ledger.tokens and figures["totals"]["evictions"] == stats.evictions
        for row in figures["pools"]:
            pool = dict(zip(POOL_FIELDS, row, strict=True))
            there = (stats.host_pools if pool["tier"] else stats.pools)[pool["component"]]
            for name in ("total", "used", "tree", "protected", "page_bytes", "victims"):
                assert pool[name] == getattr(there, name)
        flame = page.ask("flame")
        pools: list[Any] = [*stats.pools.values(), *stats.host_pools.values()]
        assert flame["bytes"] == sum(pool.tree * pool.page_bytes for pool in pools)
        told = page.until("leases", lambda told: told["count"] == 1)["largest"][0]
        assert (told["namespace"], told["prompt"], told["held_s"]) == ("shop", 50, None)
        assert told["bytes"] == sum(-(-50 // PAGE) * c.page_bytes for c in cache.tree.components)
        request = page.ask("requests")[0]
        assert (request["namespace"], request["prompt"], request["compute_from"]) == ("new", 60, 0)
        assert [(m["cause"], m["begin"], m["end"]) for m in request["misses"]] == [
            (m.code, m.begin, m.end) for m in lease.misses
        ]
    cache.release(held)


def test_a_walk_says_what_a_request_would_get() -> None:
    cache = busy_cache()
    cache.drain()
    sessions = {key.namespace: key for _, key in owners(cache)}
    with opened(cache) as page:
        for namespace, key in sessions.items():
            tokens = [*np.frombuffer(bytes(key.data), np.int64).tolist(), 7, 8, 9]
            before = cache.tree.state.clock
            walked = page.ask("walk", {"tokens": tokens, "namespace": namespace})
            assert cache.tree.state.clock == before, "it changes nothing"
            lease = cache.acquire(Key(tokens, namespace))
            computed = lease.misses[0].begin
            assert walked["known"] == key.length and walked["misses"][0]["begin"] >= computed
            assert sum(m["end"] - m["begin"] for m in walked["misses"]) == len(tokens) - walked["misses"][0]["begin"]
            assert walked["nodes"][-1]["matched"] == key.length
            cache.release(lease)
            number = page.until("requests", lambda told: told)[0]["number"]
            assert page.ask("walk", {"request": number})["prompt"] > 0
        assert "too long ago" in page.ask("walk", {"request": 10**6})["error"]
        assert "at least one" in page.ask("walk", {"tokens": []})["error"]


def owners(cache: PrefixCache) -> list[tuple[int, Key]]:
    """Keys that end at nodes of the tree."""
    tree = cache.tree
    return [
        (node.id, tree.key_of(boundary))
        for boundary in tree.transfers.boundaries()
        if (node := tree.state.nodes.get(boundary.node))
    ]


def test_evictions_and_transfers_are_on_the_tape() -> None:
    cache = busy_cache(10)
    with opened(cache) as page:
        victims = sum(cache.counters.victims.values())
        serve(cache, 60, np.random.default_rng(1))
        wanted = sum(cache.counters.victims.values()) - victims
        page.until("events", lambda told: sum(e["values"] for e in named(told) if e["kind"] == "evicted") == wanted)
        told = named(page.ask("events"))
        assert {event["kind"] for event in told} >= {"evicted", "backup"}
        evictions = [event for event in told if event["kind"] == "evicted"]
        assert {event["for"] for event in evictions} <= {"shop", "code", "", None}
        over = page.ask("time")
        assert over["labels"][3:] == [cause.label for cause in MissCause]
        assert all(len(rates) == len(over["at_s"]) for rates in over["rates"])
        for event in evictions:
            assert sum(count for _, count in event["owners"]) == event["values"] >= event["calls"], "whose values it took"
            assert {namespace for namespace, _ in event["owners"]} <= {"shop", "code", ""}
            assert event["component"] == "full" or event["tokens"] == 0, "a window alone is no tokens"
            assert event["component"] == "swa" or event["tokens"] >= PAGE * event["values"]
        assert {namespace for event in evictions for namespace, _ in event["owners"]} == {"shop", "code", ""}


def named(told: Any) -> list[dict[str, Any]]:
    """Events with names for what they tell."""
    return [dict(zip(EVENT_FIELDS, event[1:], strict=True)) for event in told["events"]]


def test_invalidations_are_on_the_tape(tmp_path: Path) -> None:
    cache = busy_cache(10)
    file = tmp_path / "cache.rec"
    with Inspector.record(cache, file) as inspector:
        cache.invalidate("shop")
        inspector.step()
        cache.invalidate("shop", "v2")
        cache.invalidate()
        inspector.record_tree()
    picture = read_recording(file)
    told = [(event["kind"], event["for"], event["calls"]) for event in named(picture.events(0))]
    assert told == [("invalidated", "shop", 1), ("invalidated", "shop", 1), ("invalidated", None, 1)]
    assert [namespace for _, namespace in picture.over_time()["invalidations"]] == ["shop", "shop", None]


def test_what_an_invalidation_left_was_nobodys(tmp_path: Path) -> None:
    cache = PrefixCache([FULL], PAGE, {"full": 12})
    serve_one(cache, "", list(range(40)))
    file = tmp_path / "cache.rec"
    cache.invalidate()
    with Inspector.record(cache, file) as inspector:
        serve_one(cache, "", list(range(100, 140)))
        inspector.record_tree()
    [event] = [event for event in named(read_recording(file).events(0)) if event["kind"] == "evicted"]
    assert event["pages"] and not event["values"] and not event["owners"]


def test_hits_and_misses_are_told_by_namespace(tmp_path: Path) -> None:
    cache = busy_cache(10)
    file = tmp_path / "cache.rec"
    begun, hits = list(cache.ledger.tokens), cache.counters.hit_tokens
    with Inspector.record(cache, file, figures_every_s=0.0) as inspector:
        serve(cache, 60, np.random.default_rng(2))
        inspector.record_tree()
    picture = read_recording(file)
    by_namespace = dict(picture.over_time()["namespaces"])
    assert set(by_namespace) == {"shop", "code", ""}
    told = np.array(list(by_namespace.values())).sum(0).tolist()
    assert told == [cache.counters.hit_tokens - hits, *np.subtract(cache.ledger.tokens, begun).tolist()]
    for namespace, tokens in by_namespace.items():
        over = picture.over_time_of(namespace)
        assert over["labels"] == ["hit", *(cause.label for cause in MissCause)]
        width = over["at_s"][1] - over["at_s"][0]
        counted = [width * sum(rates) for rates in over["rates"]]
        assert all(abs(one - all_of_it) <= 0.01 * all_of_it + 200 for one, all_of_it in zip(counted, tokens, strict=True))
    assert picture.over_time(by_namespace=True)["labels"] == [name for name, _ in picture.over_time()["namespaces"]]
    assert picture.over_time_of("nobody")["rates"] == [[0.0] * len(over["at_s"])] * len(over["labels"])


def test_a_load_that_fails_moves_hits_to_their_namespaces_misses(tmp_path: Path) -> None:
    tier = HostTier(page_counts={"full": 100}, engine=NullEngine(), load_cost=LoadCost(flops_per_s=1.0))
    cache = PrefixCache([FULL], PAGE, {"full": 12}, host=tier)
    for namespace in ("one", "two"):
        serve_one(cache, namespace, list(range(40)))
        cache.drain()
    file = tmp_path / "cache.rec"
    with Inspector.record(cache, file, figures_every_s=0.0) as inspector:
        lease = cache.acquire(Key(list(range(50)), "one"))
        assert lease.is_loading
        cache.invalidate("one")
        cache.drain()
        assert lease.failure is not None
        inspector.record_tree()
    [(namespace, tokens)] = read_recording(file).over_time()["namespaces"]
    failed = tokens[1 + MissCause.LOAD_FAILED]
    assert namespace == "one" and failed == cache.ledger.tokens[MissCause.LOAD_FAILED] > 0
    assert sum(tokens) == 50
    cache.release(lease)


def test_the_page_has_the_clock_of_the_cache(tmp_path: Path) -> None:
    clock = [0.0]
    cache = PrefixCache([FULL], PAGE, {"full": 12}, time_s=lambda: clock[0])
    file = tmp_path / "cache.rec"
    opened_at_s = time.time()
    with Inspector.record(cache, file) as inspector:
        for _ in range(4):
            clock[0] += 100.0
            serve_one(cache, "", list(range(int(clock[0]), int(clock[0]) + 40)))
        inspector.record_tree()
    picture = read_recording(file)
    requests = picture.requests()
    assert [round(picture.figures["at_s"] - request["at_s"]) for request in requests] == [0, 100, 200, 300]
    begun_at_s = picture.figures["at_s"] - 400
    assert opened_at_s <= begun_at_s <= time.time(), "which was set to the time of day"
    evictions = [event for event in named(picture.events(0)) if event["kind"] == "evicted"]
    assert {round(picture.figures["at_s"] - event["at_s"]) for event in evictions} == {0, 100, 200}


def is_reading(inspector: Inspector) -> bool:
    return inspector._walk is not None


def is_telling(inspector: Inspector) -> bool:
    return inspector._is_untold


def test_a_step_reads_no_more_than_its_budget_allows() -> None:
    cache = busy_cache(300, device=2000, host=2000)
    told: list[bytes] = []

    class Nobody:
        is_open = True

        def put(self, frame: bytes) -> None:
            told.append(frame)

        def flush(self) -> bool:
            return True

        def take(self) -> list[Any]:
            return []

        def close(self) -> None:
            self.is_open = False

    inspector = Inspector(cache, Nobody(), budget_s=0.0, figures_every_s=1e9)
    question = type("Question", (), {"kind": "tree", "fields": {}, "body": b""})
    inspector._questions.append(question())
    while not is_reading(inspector):
        inspector.step()
    steps = 0
    while is_reading(inspector):
        inspector.step()
        steps += 1
    assert steps >= cache.tree.node_count // 32
    leases = [cache.acquire(Key(list(range(50)), "held")) for _ in range(9)]
    inspector._questions.append(type("Question", (), {"kind": "leases", "fields": {}, "body": b""})())
    before, steps = len(told), 0
    while len(told) == before:
        inspector.step()
        steps += 1
    assert steps >= 1 + len(leases) // 2 + 1, "two a step, and one to tell them"
    inspector.close()
    for lease in leases:
        cache.release(lease)


def test_what_happened_is_told_in_parts_that_leave_nothing_out(tmp_path: Path) -> None:
    cache = busy_cache(10)
    begun = sum(cache.counters.victims.values())
    clock = [0.0]
    file = tmp_path / "cache.rec"
    with Inspector.record(cache, file, time_s=lambda: clock[0]) as inspector:
        serve(cache, 30, np.random.default_rng(1))
        clock[0] = 2.0
        while not is_telling(inspector):
            inspector.step()
        steps = 0
        while is_telling(inspector):
            inspector.step()
            steps += 1
    assert steps > 3
    picture = read_recording(file)
    assert [request["number"] for request in picture.requests()] == list(range(30, 0, -1))
    evictions = [event for event in named(picture.events(0)) if event["kind"] == "evicted"]
    assert sum(event["values"] for event in evictions) == sum(cache.counters.victims.values()) - begun


def test_a_page_that_is_gone_leaves_the_cache_alone() -> None:
    cache = busy_cache(10)
    inspector = Inspector.open(cache)
    assert inspector._process is not None
    inspector._process.kill()

    def is_gone() -> bool:
        cache.poll()
        return not cache.counters.observers.all

    wait_until(is_gone, "the cache learns that the page is gone")
    serve(cache, 5, np.random.default_rng(0))
    inspector.close()


def test_the_process_ends_with_the_inspector() -> None:
    cache = busy_cache(5)
    with Inspector.open(cache) as inspector:
        assert inspector._process is not None
        number = inspector._process.pid
        os.kill(number, 0)
        with pytest.raises(ConfigurationError, match="an inspector already"):
            Inspector.open(cache)
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_a_page_nobody_reads_from_stops_the_walk_and_not_the_cache() -> None:
    cache = busy_cache()
    with Inspector.open(cache) as inspector:
        assert inspector._process is not None
        os.kill(inspector._process.pid, 19)  # SIGSTOP
        for _ in range(50):
            serve(cache, 2, np.random.default_rng(0))
        os.kill(inspector._process.pid, 18)  # SIGCONT


def test_a_recording_shows_the_same(tmp_path: Path) -> None:
    cache = busy_cache(10)
    file = tmp_path / "cache.rec"
    with Inspector.record(cache, file, figures_every_s=0.0) as inspector:
        serve(cache, 40, np.random.default_rng(2))
        inspector.record_tree()
    picture = read_recording(file)
    assert picture.figures["misses"] == cache.ledger.tokens and picture.is_over
    assert picture.tree is not None and len(picture.tree.rows) == cache.tree.node_count
    assert len(picture.requests()) == 40
    server, url = recording_server(file, "127.0.0.1", 0, None)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        for _, key in owners(cache):
            tokens = [*np.frombuffer(bytes(key.data), np.int64).tolist(), 7]
            found = cache.tree.match_prefix(Key(tokens, key.namespace), limit=len(tokens) - 1, touch=False)
            body = json.dumps({"tokens": tokens, "namespace": key.namespace}).encode()
            request = urllib.request.Request(url + "api/walk", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                walked = json.load(answer)
            assert (walked["known"], walked["reachable"]) == (found.known.length, found.reachable.length)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_recording_that_was_cut_off_shows_what_there_is(tmp_path: Path) -> None:
    cache = busy_cache(10)
    file = tmp_path / "cache.rec"
    with Inspector.record(cache, file) as inspector:
        inspector.record_tree()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert read_recording(file).cache["page_size"] == PAGE
    for wrong in (b"", b"not a recording", whole[:1] + b"x" + whole[2:]):
        file.write_bytes(wrong)
        with pytest.raises(ConfigurationError):
            read_recording(file)


def test_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "replay.rec"
    small = ["replay", "--requests", "40", "--device-gib", "1", "--policy", "lru", "--jobs", "1"]
    done = invoke(*small, "--inspect", file)
    assert done.exit_code == 0, done.output
    picture = read_recording(file)
    assert picture.tree is not None and picture.figures["totals"]["requests"] > 0
    assert max(event[1] for _, event in picture._events) if picture._events else True
    assert invoke("inspect", tmp_path / "none").exit_code == 2
    assert "no inspector answers" in invoke("inspect", "http://127.0.0.1:9/").output
    assert invoke(*small, "--inspect", tmp_path).exit_code == 2
    cache = busy_cache(5)
    with opened(cache) as page:
        page.until("state", lambda told: told["figures"])
        assert "full, swa" in invoke("inspect", page.url).output


def test_old_figures_say_their_age(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = [100.0]
    monkeypatch.setattr("unified_tree.controllers.inspector.picture.monotonic", lambda: now[0])
    with Inspector.record(busy_cache(5), tmp_path / "recording") as recorder:
        recorder.record_tree()
    picture = read_recording(tmp_path / "recording")
    now[0] += 35.0
    assert picture.age_s == figures_of(picture).age_s == 0.0, "a recording is as old as it is"
    picture.is_over = False
    assert picture.age_s == figures_of(picture).age_s == picture.state()["age_s"] == 35.0


def test_a_page_that_cannot_answer_says_why() -> None:
    with Inspector.open(busy_cache(5), token="a secret of the page") as inspector:
        asked = invoke("inspect", inspector.url)
        assert asked.exit_code == 0 and "answers; the cache has told nothing yet" in asked.output
        asked = invoke("doctor", inspector.url)
        assert asked.exit_code == 2 and "the cache has told nothing yet" in asked.output
        for command in ("inspect", "doctor"):
            asked = invoke(command, inspector.url, "--token", "other")
            assert asked.exit_code == 2 and "a token is needed" in asked.output
