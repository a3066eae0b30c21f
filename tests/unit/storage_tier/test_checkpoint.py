"""A name of a model's weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from unified_tree.controllers.storage_tier.store_settings import weights_version

SIZE = 1 << 18


def checkpoint(folder: Path, **files: bytes) -> str:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(SIZE))
    (folder / "config.json").write_text("{}")
    for name, data in files.items():
        (folder / name.replace("_", ".")).write_bytes(data)
    return weights_version(str(folder), "v1")


def test_a_copy_of_a_checkpoint_has_the_same_name(tmp_path: Path) -> None:
    assert checkpoint(tmp_path / "a") == checkpoint(tmp_path / "b", README_md=b"other words")


@pytest.mark.parametrize(
    "files",
    [
        {"model_safetensors": b"\1" + bytes(SIZE - 1)},
        {"model_safetensors": bytes(SIZE - 1) + b"\1"},
        {"model_safetensors": bytes(SIZE + 1)},
        {"more_safetensors": b""},
        {"config_json": b"[]"},
    ],
    ids=["its begin", "its end", "its size", "another file", "the configuration"],
)
def test_another_checkpoint_has_another_name(tmp_path: Path, files: dict[str, bytes]) -> None:
    assert checkpoint(tmp_path / "a") != checkpoint(tmp_path / "b", **files)


def test_the_label_and_the_path_of_a_model_that_is_not_local_count() -> None:
    names = [weights_version(path, label) for path in ("org/one", "org/two") for label in ("v1", "v2")]
    assert len(set(names)) == 4
    assert names[0] == weights_version("org/one", "v1")
    assert names[0].startswith("v1-")
