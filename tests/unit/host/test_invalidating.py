"""New weights: what was computed before is never matched, published or loaded again, on either tier."""

from __future__ import annotations

import pytest
from held_engine import Tiered
from kinds import FULL, MAMBA, swa

from unified_tree import TransferError
from unified_tree.nodes.effect import EffectKind


def on_both() -> Tiered:
    """The same text in two namespaces, on device and on host."""
    tiered = Tiered([FULL, swa(3), MAMBA])
    for namespace in ("", "tenant"):
        tiered.serve("abcdefgh", namespace=namespace)
    tiered.settle()
    return tiered


@pytest.mark.parametrize(("namespace", "hits"), [(None, (0, 0)), ("", (0, 8)), ("tenant", (8, 0)), ("other", (8, 8))])
def test_nothing_is_found_on_either_tier(namespace: str | None, hits: tuple[int, int]) -> None:
    tiered = on_both()
    tiered.runner.invalidate(namespace)
    tiered.check()
    assert (tiered.serve("abcdefghi"), tiered.serve("abcdefghi", namespace="tenant")) == hits
    tiered.end()


def test_pages_come_home_by_and_by() -> None:
    tiered = on_both()
    tiered.runner.invalidate()
    assert tiered.on_host() == 8, "it costs nothing to forget"
    tiered.cache.poll()
    tiered.check()
    stats = tiered.cache.stats()
    assert [pool.used for pool in stats.pools.values()] == [pool.used for pool in stats.host_pools.values()] == [0] * 3
    tiered.end()


def test_a_commit_of_what_was_invalidated_is_discarded() -> None:
    tiered = Tiered([FULL, MAMBA])
    request = tiered.start("abcdef")
    tiered.runner.invalidate("")
    tiered.run(request)
    assert tiered.cache.stats().drops["commit of what was invalidated"] == 1
    assert tiered.cache.stats().nodes == 0
    tiered.run(request, "gh")
    tiered.runner.finish(request)
    assert tiered.serve("abcdefgh") == 0
    assert tiered.serve("abcdefghi") == 8, "what is computed from now on counts"
    tiered.end()


@pytest.mark.parametrize("stage", ["not submitted", "submitted", "landed"])
@pytest.mark.parametrize("namespace", [None, ""])
def test_a_lease_that_is_loading_fails(namespace: str | None, stage: str) -> None:
    tiered = on_both()
    tiered.forget()
    request, spared = tiered.start("abcdefghi"), tiered.start("abcdefghi", "tenant")
    if stage != "not submitted":
        tiered.cache.poll()
    if stage == "landed":
        tiered.engine.land(EffectKind.LOAD)
    tiered.runner.invalidate(namespace)
    for _ in range(2):
        with pytest.raises(TransferError, match="invalidated"):
            tiered.cache.wait_layer(request.lease, 0)
        tiered.bring()
        tiered.cache.poll()
    assert not request.lease.is_loading
    assert request.lease.failure is not None
    tiered.runner.finish(request)
    if namespace == "":
        tiered.run(spared)
    assert (spared.lease.failure is None) is (namespace == "")
    tiered.runner.finish(spared)
    assert tiered.serve("abcdefghi") == 0
    tiered.end()


def test_a_boundary_that_waits_for_its_backup_is_forgotten() -> None:
    tiered = Tiered([FULL])
    tiered.serve("abcdefgh")
    tiered.runner.invalidate()
    tiered.settle()
    assert tiered.on_host() == 0
    assert tiered.cache.stats().backed_up.count == 0
    tiered.end()
