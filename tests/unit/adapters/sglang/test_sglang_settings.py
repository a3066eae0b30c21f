"""Where the backend's settings come from, what they mean, and what it refuses to start with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from unified_tree import ConfigurationError
from unified_tree.controllers.adapters.sglang.plugin import check_flags
from unified_tree.controllers.adapters.sglang.settings import VARIABLE, HostSettings, Settings
from unified_tree.controllers.host.host_tier import WritePolicy
from unified_tree.controllers.inspector.inspector_settings import InspectorSettings
from unified_tree.controllers.storage_tier.policies import PrefetchMode
from unified_tree.controllers.storage_tier.store_settings import StoreSettings
from unified_tree.declare.page_format import WHOLE, Shard

GIVEN: dict[str, Any] = {
    "policy": "lru",
    "host": {"pages": {"full": 10}},
    "write_policy": "write_back",
    "rank_timeout_s": 12,
    "inspector": {"host": "0.0.0.0", "port": 8200, "token": "sixteen characters"},
    "store": {
        "engine": "file",
        "directory": "somewhere",
        "capacity_bytes": 5,
        "weights_version": "7",
        "prefetch": {"min_tokens": 3},
    },
}
READ = Settings(
    policy="lru",
    host=HostSettings(pages={"full": 10}),
    write_policy=WritePolicy.WRITE_BACK,
    store=StoreSettings(
        engine="file",
        options={"directory": "somewhere", "capacity_bytes": 5},
        weights_version="7",
        prefetch={"min_tokens": 3},
    ),
    rank_timeout_s=12,
    inspector=InspectorSettings(host="0.0.0.0", port=8200, token="sixteen characters"),
)


def test_settings_are_read_from_json_and_from_files(tmp_path: Path) -> None:
    assert Settings.read({}) == Settings.read({VARIABLE: " "}) == Settings()
    assert Settings.read({VARIABLE: json.dumps(GIVEN)}) == READ
    (tmp_path / "a.json").write_text(json.dumps(GIVEN))
    assert Settings.read({VARIABLE: str(tmp_path / "a.json")}) == READ


def test_settings_are_read_from_yaml(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "a.yaml").write_text("policy: lru\nhost:\n  ratio: 1.5\nwrite_policy: write-back\n")
    expected = Settings(policy="lru", host=HostSettings(ratio=1.5), write_policy=WritePolicy.WRITE_BACK)
    assert Settings.read({VARIABLE: str(tmp_path / "a.yaml")}) == expected


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([1], f"{VARIABLE} must be a mapping, not [1]"),
        ({"hots": {}}, f"{VARIABLE}: there is no setting 'hots'; there are policy, host, write_policy, store, rank_timeout_s"),
        ({"host": 3}, "host must be a mapping, not 3"),
        ({"host": {"ratoi": 3}}, "host: there is no setting 'ratoi'; there are ratio, gib, pages"),
        ({"host": {"ratio": 2, "gib": 1}}, "host: give one of ratio, gib and pages, not ratio and gib"),
        ({"host": {"ratio": 0}}, "host.ratio must be finite and positive"),
        ({"host": {"ratio": "2"}}, "host.ratio must be a number, not '2'"),
        ({"host": {"gib": -1}}, "host.gib must be finite and positive, not -1"),
        ({"host": {"pages": 5}}, 'host.pages must name each component, such as {"full": 5}'),
        ({"host": {"pages": {"full": 0}}}, "host.pages.full must be 1 or more, not 0"),
        ({"host": {"pages": {"full": 1.5}}}, "host.pages.full must be an integer, not 1.5"),
        ({"event_groups": "yes"}, "event_groups must be true or false, not 'yes'"),
        ({"allow_unproven_gpu": 1}, "allow_unproven_gpu must be true or false, not 1"),
        (
            {"write_policy": "soon"},
            "write_policy must be one of write-through, write-through-selective, write-back, write-back-selective, not 'soon'",
        ),
        ({"inspector": 3}, "inspector must be a mapping, not 3"),
        ({"inspector": {"ports": 3}}, "inspector: there is no setting 'ports'; there are host, port, token"),
        ({"inspector": {"port": -1}}, "inspector: port must be"),
        ({"inspector": {}, "misses": {"memory_mib": 0}}, "give misses.memory_mib more than 0"),
        ({"store": "file"}, 'store must name an engine, such as {"engine": "file"'),
        ({"store": {"directory": "x"}}, 'store must name an engine, such as {"engine": "file"'),
        ({"store": {"engine": 3}}, 'store must name an engine, such as {"engine": "file"'),
        ({"store": {"engine": "file", "prefetch": 3}}, "store.prefetch must be a mapping, not 3"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(given: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings.of(given)
    assert says in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="neither a JSON object nor a file"):
        Settings.read({VARIABLE: str(tmp_path / "missing")})
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigurationError, match="is not JSON, and YAML needs pyyaml"):
        Settings.read({VARIABLE: "{policy: lru}"})


def test_yaml_that_cannot_be_parsed_is_refused() -> None:
    pytest.importorskip("yaml")
    with pytest.raises(ConfigurationError, match=f"{VARIABLE} is neither JSON nor YAML"):
        Settings.read({VARIABLE: "{policy: ["})


def test_host_pages_are_counted() -> None:
    device, size = {"full": 100, "swa": 10}, {"full": 1 << 20, "swa": 1 << 21}
    assert HostSettings().page_counts(device, size) == {"full": 200, "swa": 20}
    assert HostSettings(ratio=0.01).page_counts(device, size) == {"full": 1, "swa": 1}
    assert HostSettings(gib=120 / 1024).page_counts(device, size) == {"full": 100, "swa": 10}
    assert HostSettings(pages={"full": 7, "swa": 8, "mamba": 9}).page_counts(device, size) == {"full": 7, "swa": 8}
    with pytest.raises(ConfigurationError, match=r"host\.pages lacks swa; the model has full, swa"):
        HostSettings(pages={"full": 7}).page_counts(device, size)


def test_ranks_divide_a_directory_of_files() -> None:
    store = StoreSettings(engine="file", options={"directory": "d", "capacity_bytes": 8})
    assert store.options_for(WHOLE) == store.options
    assert store.options_for(Shard(1, 2)) == {**store.options, "shares": 2}
    assert StoreSettings(engine="file", options={"shares": 4}).options_for(Shard(1, 2)) == {"shares": 4}
    assert StoreSettings(engine="redis", options={}).options_for(Shard(1, 2)) == {}


def test_ranks_have_a_file_each_on_3fs() -> None:
    store = StoreSettings(engine="hf3fs", options={"rank": "tp"})
    assert [store.options_for(Shard(index, 2))["rank"] for index in range(2)] == ["tp-0", "tp-1"]
    assert store.options_for(WHOLE) == store.options
    assert StoreSettings(engine="hf3fs", options={}).options_for(Shard(0, 2)) == {}, "the engine says that it lacks one"


def test_prefetches_follow_the_flag_of_sglang_unless_the_settings_say_how_and_refuse_unknown_fields() -> None:
    store = Settings.of({"store": {"engine": "file", "prefetch": {"mode": "wait_complete"}}}).store
    assert store is not None and store.prefetch_policy("timeout").mode is PrefetchMode.WAIT_COMPLETE
    store = Settings.of({"store": {"engine": "file", "prefetch": {"min_tokens": 8}}}).store
    assert store is not None
    assert store.prefetch_policy("best_effort").mode is PrefetchMode.BEST_EFFORT
    assert store.prefetch_policy("best_effort").min_tokens == 8
    for wrong in ({"mode": "soon"}, {"min_tokens": 0}, {"min_tokens": "8"}, {"tokens": 8}):
        store = Settings.of({"store": {"engine": "file", "prefetch": wrong}}).store
        assert store is not None
        with pytest.raises(ConfigurationError, match=r"store\.prefetch"):
            store.prefetch_policy("timeout")


@pytest.mark.parametrize(
    ("given", "is_hierarchical", "storage_backend", "says"),
    [
        ({"host": {"ratio": 2}}, False, None, "sets `host`, which SGLang uses with --enable-hierarchical-cache only"),
        ({"store": {"engine": "file"}}, False, "file", "sets `store`, which SGLang uses with --enable-hierarchical-cache only"),
        ({"store": {"engine": "file"}}, True, None, "add --hicache-storage-backend file"),
        ({}, True, "mooncake", "--hicache-storage-backend mooncake names a store of SGLang's own cache"),
    ],
)
def test_a_tier_without_its_flag_is_refused(
    given: dict[str, object], is_hierarchical: bool, storage_backend: str | None, says: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_flags(Settings.of(given), is_hierarchical=is_hierarchical, storage_backend=storage_backend)
    assert says in str(caught.value)


def test_flags_that_fit_their_settings_are_taken() -> None:
    store = {"store": {"engine": "file"}}
    for given, is_hierarchical, backend in (({}, False, None), ({}, True, None), (store, True, "file")):
        check_flags(Settings.of(given), is_hierarchical=is_hierarchical, storage_backend=backend)
