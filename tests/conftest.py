"""What all tests share: the path to `support`, a short garbage collection, the count of random operations in the summary."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "support"))


def pytest_report_header() -> str:
    """Which variant is tested: the source as it is, or the compiled modules."""
    from unified_tree import matching

    variant = "interpreted" if str(matching.__file__).endswith(".py") else "compiled"
    return f"unified_tree: {variant}, {Path(str(matching.__file__)).parent}"


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what was imported and collected: a million objects, which nearly all stay."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Add up what the random tests recorded as `operations`, also over the workers of pytest-xdist."""
    passed = terminalreporter.stats.get("passed", [])
    counts = [value for report in passed for name, value in report.user_properties if name == "operations"]
    if counts:
        terminalreporter.write_line(f"{sum(counts):,} random operations in {len(counts)} tests")
