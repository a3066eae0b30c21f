"""The kit's results as JSON and as tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LONGEST = 100
"""Characters of a text in a table; the JSON has all of it."""
TITLES = {
    "outputs": "Outputs beside those of no cache",
    "faults": "Faults that were planted",
    "speed": "Time in the cache, and steps a second",
    "loads": "A prompt computed, and loaded from host",
    "branches": "Outputs where a CPU passes for a GPU",
}


def written(found: dict[str, Any], folder: Path) -> None:
    """Write `gpu.json` and `gpu.md`; what was there is replaced."""
    (folder / "gpu.json").write_text(json.dumps(found, indent=1))
    machine = ", ".join(f"{name} {value}" for name, value in found["machine"].items())
    kit = "" if found["kit MB"] is None else f", kit {found['kit MB']} MB"
    lines = ["# SGLang with this cache", "", f"{machine}{kit}.", ""]
    for part, title in TITLES.items():
        if part in found:
            lines += [f"## {title}", "", *table(found[part]), ""]
    lines += ["## Summary", "", *table(found["summary"])]
    (folder / "gpu.md").write_text("\n".join(lines) + "\n")


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as a table, with the columns of all of them."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not columns:
        return ["Nothing was served."]
    return [
        f"| {' | '.join(columns)} |",
        f"|{'---|' * len(columns)}",
        *(f"| {' | '.join(_cell(row.get(name)) for name in columns)} |" for row in rows),
    ]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "; ".join(_cell(each) for each in value)
    return f"{value:,}" if isinstance(value, int | float) else str(value).replace("|", "/").replace("\n", " ")[:LONGEST]
