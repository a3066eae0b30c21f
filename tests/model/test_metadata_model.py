"""The metadata service against a naive copy of itself, over random questions, clocks, and kills."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from naive_metadata import MetadataWorld


@pytest.mark.parametrize("seed", range(8))
def test_random_questions(seed: int, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    world = MetadataWorld(tmp_path / "state", seed)
    for _ in range(500):
        world.step()
    assert world.evictions and world.kills and world.checkpoints
    world.end()
    record_property("operations", world.steps)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_random_questions(seed: int, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    world = MetadataWorld(tmp_path / "state", seed)
    for _ in range(3000):
        world.step()
    world.end()
    record_property("operations", world.steps)
