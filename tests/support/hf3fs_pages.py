"""Engines of 3FS for two pools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf3fs_service import SETTINGS, MetadataService
from numbered_pages import FULL, MAMBA, SIZE

from unified_tree.controllers.storage.hf3fs import Hf3fsSettings, Hf3fsStorage

CAPACITY_BYTES = 40 * SIZE


def settings(service: MetadataService, directory: Path, **other: Any) -> Hf3fsSettings:
    """Brief waits, one rank, and room for 39 pages of each pool."""
    given: dict[str, Any] = {"rank": "r0", "capacity_bytes": CAPACITY_BYTES, **SETTINGS, **other}
    return Hf3fsSettings(metadata=service.url, directory=str(directory), **given)


def opened(service: MetadataService, directory: Path, *, usrbio: Any = None, **other: Any) -> Hf3fsStorage:
    """An engine for both pools."""
    return Hf3fsStorage([FULL, MAMBA], settings(service, directory, **other), usrbio)
