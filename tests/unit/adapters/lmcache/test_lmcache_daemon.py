"""LMCache's daemon, the real one: absent, killed, frozen, restarted, slow; and what killed clients leave behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import lmcache_server
import numpy as np
import pytest
from lmcache_server import CHUNK_TOKENS, Lmcache, find, until
from ports import free_port

from unified_tree import Key
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.adapters.lmcache import DaemonLinker, open_daemon
from unified_tree.controllers.prefix_linker import LinkedPrefixes, Progress, Span
from unified_tree.controllers.testing.linked_tensors import COMPONENTS, PAGE, LinkedTensors
from unified_tree.terms.errors import ConfigurationError, LinkError

lmcache_server.skip_unless_it_runs()
pytestmark = lmcache_server.QUIET

CHUNK = CHUNK_TOKENS
PAGES = 96
IDS = np.random.default_rng(1).integers(0, 50_000, 8 * CHUNK)
END = 4 * CHUNK
"""Of what is put."""


@pytest.fixture(scope="module")
def tensors() -> LinkedTensors:
    return LinkedTensors(PAGES, share=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Lmcache]:
    with Lmcache() as running:
        yield running


@pytest.fixture
def linker(server: Lmcache, tensors: LinkedTensors) -> Iterator[DaemonLinker]:
    made = opened(server, tensors)
    yield made
    made.close()


def opened(server: Lmcache, tensors: LinkedTensors, model: str = "tests") -> DaemonLinker:
    return open_daemon(
        tensors.linked, daemon=server.address, model=model, answer_timeout_s=1.0, heartbeat_s=0.1, drain_timeout_s=0.3
    )


def span(tensors: LinkedTensors, begin: int, end: int, first_page: int, salt: str) -> Span:
    ids = np.arange(first_page, first_page + (end - begin) // PAGE)
    return Span(tokens=IDS, salt=salt, begin=begin, end=end, pages=tensors.pages(ids))


def put(linker: DaemonLinker, tensors: LinkedTensors, salt: str, end: int = END) -> Progress:
    tensors.write(IDS, salt, np.arange(end // PAGE))
    name = f"put {salt} {time.monotonic()}"
    linker.store(name, span(tensors, 0, end, 0, salt))
    until(lambda: linker.progress(name) is not Progress.RUNNING)
    progress = linker.progress(name)
    linker.release(name)
    return progress


def get(linker: DaemonLinker, tensors: LinkedTensors, salt: str) -> bool:
    """Whether what was put comes, and is right."""
    name, found = find(linker, IDS, salt, END)
    if found < END:
        linker.release(name)
        return False
    target = np.arange(32, 32 + found // PAGE)
    tensors.spoil(target)
    linker.retrieve(name, span(tensors, 0, found, 32, salt))
    until(lambda: linker.progress(name) is not Progress.RUNNING)
    is_done = linker.progress(name) is Progress.DONE
    linker.release(name)
    assert not is_done or tensors.holds(IDS, salt, target)
    return is_done


def polled_until(link: LinkedPrefixes, ask: Callable[[], object]) -> None:
    def polled() -> object:
        link.poll()
        return ask()

    until(polled)


def settle(link: LinkedPrefixes) -> None:
    polled_until(link, lambda: link.is_ready("one"))


def test_what_is_stored_outlives_the_server_that_stored_it(server: Lmcache, tensors: LinkedTensors) -> None:
    first = opened(server, tensors)
    assert put(first, tensors, "outlives") is Progress.DONE
    first.close()
    second = opened(server, tensors)
    assert get(second, tensors, "outlives")
    second.close()
    third = opened(server, tensors, model="another")
    assert find(third, IDS, "outlives", 1, 5.0)[1] == 0, "another model's"
    third.close()


def test_without_a_daemon_the_error_says_what_to_check(tensors: LinkedTensors) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(LinkError, match=f"no answer from {address} within 0.3 s: check `daemon`, and that `lmcache server`"):
        open_daemon(tensors.linked, daemon=address, model="tests", answer_timeout_s=0.3)


def test_a_daemon_that_is_killed_at_once_is_noticed(tensors: LinkedTensors) -> None:
    """A link stands only where its end would be seen."""
    with Lmcache() as server:
        for _ in range(3):
            linker = opened(server, tensors)
            server.kill()
            until(lambda linker=linker: not linker.is_healthy, 5)  # type: ignore[misc]
            linker.close()
            server.start()


def test_a_killed_daemon_is_noticed_and_the_next_one_is_picked_up(tensors: LinkedTensors) -> None:
    with Lmcache() as server:
        linker = opened(server, tensors)
        assert put(linker, tensors, "killed") is Progress.DONE
        name, found = find(linker, IDS, "killed", END)
        server.kill()
        until(lambda: not linker.is_healthy, 5)
        linker.retrieve(name, span(tensors, 0, found, 32, "killed"))
        assert linker.progress(name) is Progress.FAILED
        linker.release(name)
        linker.lookup("gone", IDS, "killed")
        assert linker.found("gone") == 0
        linker.store("gone too", span(tensors, 0, CHUNK, 0, "killed"))
        assert linker.progress("gone too") is Progress.FAILED
        server.chunk_tokens = 6
        server.start()
        until(lambda: "--chunk-size 6 is no multiple" in linker.last_error)
        assert not linker.is_healthy
        server.kill()
        server.chunk_tokens = CHUNK
        server.start()
        until(lambda: linker.is_healthy)
        assert find(linker, IDS, "killed", 1, 5.0)[1] == 0, "the new one's memory is empty"
        assert put(linker, tensors, "killed") is Progress.DONE
        assert get(linker, tensors, "killed")
        linker.close()


def test_a_frozen_daemon_may_write_until_it_is_killed(tensors: LinkedTensors) -> None:
    with Lmcache() as server:
        linker = opened(server, tensors)
        assert put(linker, tensors, "frozen") is Progress.DONE
        name, found = find(linker, IDS, "frozen", END)
        server.pause()
        tensors.spoil(np.arange(32, 64))
        linker.retrieve(name, span(tensors, 0, found, 32, "frozen"))
        linker.lookup("while frozen", IDS, "frozen")
        until(lambda: linker.found("while frozen") == 0, 5)
        until(lambda: not linker.is_healthy, 5)
        assert linker.progress(name) is Progress.RUNNING, "it may go on at any moment"
        with pytest.raises(LinkError, match="runs, so it cannot be released"):
            linker.release(name)
        linker.release("while frozen")
        server.kill()
        until(lambda: linker.progress(name) is Progress.FAILED, 5)
        linker.release(name)
        linker.close()


def test_a_daemon_that_thaws_ends_what_it_had_begun(tensors: LinkedTensors) -> None:
    with Lmcache() as server:
        linker = opened(server, tensors)
        assert put(linker, tensors, "thawed") is Progress.DONE
        name, found = find(linker, IDS, "thawed", END)
        server.pause()
        target = np.arange(32, 32 + found // PAGE)
        tensors.spoil(target)
        linker.retrieve(name, span(tensors, 0, found, 32, "thawed"))
        until(lambda: not linker.is_healthy, 5)
        server.resume()
        until(lambda: linker.progress(name) is Progress.DONE)
        assert tensors.holds(IDS, "thawed", target)
        linker.release(name)
        until(lambda: linker.is_healthy)
        assert get(linker, tensors, "thawed")
        linker._session._transfer.unregister().wait(5)  # as the daemon does to a client that was silent for long
        server.pause()
        until(lambda: not linker.is_healthy, 5)
        server.resume()
        until(lambda: linker.is_healthy)
        assert get(linker, tensors, "thawed")
        linker.close()


def test_closing_beside_a_frozen_daemon_ends_and_says_what_it_left(tensors: LinkedTensors) -> None:
    with Lmcache() as server:
        linker = opened(server, tensors)
        assert put(linker, tensors, "left") is Progress.DONE
        name, found = find(linker, IDS, "left", END)
        server.pause()
        linker.retrieve(name, span(tensors, 0, found, 32, "left"))
        with pytest.raises(LinkError, match=f"transfers of \\['{name}'\\] have not ended"):
            linker.close()
        linker.close()


def test_a_cache_goes_on_when_the_daemon_is_frozen_and_killed(tensors: LinkedTensors) -> None:
    with Lmcache() as server:
        linker = opened(server, tensors)
        assert put(linker, tensors, "unused") is Progress.DONE
        cache = PrefixCache(COMPONENTS, PAGE, {"full": PAGES})
        link = LinkedPrefixes(cache, linker, tensors.linked, weights_version="v1", wait_s=0.3)
        key = Key(IDS)
        salt = link._salt.of("")
        assert put(linker, tensors, salt) is Progress.DONE
        linker.release(find(linker, IDS, salt, END)[0])
        link.lookup("one", key)
        name = link._requests["one"].name
        until(lambda: linker.found(name) is not None)
        server.pause()
        link.poll()
        settle(link)
        assert link.counters.retrieves_late == 1
        with cache.acquire(key) as lease:
            assert lease.cached_tokens == 0
        assert cache.stats().pools["full"].leased == 4 * CHUNK // PAGE, "whose pages it may still write"
        server.kill()
        polled_until(link, lambda: not cache.stats().pools["full"].leased)
        link.release("one")
        link.close()


def test_pools_that_the_daemon_cannot_map_are_refused(server: Lmcache) -> None:
    with pytest.raises(ConfigurationError, match="call share_pools on them before"):
        opened(server, LinkedTensors(4))


def test_chunks_that_are_no_multiple_of_the_page_are_refused(tensors: LinkedTensors) -> None:
    with (
        Lmcache(chunk_tokens=6) as server,
        pytest.raises(ConfigurationError, match="--chunk-size 6 is no multiple of the page"),
    ):
        opened(server, tensors)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"daemon": "127.0.0.1:1"}, "model is missing"),
        ({"daemon": "tcp://127.0.0.1:1", "model": "m"}, "daemon must be host:port"),
        ({"daemon": "127.0.0.1:1", "model": "a/b"}, "model must be"),
        ({"daemon": "127.0.0.1:1", "model": "m", "heartbeat_s": 0.0}, "heartbeat_s must be positive"),
        ({"daemon": "127.0.0.1:1", "model": "m", "demon": 1}, "unknown setting 'demon'"),
    ],
)
def test_settings_that_cannot_be_are_named(tensors: LinkedTensors, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        open_daemon(tensors.linked, **given)


def test_tokens_that_the_daemon_cannot_hash_are_not_asked_for(linker: DaemonLinker, tensors: LinkedTensors) -> None:
    """Its handler would fail, and never answer."""
    ids = IDS.copy()
    ids[5 * CHUNK] = 1 << 32
    ids[6 * CHUNK] = -1
    tensors.write(ids, "wide", np.arange(4 * CHUNK // PAGE))
    pages = np.arange(8 * CHUNK // PAGE)
    linker.store("all", Span(tokens=ids, salt="wide", begin=0, end=8 * CHUNK, pages=tensors.pages(pages)))
    assert linker.progress("all") is Progress.FAILED
    linker.release("all")
    linker.store("part", Span(tokens=ids, salt="wide", begin=0, end=END, pages=tensors.pages(pages[: END // PAGE])))
    until(lambda: linker.progress("part") is Progress.DONE)
    linker.release("part")
    name, found = find(linker, ids, "wide", 1)
    linker.release(name)
    assert found == END
