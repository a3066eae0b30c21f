"""That anything but loopback wants a token stood in the help text of 3FS's metadata service, and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import hf3fs_service
import pytest

from unified_tree.controllers.storage.hf3fs import Hf3fsSettings
from unified_tree.terms.errors import ConfigurationError

hf3fs_service.skip_unless_it_runs()
GOOD: dict[str, Any] = {"directory": "d", "rank": "r", "capacity_bytes": 1 << 20}


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Calls the service's command with some options; it must not serve. Returns what it says."""
    from unified_tree.controllers.storage.hf3fs.metadata.metadata_service import main

    def serve(service: Coroutine[Any, Any, None]) -> None:
        service.close()
        raise AssertionError("it serves")

    def call(*words: str) -> str:
        monkeypatch.setattr(asyncio, "run", serve)
        try:
            code: object = main(["--port", "0", *words])
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr().err
        assert code == 2, said
        return said

    return call


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
@pytest.mark.parametrize("variables", [{}, {"unified_tree__hf3fs__token": ""}, {"UNIFIED_TREE_HF3FS_TOKEN": "of old"}])
def test_the_service_does_not_start(
    host: str,
    variables: dict[str, str],
    tmp_path: Path,
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("unified_tree__hf3fs__token", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    said = refused("--host", host, "--state", str(tmp_path / "state"))
    assert "without a token only loopback can be listened on" in said
    assert "unified_tree__hf3fs__token" in said and not (tmp_path / "state").exists()


def test_the_service_starts_with_one_and_a_token_that_nobody_can_send_is_refused(tmp_path: Path) -> None:
    with hf3fs_service.MetadataService(tmp_path / "a", "--host", "0.0.0.0", token="secret") as service:
        assert service.url.startswith("http://0.0.0.0:")
    with pytest.raises(AssertionError, match="does not come up"):
        hf3fs_service.MetadataService(tmp_path / "b", token="of t\u00f6day")


@pytest.mark.parametrize("host", ["10.0.0.1", "metadata", "localhost.example", "[2001:db8::1]", "0.0.0.0"])
def test_the_client_wants_one_too(host: str) -> None:
    with pytest.raises(ConfigurationError, match="is not on loopback, so it wants a token"):
        Hf3fsSettings(metadata=f"http://{host}:1", **GOOD)
    Hf3fsSettings(metadata=f"http://{host}:1", token="secret", **GOOD)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "LOCALHOST", "[::1]"])
def test_loopback_needs_none(host: str) -> None:
    Hf3fsSettings(metadata=f"http://{host}:1", **GOOD)


@pytest.mark.parametrize(
    "words",
    [
        ["--lease-s", "nan"],
        ["--lease-s", "inf"],
        ["--lease-s", "0"],
        ["--aside-s", "nan"],
        ["--aside-s", "-1"],
        ["--aside-s", "inf"],
        ["--port", "65536"],
        ["--port", "-1"],
        ["--host", ""],
        ["--log-mib", "0"],
        ["--checkpoint-s", "nan"],
        ["--commit-wait-s", "0"],
    ],
)
def test_options_that_cannot_be(words: list[str], tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "must be" in refused("--state", str(tmp_path / "state"), *words)
