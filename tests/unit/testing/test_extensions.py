"""A package of somebody else's, made of docs/examples: a policy, a model, a storage engine and a transfer engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import patient_checks
import pytest
from waiting import PROGRAM_S

from unified_tree import Component, ConfigurationError, Key, Point, Trailing, UnifiedTree, policy_names
from unified_tree import Path as PathCoverage
from unified_tree.components import composition_for, model_names
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.storage import StorageRegistry
from unified_tree.controllers.testing import (
    Cells,
    LetterTree,
    check_policy,
    check_storage_engine,
    check_transfer_engine,
    victims_of,
)

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
ENTRY_POINTS = """[unified_tree.policies]
lru2 = lru2_policy:Lru2
broken = lru2_policy:NotThere
number = second_time_policy:REMEMBERED
[unified_tree.models]
tiny = tiny_model:tiny
[unified_tree.storage]
sqlite = sqlite_engine:SqliteStorage
"""
FULL = Component(name="full", coverage=PathCoverage())
MAMBA = Component(name="mamba", coverage=Point())


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    patient_checks.let_no_clause_be_too_slow(monkeypatch)
    patient_checks.let_no_copy_be_too_slow(monkeypatch)


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the package is installed."""
    made = tmp_path / "site"
    info = made / "somebodys-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    names = [source.stem for source in EXAMPLES.glob("*.py")]
    for name in names:
        (made / f"{name}.py").write_text((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.syspath_prepend(made)
    yield made
    for name in names:
        sys.modules.pop(name, None)


def imported(name: str) -> Any:
    return __import__(name)


def test_a_policy_goes_by_its_name_everywhere() -> None:
    assert "lru2" in policy_names() and policy_names()[0] == "lru"
    for name in ("lru2", "lru2_policy:Lru2"):
        check_policy(name)
        assert victims_of(name) == "bcad"
        assert type(UnifiedTree([FULL], 2, policy=name).pool("full").policy).__name__ == "Lru2"
        cache = PrefixCache([FULL], 2, {"full": 8}, policy=name)
        assert type(cache.tree.pool("full").policy).__name__ == "Lru2"
        cache.close()


def test_the_command_line_takes_a_policy_and_a_model(site: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(site)!r}); from unified_tree.controllers.cli.cli import main; sys.exit(main())"
    )
    options = ["--policy", "lru,lru2,lru2_policy:Lru2", "--requests", "20", "--jobs", "1", "--device-gib", "0.1"]
    made = subprocess.run(
        [sys.executable, "-c", script, "replay", "--model", "tiny", *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        env={"PYTHONPATH": f"{site}:{EXAMPLES.parents[1]}", "PATH": "", "COLUMNS": "200"},
    )
    assert made.returncode == 0, made.stderr
    assert "lru2_policy:Lru2" in made.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lru3", "unknown eviction policy 'lru3'; there are lru, lfu, .*broken, lru2, number, and any of your own as module:"),
        ("broken", "eviction policy 'broken' cannot be loaded: .*NotThere"),
        ("number", "eviction policy 'number' must be a factory, which 16384 is not"),
        ("lru2_policy:Nothing", "eviction policy 'lru2_policy:Nothing' cannot be loaded: .*Nothing"),
        ("no_such_module:Lru", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        (":Lru", "cannot be loaded"),
    ],
)
def test_what_cannot_be_a_policy_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        UnifiedTree([FULL], 2, policy=name)


def test_a_policy_without_its_methods_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="which is no policy: it lacks rank"):
        UnifiedTree([FULL], 2, policy=lambda _: object())  # type: ignore[arg-type, return-value]


def test_a_policys_state_follows_the_tree() -> None:
    letters = LetterTree([FULL], policy="lru2")
    whole = letters.put("abcdef").boundary
    letters.match("abcdef")
    branch = letters.put("abcdxx").boundary
    lower, other = (letters.tree.state.nodes.get(boundary.node) for boundary in (whole, branch))
    assert lower is not None and other is not None and lower.parent is not None
    kept, below = lower.parent.device[0], lower.device[0]
    assert kept is not None and below is not None
    before = below.policy_state
    assert before is not None and kept.policy_state is before, "a split gives both halves the same"
    letters.match("abcdef")
    used = below.policy_state
    assert used != before
    letters.evict(2)
    assert letters.tree.node_count == 1 and kept.policy_state is used, "it takes over that of a child used later"


def test_an_admission_policy_keeps_states_and_windows_out() -> None:
    kinds = [FULL, Component(name="swa", coverage=Trailing(3)), MAMBA]
    check_policy("second_time_policy:SecondTime")
    letters = LetterTree(kinds, policy="second_time_policy:SecondTime")
    first = letters.put("abcdef", [6])
    assert first.duplicates["mamba"].tolist() == [300]
    assert set(first.canonical) == {"full"}, "the window stays the caller's"
    assert letters.match("abcdef").device.length == 0
    second = letters.put("abcdef", [6])
    assert "mamba" not in second.duplicates and set(second.canonical) == {"swa"}
    assert letters.match("abcdef").device.length == 6
    pools = [letters.tree.pool(name) for name in ("full", "swa", "mamba")]
    assert [pool.declined_values for pool in pools] == [0, 1, 1]
    assert [pool.used_pages for pool in pools] == [3, 2, 1]
    assert letters.tree.check() == []


def test_a_cache_returns_every_page_that_was_not_admitted() -> None:
    kinds = [FULL, Component(name="swa", coverage=Trailing(3)), MAMBA]
    cache = PrefixCache(kinds, 2, {"full": 32, "swa": 32, "mamba": 8}, policy="second_time_policy:SecondTime")
    for turn in range(3):
        with cache.acquire(Key(range(13))) as lease:
            assert lease.cached_tokens == (12 if turn == 2 else 0)
            cache.allocate(lease, 13)
            cache.commit(lease, range(13), dict(lease.save_pages))
        assert cache.tree.check() == []
    used = {name: pool.used - pool.protected for name, pool in cache.stats().pools.items()}
    freed = cache.tree.evict(dict.fromkeys(used, 32)).freed
    assert {name: ids.size for name, ids in freed.items()} == used
    cache.close()


def test_a_policy_that_cannot_admit_is_counted() -> None:
    class Undecided:
        def __init__(self, _: object) -> None:
            pass

        def admits(self, _: object) -> bool:
            raise KeyError("no idea")

        def touched(self, value: object) -> None:
            pass

        def rank(self, _: object) -> float:
            return 0.0

    letters = LetterTree([FULL, MAMBA], policy=Undecided)
    letters.put("abcd", [4])
    assert letters.match("abcd").device.length == 4
    assert letters.tree.pool("mamba").policy_failures == 1
    assert "no idea" in str(letters.tree.pool("mamba").last_policy_failure)


def test_a_model_goes_by_its_name() -> None:
    assert "tiny" in model_names()
    for name in ("tiny", "tiny_model:tiny"):
        assert composition_for(name, page_size=32).bytes_per_token() == {"full": 1024.0, "swa": 1024.0}
    with pytest.raises(ConfigurationError, match="tensor_parallel must be 1, not 2"):
        composition_for("tiny", tensor_parallel=2)
    with pytest.raises(ConfigurationError, match=r"the factory of model 'builtins:dict' must return a Composition, not {"):
        composition_for("builtins:dict")


def test_a_storage_engine_keeps_its_contract(tmp_path: Path) -> None:
    registry = StorageRegistry()
    assert "sqlite" in registry.names
    check_storage_engine(lambda pools, store: registry.open("sqlite", pools, path=str(tmp_path / store)))


def test_a_transfer_engine_keeps_its_contract_and_serves_a_host_tier() -> None:
    engine = imported("eager_engine").EagerEngine
    check_transfer_engine(engine, ends_in_submit=True)
    cells = Cells((0,), 64)
    tier = HostTier(page_counts={"full": 32}, engine=engine({"full": cells}))
    cache = PrefixCache([FULL], 2, {"full": 8}, host=tier)
    with cache.acquire(Key([1, 2, 3, 4, 5])) as lease:
        cache.allocate(lease, 4)
        page = int(lease.pages("full")[0])
        cache.commit(lease, [1, 2, 3, 4])
    cache.drain()
    assert cache.stats().host_pools["full"].tree == 2
    assert np.isin(cells.device[0, page], cells.host)
    cache.close()
