"""Random requests with shared prefixes: whatever the cache gave them, every token's logits are those of a run without it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from oracle.families import FAMILIES, RECENT
from oracle.mix import EVENTS, Bench, Tiers, serve_mix
from oracle.reference import Tally
from oracle.tiny_model import DOUBLE, SINGLE, Family, Precision, gpu, tiny_composition

from unified_tree.controllers import WritePolicy

POLICIES = list(WritePolicy)
DEEP_MIXES = int(os.environ.get("ORACLE_MIXES", "8"))
ALL = {**FAMILIES, **RECENT}
LONG = dict.fromkeys(("Qwen3-Next", "Qwen3.5", "Kimi-Linear", "OLMo hybrid"), 40)
"""Requests of families whose states lie on so wide a grid that few requests share one."""
ROOMY = {"paths": 3.0, "windows": 3.0, "states": 10}
TIGHT = {"paths": 1.5, "windows": 1.0, "states": 5}


def serve(family: Family, precision: Precision, seed: int, requests: int, directory: Path | None = None) -> Tally:
    """One mix; the seed also picks what is behind the device, how much room there is, and the page size."""
    pages = (family.page_size, 4, 32) if family.page_size == 8 else (family.page_size, 2 * family.page_size)
    family = replace(family, page_size=pages[seed % len(pages)])
    room: dict[str, Any] = (TIGHT, ROOMY)[seed % 2]
    storage = None
    if directory is not None:
        storage = {"name": "file", "options": {"directory": directory, "capacity_bytes": 1 << 28}}
    tiers = Tiers(host=seed % 5 != 4 or directory is not None, write_policy=POLICIES[seed % 3], storage=storage, **room)
    with precision.context():
        bench = Bench(family, precision, tiers, Random(seed))
        return serve_mix(bench, requests, None if directory is None else {**EVENTS, "restart": 0.2})


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", FAMILIES)
def test_a_mix_in_f32(name: str, seed: int, record_property: Any) -> None:
    tally = serve(FAMILIES[name], SINGLE, seed, 14)
    record_property("operations", tally.runs)
    assert tally.hits["device"] + tally.hits["host"]
    assert tally.deviation > 0.3


@pytest.mark.parametrize("name", FAMILIES)
def test_a_mix_over_a_store_that_outlives_servers(name: str, tmp_path: Path, record_property: Any) -> None:
    for seed in range(9, 14):  # one life may change the weights before each restart: what happens when hangs on threads
        tally = serve(FAMILIES[name], SINGLE, seed, LONG.get(name, 14), tmp_path / str(seed))
        if tally.hits["store"]:
            break
    record_property("operations", tally.runs)
    assert tally.hits["store"]


@pytest.mark.parametrize("name", ALL)
def test_a_mix_in_f64(name: str, record_property: Any) -> None:
    tally = serve(ALL[name], DOUBLE, 5, LONG.get(name, 16))
    record_property("operations", tally.runs)
    assert tally.hits["device"] + tally.hits["host"]


@pytest.mark.parametrize("precision", [SINGLE, DOUBLE], ids=["f32", "f64"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_mix_on_a_gpu(name: str, precision: Precision, record_property: Any) -> None:
    """Copies run on streams beside the model, whose own stream waits for each layer."""
    with gpu():
        tally = serve(FAMILIES[name], precision, 5, LONG.get(name, 16))
    record_property("operations", tally.runs)
    assert tally.hits["device"] + tally.hits["host"]


@pytest.mark.deep
@pytest.mark.parametrize("precision", [SINGLE, DOUBLE], ids=["f32", "f64"])
@pytest.mark.parametrize("name", ALL)
def test_long_mixes(name: str, precision: Precision, tmp_path: Path, record_property: Any) -> None:
    """Prints the family's line of the table in docs/lab/oracle.md."""
    total = Tally()
    for seed in range(100, 100 + DEEP_MIXES):
        total += serve(ALL[name], precision, seed, 40, tmp_path / str(seed) if seed % 2 else None)
    record_property("operations", total.runs)
    kinds = ", ".join(component.name for component in tiny_composition(ALL[name], precision).components)
    print(f"| {name} | {kinds} | {precision.dtype} | {total.row()} |")
