"""Windows and states in LMCache's daemon, the real one: which daemons can keep them, and a cache that goes on from one."""

from __future__ import annotations

import time
from collections.abc import Iterator

import lmcache_server
import numpy as np
import pytest
from lmcache_server import Lmcache, find, until

from unified_tree import Component, Key, Path, Point, Trailing
from unified_tree.components import Composition
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.adapters.lmcache import DaemonLinker, open_daemon, share_pools
from unified_tree.controllers.prefix_linker import LinkedPrefixes, Progress, Span, linked_pools
from unified_tree.controllers.testing.linked_tensors import PAGE, LinkedTensors, hybrid
from unified_tree.controllers.workbench.server.page_store import make_stores
from unified_tree.controllers.workbench.server.verified_pages import VerifiedPages
from unified_tree.terms.errors import ConfigurationError

lmcache_server.skip_unless_it_runs()
pytestmark = lmcache_server.QUIET

CHUNK = 16
APART = ["--separate-object-groups"]
COMPONENTS, FORMATS = hybrid(7, 3)


@pytest.fixture(scope="module")
def tensors() -> LinkedTensors:
    return LinkedTensors(16, share=True, components=COMPONENTS, formats=FORMATS)


@pytest.fixture(scope="module")
def server() -> Iterator[Lmcache]:
    with Lmcache(CHUNK, options=APART) as running:
        yield running


def opened(server: Lmcache, tensors: LinkedTensors) -> DaemonLinker:
    return open_daemon(tensors.linked, daemon=server.address, model="windows", answer_timeout_s=10.0, heartbeat_s=0.1)


def is_healthy(linker: DaemonLinker) -> bool:
    """Asked anew."""
    return linker.is_healthy


@pytest.mark.parametrize("options", [[], [*APART, "--null-block-id", "5"]], ids=["together", "another null block"])
def test_a_daemon_that_does_not_keep_them_apart_is_refused(options: list[str], tensors: LinkedTensors) -> None:
    with Lmcache(CHUNK, options=options) as other:
        with pytest.raises(ConfigurationError, match="start it with --separate-object-groups"):
            opened(other, tensors)
        paths = LinkedTensors(16, share=True)
        open_daemon(paths.linked, daemon=other.address, model="paths").close()


def test_one_that_takes_its_place_and_does_not_is_not_used(tensors: LinkedTensors) -> None:
    with Lmcache(CHUNK, options=APART) as first:
        linker = opened(first, tensors)
        assert is_healthy(linker)
        first.kill()
        first.options = []
        first.start()
        until(lambda: "separate-object-groups" in linker.last_error)
        assert not is_healthy(linker)
        linker.lookup("a", np.arange(64), "a")
        assert linker.found("a") == 0
        first.kill()
        first.options = APART
        first.start()
        until(lambda: is_healthy(linker))
        linker.release("a")
        linker.close()


def test_a_window_that_no_chunk_holds_exactly_is_refused(server: Lmcache) -> None:
    components, formats = hybrid(17, 3)
    odd = LinkedTensors(16, share=True, components=components, formats=formats)
    with pytest.raises(ConfigurationError, match="choose another chunk size"):
        opened(server, odd)


def test_a_state_in_the_page_that_stands_for_none_is_a_miss(server: Lmcache, tensors: LinkedTensors) -> None:
    linker = opened(server, tensors)
    for page, wanted in ((0, 0), (3, CHUNK)):
        salt, tokens = f"page {page}", np.arange(CHUNK)
        pages = {"full": np.arange(4), "swa": np.arange(2), "overlap": np.arange(1, 2), "mamba": np.array([page])}
        linker.store(salt, Span(tokens=tokens, salt=salt, begin=0, end=CHUNK, pages=pages))
        until(lambda salt=salt: linker.progress(salt) is Progress.DONE)  # type: ignore[misc]
        name, found = find(linker, tokens, salt, 1, 60 if wanted else 0.3)
        linker.release(name)
        assert found == wanted
        linker.release(salt)
    linker.close()


KINDS = (
    Component(name="full", coverage=Path()),
    Component(name="swa", coverage=Trailing(7)),
    Component(name="mamba", coverage=Point(), save_grid_tokens=8),
)
COUNTS = {"full": 60, "swa": 40, "mamba": 9}


class Serving:
    """A cache on a daemon, that verifies what it resumes from."""

    def __init__(self, server: Lmcache) -> None:
        stores = make_stores(dict.fromkeys(COUNTS, 64), COUNTS, None, share_pools)
        formats = {name: pool.format for name, pool in stores.pools.items()}
        composition = Composition(name="serving", page_size=PAGE, components=KINDS).with_formats(formats)
        pools = linked_pools(composition, stores.pools)
        self.linker = open_daemon(pools, daemon=server.address, model="serving", answer_timeout_s=10.0, heartbeat_s=0.1)
        self.cache = PrefixCache(KINDS, PAGE, COUNTS)
        self.pages = VerifiedPages(self.cache, stores)
        self.link = LinkedPrefixes(self.cache, self.linker, pools, weights_version="v1", wait_s=20)

    def run(self, name: str, ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
        """From which token it went on."""
        self.link.lookup(name, Key(ids))

        def polled() -> bool:
            self.link.poll()
            return self.link.is_ready(name)

        until(polled)
        lease = self.cache.acquire(Key(ids), self.link.checkpoints(ids.size))
        self.pages.resumed(lease, ids)
        self.cache.allocate(lease, ids.size)
        self.pages.ran(lease, ids.size)
        self.cache.commit(lease, ids, dict(lease.save_pages))
        self.link.store(name, lease)
        resumed = lease.compute_from
        self.pages.left(lease)
        self.cache.release(lease)
        self.link.release(name)
        until(self._is_stored)
        return resumed

    def _is_stored(self) -> bool:
        self.link.poll()
        return not self.link._stores


def test_a_later_server_goes_on_from_window_and_state(server: Lmcache) -> None:
    noise = np.random.default_rng(4)
    prompts = [noise.integers(0, 50_000, 5 * CHUNK + 3) for _ in range(3)]
    first = Serving(server)
    for number, ids in enumerate(prompts):
        first.run(f"a {number}", ids)
    first.link.close()
    time.sleep(0.1)
    second = Serving(server)
    resumed = [second.run(f"b {number}", np.append(ids, ids[:20])) for number, ids in enumerate(prompts)]
    assert resumed == [5 * CHUNK] * 3
    assert second.link.counters.retrieved_tokens == 15 * CHUNK
    assert second.pages.checked_bytes and not second.pages.wrong_bytes and not first.pages.wrong_bytes
    assert not second.cache.tree.check()
    second.link.close()
