"""The package: what it exports and what it needs."""

from __future__ import annotations

import subprocess
import sys

import unified_tree.controllers.storage as package


def test_storage_needs_no_torch() -> None:
    code = "import sys, unified_tree.controllers.storage; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_what_is_exported_is_there() -> None:
    assert len(package.__all__) == len(set(package.__all__))
    assert all(hasattr(package, name) for name in package.__all__)
