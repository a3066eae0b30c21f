"""Engines of 3FS for two pools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf3fs_service import SETTINGS, MetadataService
from numbered_pages import FULL, MAMBA, SIZE

from unified_tree.controllers.storage.hf3fs import Hf3fsSettings, Hf3fsStorage

CAPACITY_BYTES = 40 * SIZE
BRIEF_S = 0.2
"""How long something is waited for that stands still."""


def settings(service: MetadataService, directory: Path, **other: Any) -> Hf3fsSettings:
    """One rank, and room for 39 pages of each pool."""
    given: dict[str, Any] = {"rank": "r0", "capacity_bytes": CAPACITY_BYTES, **SETTINGS, **other}
    return Hf3fsSettings(metadata=service.url, directory=str(directory), **given)


def opened(service: MetadataService, directory: Path, *, usrbio: Any = None, **other: Any) -> Hf3fsStorage:
    """An engine for both pools."""
    return Hf3fsStorage([FULL, MAMBA], settings(service, directory, **other), usrbio)


def wait_for_service(engine: Hf3fsStorage, seconds: float) -> None:
    """Have an engine wait so long for each answer, from now on."""
    engine._client._timeout_s = seconds


def wait_for_file(engine: Hf3fsStorage, seconds: float) -> None:
    """Have an engine wait so long for reading or writing, from now on."""
    engine._settings = replace(engine._settings, io_timeout_s=seconds)


@contextmanager
def brief_answers(engine: Hf3fsStorage) -> Iterator[None]:
    """Meanwhile it waits only briefly for the service, which stands still."""
    wait_for_service(engine, BRIEF_S)
    yield
    wait_for_service(engine, SETTINGS["request_timeout_s"])


@contextmanager
def brief_moves(*engines: Hf3fsStorage) -> Iterator[None]:
    """Meanwhile they wait only briefly for the file, which stands still."""
    for engine in engines:
        wait_for_file(engine, BRIEF_S)
    yield
    for engine in engines:
        wait_for_file(engine, SETTINGS["io_timeout_s"])
