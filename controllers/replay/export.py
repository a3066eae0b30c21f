"""The rows as files for programs."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from unified_tree.controllers.replay.row_result import RowResult


def write_json(path: Path, rows: Sequence[RowResult]) -> None:
    """Write an array of objects, one a row; see `RowResult.record` for the fields. Raises OSError."""
    path.write_text(json.dumps([row.record() for row in rows], indent=2) + "\n", encoding="utf-8")


def write_csv(path: Path, rows: Sequence[RowResult]) -> None:
    """Write the same figures as a table with a header line; a figure that a row lacks is empty. Raises OSError."""
    records = [row.record() for row in rows]
    names = list(dict.fromkeys(name for record in records for name in record))
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, names, restval="")
        writer.writeheader()
        writer.writerows(records)
