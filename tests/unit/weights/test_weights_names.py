"""What a store calls the weights of a namespace: never twice the same after they changed, however few names are kept."""

from __future__ import annotations

from random import Random

import pytest

from unified_tree import Component, ConfigurationError, Key, Path
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.ranks import LocalConsensus
from unified_tree.controllers.ranks.rank_agreement import MultiRank, SingleRank
from unified_tree.controllers.weights.weights import WeightsNames

NAMESPACES = ["", "a", "b", "c", "d", "lora \udc80"]


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_a_name_that_was_true_once_is_never_true_again(most: int) -> None:
    """Ranks make the same calls; another deployment makes its own, by the same names where they are given."""
    rng = Random(most)
    ranks = [WeightsNames(SingleRank("here"), most) for _ in range(2)]
    other = WeightsNames(SingleRank("elsewhere"), most)
    for version in (*ranks, other):
        version.attached("w 0")
    old: dict[str, set[str | None]] = {namespace: set() for namespace in NAMESPACES}
    elsewhere: set[tuple[str, str | None]] = set()
    for turn in range(300):
        before = {namespace: ranks[0].of(namespace) for namespace in NAMESPACES}
        namespace = rng.choice([None, *NAMESPACES, *NAMESPACES])
        named = f"w {turn + 1}" if rng.random() < 0.5 else None
        for version in ranks:
            version.invalidated(namespace, named)
        other.invalidated(rng.choice([None, *NAMESPACES]), None)
        for name in NAMESPACES:
            now = ranks[0].of(name)
            assert now == ranks[1].of(name), "on all ranks"
            if namespace in (None, name):
                old[name].add(before[name])
            assert now not in old[name]
            elsewhere.add((name, other.of(name)))
            assert (name, now) not in elsewhere or (now or "").startswith("w ")
        if namespace is not None and named is not None:
            assert ranks[0].of(namespace) == named, "the last one named is always known"
        assert ranks[0].named_count <= 2 * most


def test_what_is_forgotten_shares_nothing_and_takes_others_along() -> None:
    versions = WeightsNames(SingleRank("here"), 1)
    versions.attached("w 0")
    versions.invalidated("a", "w 1")
    assert (versions.of("a"), versions.of("b")) == ("w 1", "w 0")
    versions.invalidated("b", "w 1")
    assert versions.of("b") == "w 1"
    assert versions.of("a") == versions.of("c") != "w 0", "one group for all, as one name is kept"
    versions.attached("w 2")
    assert versions.of("a") != "w 2", "another store changes nothing about that"
    versions.invalidated(None, "w 3")
    assert {versions.of(name) for name in NAMESPACES} == {"w 3"}


def test_there_is_no_name_before_ranks_have_met() -> None:
    consensus = LocalConsensus(draw=lambda count: bytes(range(count)))
    versions = WeightsNames(MultiRank(consensus), 3)
    versions.attached("w 0")
    versions.invalidated("a", None)
    assert (versions.of("a"), versions.of("b")) == (None, "w 0")
    consensus.tick()
    assert versions.of("a") == f"unnamed {bytes(range(16)).hex()} 1"


def test_no_two_starts_have_one_session() -> None:
    sessions = set()
    for _ in range(50):
        consensus = LocalConsensus()
        assert consensus.session is None
        consensus.tick()
        sessions |= {consensus.session, bytes.fromhex(SingleRank().session or "")}
    assert len(sessions) == 100


@pytest.mark.parametrize("most", [0, -1, 1.5, True])
def test_at_least_one_name_is_kept(most: int) -> None:
    with pytest.raises(ConfigurationError, match="max_versions must be a positive integer"):
        PrefixCache([Component(name="full", coverage=Path())], 2, max_versions=most)


@pytest.mark.parametrize("given", [{"namespace": 5}, {"weights_version": 5}, {"namespace": "a", "weights_version": b"w"}])
def test_what_is_no_name_is_refused_before_anything_changed(given: dict[str, object]) -> None:
    cache = PrefixCache([Component(name="full", coverage=Path())], 2, {"full": 8})
    with cache.acquire(Key([1, 2, 3], "a")) as lease:
        cache.allocate(lease, 3)
        cache.commit(lease, 3)
    with pytest.raises(ConfigurationError, match="is named by a string, not by"):
        cache.invalidate(**given)  # type: ignore[arg-type]
    assert cache.acquire(Key([1, 2, 3], "a")).cached_tokens == 2
