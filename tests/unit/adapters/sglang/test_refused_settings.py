"""What the backend refuses to start with, and that each message says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from unified_tree.controllers.adapters.sglang.plugin import check_flags
from unified_tree.controllers.adapters.sglang.settings import VARIABLE, Settings
from unified_tree.controllers.storage_tier.policies import PrefetchMode
from unified_tree.terms.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"polcy": "lru"}', "no setting 'polcy'; there are policy, host, write_policy, store"),
        ('{"host": {"gigs": 3}}', "host: there is no setting 'gigs'; there are ratio, gib, pages"),
        ('{"host": 3}', "host must be a mapping, not 3"),
        ('{"host": {"pages": 6000}}', 'host.pages must name each component, such as {"full": 6000}'),
        ('{"host": {"ratio": 0}}', "host.ratio must be finite and positive"),
        ('{"host": {"ratio": 1, "gib": 1}}', "give one of ratio, gib and pages, not ratio and gib"),
        (
            '{"write_policy": "always"}',
            "write_policy must be one of write-through, write-through-selective, write-back, write-back-selective",
        ),
        ('{"store": "file"}', 'store must name an engine, such as {"engine": "file"'),
        ('{"store": {"directory": "x"}}', 'store must name an engine, such as {"engine": "file"'),
        ('{"store": {"engine": "file", "prefetch": 3}}', "store.prefetch must be a mapping"),
        ('{"policy": [}', "neither JSON nor YAML"),
        ("/no/such/file.yaml", "neither a JSON object nor a file"),
    ],
)
def test_settings_that_do_not_fit_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings.read({VARIABLE: text})
    assert says in str(caught.value)


def test_settings_come_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"policy": "slru", "store": {"engine": "file", "directory": "d", "prefetch": {"mode": "wait_complete"}}}')
    settings = Settings.read({VARIABLE: str(file)})
    assert settings.policy == "slru"
    assert settings.store is not None
    assert settings.store.options == {"directory": "d"}
    assert settings.store.prefetch_policy("timeout").mode is PrefetchMode.WAIT_COMPLETE


def test_prefetches_follow_the_flag_of_sglang_and_refuse_unknown_fields() -> None:
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
