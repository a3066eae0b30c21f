"""Every prefix linker that carries windows and states keeps the contract, as `unified_tree.controllers.testing` checks it."""

from __future__ import annotations

from collections.abc import Iterator

import lmcache_server
import pytest

from unified_tree.controllers.prefix_linker import MemoryLinker, PrefixLinker
from unified_tree.controllers.testing import Check, LinkedTensors, WindowedRig, windowed_linker_checks
from unified_tree.controllers.testing.linked_tensors import PAGE, hybrid
from unified_tree.controllers.testing.windowed_linker_contract import CASES, PAGES, hybrid_tensors
from unified_tree.terms.errors import ConfigurationError

pytestmark = lmcache_server.QUIET


@pytest.fixture(scope="module")
def daemons() -> Iterator[dict[int, lmcache_server.Lmcache]]:
    """By chunk; one with others than tokens of every prefix."""
    lmcache_server.skip_unless_it_runs()
    with (
        lmcache_server.Lmcache(16, options=["--separate-object-groups"]) as sixteen,
        lmcache_server.Lmcache(PAGE, options=["--separate-object-groups"]) as page,
    ):
        yield {16: sixteen, PAGE: page}


@pytest.fixture(params=[(kind, case) for kind in ("memory", "lmcache daemon") for case in CASES], ids=" ".join)
def rig(request: pytest.FixtureRequest) -> Iterator[WindowedRig]:
    kind, case = request.param
    chunk = CASES[case][0]
    linker: PrefixLinker
    if kind == "memory":
        tensors = hybrid_tensors(case)
        linker = MemoryLinker(tensors.linked, chunk, 1000)
    else:
        daemons: dict[int, lmcache_server.Lmcache] = request.getfixturevalue("daemons")
        from unified_tree.controllers.adapters.lmcache import open_daemon

        tensors = hybrid_tensors(case, share=True)
        address = daemons[chunk].address
        linker = open_daemon(tensors.linked, daemon=address, model=f"windows-{case.replace(' ', '-')}", heartbeat_s=0.2)
    yield WindowedRig(linker, tensors)
    linker.close()


@pytest.mark.parametrize("check", windowed_linker_checks(), ids=repr)
def test_every_linker_keeps_the_contract(check: Check, rig: WindowedRig) -> None:
    check(rig)


def test_a_window_that_no_chunk_holds_exactly_is_refused() -> None:
    components, formats = hybrid(17, 4)
    tensors = LinkedTensors(PAGES, components=components, formats=formats)
    with pytest.raises(ConfigurationError, match=r"swa: a window that keeps pages of 20 tokens .* a chunk of 16"):
        MemoryLinker(tensors.linked, 16, 10)


def test_an_engine_in_this_process_refuses_them() -> None:
    lmcache_server.skip_unless_it_runs()
    from unified_tree.controllers.adapters.lmcache import open_in_process

    components, formats = hybrid(7, 4)
    tensors = LinkedTensors(PAGES, components=components, formats=formats)
    with pytest.raises(ConfigurationError, match="pages of every token, so not swa, overlap, mamba"):
        open_in_process(tensors.linked, model="tests", chunk_tokens=16)
