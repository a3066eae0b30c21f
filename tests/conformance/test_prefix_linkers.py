"""Every prefix linker keeps the contract, as `unified_tree.controllers.testing` checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import lmcache_server
import pytest

from unified_tree.controllers.prefix_linker import MemoryLinker, PrefixLinker
from unified_tree.controllers.testing import Check, LinkedTensors, LinkerRig, prefix_linker_checks
from unified_tree.controllers.testing.linker_contract import page_count

pytestmark = lmcache_server.QUIET

CHUNK = lmcache_server.CHUNK_TOKENS
PAGES = page_count(CHUNK)


@pytest.fixture(scope="module")
def daemon() -> Iterator[lmcache_server.Lmcache]:
    lmcache_server.skip_unless_it_runs()
    with lmcache_server.Lmcache() as server:
        yield server


@pytest.fixture(params=["memory", "lmcache daemon", "lmcache in process"])
def rig(request: pytest.FixtureRequest) -> Iterator[LinkerRig]:
    linker: PrefixLinker
    if request.param == "memory":
        tensors = LinkedTensors(PAGES)
        linker = MemoryLinker(tensors.linked, CHUNK, 1000)
    elif request.param == "lmcache in process":
        lmcache_server.skip_unless_it_runs()
        from unified_tree.controllers.adapters.lmcache import open_in_process

        tensors = LinkedTensors(PAGES)
        linker = open_in_process(tensors.linked, model="conformance", chunk_tokens=CHUNK, memory_bytes=64 << 20)
    else:
        daemon: lmcache_server.Lmcache = request.getfixturevalue("daemon")
        from unified_tree.controllers.adapters.lmcache import open_daemon

        tensors = LinkedTensors(PAGES, share=True)
        linker = open_daemon(tensors.linked, daemon=daemon.address, model="conformance", heartbeat_s=0.2)
    yield LinkerRig(linker, tensors)
    linker.close()


@pytest.mark.parametrize("check", prefix_linker_checks(), ids=repr)
def test_every_linker_keeps_the_contract(check: Check, rig: LinkerRig, record_property: Callable[[str, object], None]) -> None:
    check(rig)
    if check.name.startswith("random"):
        record_property("operations", 60)
