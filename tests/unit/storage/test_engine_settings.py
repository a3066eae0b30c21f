"""One loader for the settings of all engines: who wins, and what is said about what is wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from unified_tree.controllers.storage.engine_settings import load_settings
from unified_tree.terms.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Wire:
    """As an engine might describe its settings."""

    address: str
    size_bytes: int = 7
    pause_s: float = 0.5
    is_fast: bool = False
    secret: str | None = field(default=None, repr=False)


def load(explicit: dict[str, object] | None = None, file: Path | None = None, **environment: str) -> Wire:
    return load_settings(Wire, "wire", explicit or {}, file=file, environment=environment)


def written(folder: Path, text: str, name: str = "storage.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_explicit_settings_win_then_the_file_then_the_environment(tmp_path: Path) -> None:
    file = written(tmp_path, "wire: {address: of the file, size_bytes: 2}\nother: {unknown: 1}\n")
    got = load(
        {"address": "explicit"},
        file,
        unified_tree__wire__address="e",
        unified_tree__wire__size_bytes="3",
        unified_tree__wire__pause_s="4",
    )
    assert got == Wire(address="explicit", size_bytes=2, pause_s=4.0)
    assert load({}, file).address == "of the file"
    assert load(unified_tree__wire__address="e", unified_tree__other__address="x") == Wire(address="e")


def test_json_and_yaml_say_the_same_and_the_environment_may_name_the_file(tmp_path: Path) -> None:
    section = {"address": "a", "size_bytes": 3, "pause_s": 1, "is_fast": True, "secret": None}
    as_json = written(tmp_path, json.dumps({"wire": section}), "storage.json")
    as_yaml = written(tmp_path, "wire:\n  address: a\n  size_bytes: 3\n  pause_s: 1\n  is_fast: true\n  secret: null\n")
    assert load(None, as_json) == load(None, as_yaml) == load(UNIFIED_TREE_STORAGE_CONFIG=str(as_yaml))


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("False", False), ("0", False)])
def test_booleans_of_the_environment(text: str, value: bool) -> None:
    assert load(unified_tree__wire__address="a", unified_tree__wire__is_fast=text).is_fast is value


def test_everything_wrong_is_named_at_once(tmp_path: Path) -> None:
    file = written(tmp_path, "wire: {size_byte: 2, size_bytes: two, pause_s: true}\n")
    with pytest.raises(ConfigurationError) as caught:
        load({"adress": "a"}, file, unified_tree__wire__is_fast="maybe", unified_tree__wire__size="1")
    said = str(caught.value)
    for part in (
        "'size_byte'",
        "size_bytes in",
        "must be int, not 'two'",
        "pause_s in",
        "'adress'",
        "is_fast",
        "'maybe'",
        "the environment (unified_tree__wire__…) has an unknown setting 'size'",
        "address is missing: give it, or set unified_tree__wire__address",
        "storage.yaml",
    ):
        assert part in said, part


def test_a_setting_of_the_wrong_type_is_not_called_missing_too() -> None:
    with pytest.raises(ConfigurationError, match="address in the explicit settings must be str, not 5") as caught:
        load({"address": 5})
    assert "missing" not in str(caught.value)


def test_a_wrong_number_in_the_environment_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match=r"size_bytes in the environment \(unified_tree__wire__…\) must be int, not '7 MiB'"
    ):
        load(unified_tree__wire__address="a", unified_tree__wire__size_bytes="7 MiB")


def test_a_secret_is_never_repeated() -> None:
    with pytest.raises(ConfigurationError, match="secret in the explicit settings must be str or None") as caught:
        load({"address": "a", "secret": 12345})
    assert "12345" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("storage.toml", "", "must end in .yaml"),
        ("storage.json", "{", "is no JSON"),
        ("storage.yaml", "wire: [", "is no YAML"),
        ("storage.yaml", "other: {}", "under 'wire'; it has 'other'"),
        ("storage.yaml", "", "under 'wire'; it has a NoneType"),
        ("storage.yaml", "wire: {1: 2}", "settings by name under 'wire'"),
        ("storage.yaml", "wire: 7", "settings by name under 'wire'"),
        ("storage.yaml", "wire: {size_bytes: 1, size_bytes: 2}", "has 'size_bytes' twice"),
        ("storage.yaml", "wire: {}\nwire: {size_bytes: 2}", "has 'wire' twice"),
        ("storage.json", '{"wire": {"size_bytes": 1, "size_bytes": 2}}', "has 'size_bytes' twice"),
    ],
)
def test_a_file_that_will_not_do_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        load({"address": "a"}, written(tmp_path, text, name))
    assert name in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml cannot be read"):
        load({"address": "a"}, tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigurationError, match=r"nowhere\.json cannot be read"):
        load({"address": "a"}, UNIFIED_TREE_STORAGE_CONFIG=str(tmp_path / "nowhere.json"))
