"""Which build runs: the compiled one, or the source as it is; and why, where it should have been compiled and was not."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from unified_tree.lookup import matching

is_compiled: Final = not str(matching.__file__).endswith(".py")
"""Whether the hot modules are compiled."""


def why_interpreted() -> str:
    """What the installation wrote down because it could not compile; empty where it did, or where it was not to."""
    if is_compiled:
        return ""
    try:
        return Path(__file__).with_name("not_compiled.txt").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


@cache
def log_build() -> None:
    """Log which build runs, once a process; a cache that is made calls it."""
    import logging

    logging.getLogger("unified_tree").info("unified_tree runs %s", "compiled" if is_compiled else "interpreted")


def say_build() -> None:
    """Log a warning that says why this installation is not compiled, if that was not asked for."""
    reason = why_interpreted()
    if reason:
        import logging  # takes longer to import than this package

        logging.getLogger("unified_tree").warning(
            "unified_tree runs interpreted, several times slower, for it could not be compiled when it was installed: %s; "
            "`pip install -v` shows more, and UNIFIED_TREE_PURE=1 installs it so on purpose",
            reason,
        )
