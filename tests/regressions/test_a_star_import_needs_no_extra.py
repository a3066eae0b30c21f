"""`from unified_tree.controllers import *` failed without torch, because names that need it were among those that it brings."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
from waiting import PROGRAM_S

EXTRAS = ("torch", "prometheus_client", "opentelemetry", "matplotlib", "yaml", "aiohttp", "transformers")
WITHOUT = """
import sys
sys.modules.update(dict.fromkeys({extras!r}))
from {package} import *
print(len([name for name in globals() if not name.startswith("__")]))
"""
PACKAGES = ("cache", "debugging", "doctor", "host", "inspector", "pools", "prefix_linker", "ranks", "storage")
MORE = (
    "storage.file",
    "storage.hf3fs",
    "storage.mooncake",
    "storage.redis",
    "storage.simm",
    "storage_tier",
    "testing",
    "workbench.sizing",
)
NAMES = ["unified_tree", "unified_tree.components", "unified_tree.controllers", "unified_tree.controllers.transfer_engines"]
NAMES += [f"unified_tree.controllers.{name}" for name in (*PACKAGES, *MORE, "workbench.sizing")]
LAZY = {
    "unified_tree.controllers": ("CacheCollector", "RequestSpans", "TensorTiers", "tensor_tiers"),
    "unified_tree.controllers.pools": ("DevicePool", "HostPool", "PagePair", "host_pools"),
    "unified_tree.controllers.ranks": ("DistributedConsensus",),
    "unified_tree.controllers.testing": ("check_prefix_linker", "windowed_linker_checks"),
}


@pytest.mark.parametrize("package", NAMES)
def test_a_star_import_needs_no_extra(package: str) -> None:
    code = WITHOUT.format(extras=EXTRAS, package=package)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1


@pytest.mark.parametrize("package", LAZY)
def test_what_needs_an_extra_is_still_imported_by_its_name(package: str) -> None:
    loaded = import_module(package)
    for name in LAZY[package]:
        assert getattr(loaded, name).__name__ == name and name not in loaded.__all__
