"""What all tests share: paths to their modules, their order, a short garbage collection, the count of random operations."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent / folder) for folder in ("support", "museum", "../examples")]

with suppress(ImportError):  # the environments of engines have no hypothesis
    from hypothesis import settings

    settings.register_profile("untimed", deadline=None)  # a busy machine fails no test
    settings.load_profile("untimed")

LONGEST = (
    "oracle/test_mixes.py",
    "conformance/test_storage_engines.py",
    "conformance/test_fault_matrix.py",
    "sim/test_simulation.py",
    "unit/storage/test_hf3fs_storage.py",
    "oracle/test_tiers.py",
    "model/test_tree_machine.py",
    "oracle/test_boundaries.py",
    "model/test_cache_machine.py",
    "model/test_refusals.py",
    "model/test_interrupts.py",
    "sim/test_mutated_inputs.py",
    "model/test_repeats.py",
    "model/test_store_faults.py",
    "unit/workbench/runs/test_replay_certificate.py",
    "unit/workbench/runs/test_replay_shared_pools.py",
    "unit/workbench/runs/test_replay_rows.py",
    "unit/workbench/runs/test_replay_traffic_turns.py",
    "unit/workbench/runs/test_replay_host_rows.py",
    "unit/benches/test_benches_smoke.py",
    "unit/workbench/optimum/test_optimum_shared.py",
    "unit/cli/test_replay_cli.py",
    "unit/workbench/runs/test_replay_linked.py",
    "unit/workbench/runs/test_replay_storage_rows.py",
    "unit/cli/test_replay_storage_cli.py",
    "unit/storage/test_hf3fs_usrbio.py",
    "unit/storage/test_hf3fs_service.py",
    "unit/storage/test_mooncake_storage.py",
    "typing/test_type_checkers_look.py",
    "sim/test_ranks.py",
    "unit/testing/test_broken_parts.py",
    "oracle/test_speculation.py",
    "oracle/test_mutants.py",
    "unit/storage/test_file_processes.py",
    "unit/deploy/test_dashboard_and_alerts.py",
)
"""Files that take more than ten seconds. They come first, so that no worker is left alone with one."""


_begun = [""]
"""Files whose tests have begun in this process."""


def pytest_report_header() -> str:
    """Which variant is tested: the source as it is, or the compiled modules."""
    from unified_tree.lookup import matching

    variant = "interpreted" if str(matching.__file__).endswith(".py") else "compiled"
    return f"unified_tree: {variant}, {Path(str(matching.__file__)).parent}"


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """The longest files first, each as it stands; with HALF=1 or HALF=2 that half of the tests that are marked `halved`."""
    if half := os.environ.get("HALF"):
        left_out = [item for item in items if item.get_closest_marker("halved")][2 - int(half) :: 2]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_runtest_logstart(nodeid: str) -> None:
    """Let the garbage collector pass over what is there before a file's first test: a million objects, which nearly all stay.

    Benches collect all the time, and each collection would traverse the objects that earlier files left.
    """
    file = nodeid.partition("::")[0]
    if file != _begun[-1]:
        _begun.append(file)
        gc.collect()
        gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Add up what the random tests recorded as `operations`, also over the workers of pytest-xdist."""
    passed = terminalreporter.stats.get("passed", [])
    counts = [value for report in passed for name, value in report.user_properties if name == "operations"]
    if counts:
        terminalreporter.write_line(f"{sum(counts):,} random operations in {len(counts)} tests")
