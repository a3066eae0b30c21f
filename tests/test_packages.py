"""Each package has the names that it exports, imports nothing heavy, and allows a star import without extras."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module

import pytest
from waiting import PROGRAM_S

PACKAGES = (
    "unified_tree",
    "unified_tree.components",
    *(f"unified_tree.controllers{name}" for name in (
        "", ".debugging", ".inspector",
        ".pools", ".prefix_linker", ".adapters.lmcache", ".ranks", ".storage",
        ".storage_tier", ".testing", ".tiers", ".transfer_engines",
        ".adapters.vllm",
    )),
)  # fmt: skip
HEAVY = {"torch", "transformers", "matplotlib", "rich", "click", "pytest", "mooncake", "lmcache", "vllm", "opentelemetry"}
WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None\ntry: from unified_tree.controllers.{} import {}\nexcept ImportError as error: "
)
EXTRAS = ("torch", "prometheus_client", "opentelemetry", "matplotlib", "yaml", "aiohttp", "transformers")
WITH_A_STAR = (  # which failed where names that need torch were among those that it brings
    *(package for package in PACKAGES if package != "unified_tree.controllers.tiers"),  # all of whose names need torch
    *(f"unified_tree.controllers.{name}" for name in (
        "cache", "doctor", "host", "storage.file", "storage.hf3fs", "storage.mooncake", "storage.redis", "storage.simm",
        "workbench.sizing",
    )),
)  # fmt: skip
LAZY = {
    "unified_tree.controllers": ("CacheCollector", "RequestSpans", "TensorTiers", "tensor_tiers"),
    "unified_tree.controllers.pools": ("DevicePool", "HostPool", "PagePair", "host_pools"),
    "unified_tree.controllers.ranks": ("DistributedConsensus",),
    "unified_tree.controllers.testing": ("check_prefix_linker", "windowed_linker_checks"),
}
"""Names that need an extra, by package."""
NAMES_THE_EXTRA = (
    WITHOUT_TORCH + "assert \"need torch: pip install 'unified-tree[tensors]'\" in str(error)\nelse: raise AssertionError"
)
IMPORTS = [
    *(
        f"import sys; sys.modules.update(dict.fromkeys({EXTRAS})); from {package} import *\n"
        "assert len([name for name in globals() if not name.startswith('__')]) > 1, 'it brings names'"
        for package in WITH_A_STAR
    ),
    *(f"import sys, {package}; assert not {HEAVY} & set(sys.modules)" for package in PACKAGES),
    "import sys; from unified_tree.controllers.pools import HostLayout, PageMover, formats_of, host_memory_available, "
    "propose_page_counts; assert 'torch' not in sys.modules; from unified_tree.controllers.pools import PagePair; "
    "assert 'torch' in sys.modules",
    "import sys; from unified_tree.controllers.ranks import LocalConsensus; LocalConsensus().tick(); "
    "assert 'torch' not in sys.modules; from unified_tree.controllers.ranks import DistributedConsensus; "
    "assert 'torch' in sys.modules",
    "import sys, unified_tree.controllers.storage as s; assert 'mooncake' in s.StorageRegistry().names; "
    "assert not [m for m in sys.modules if 'mooncake' in m]",
    *(
        NAMES_THE_EXTRA.format(module, name)
        for module, name in (
            ("pools", "HostPool"),
            ("pools.words", "torch_dtype"),
            ("transfer_engines", "cuda_lanes"),
            ("tiers.tensor_memory", "tensor_tiers"),
        )
    ),
]
FORKS = """
import json, os, sys, traceback, numpy
for code in json.load(sys.stdin):
    child = os.fork()
    if not child:
        try:
            exec(code, {})
        except BaseException:
            print(code, traceback.format_exc(), sep="\\n", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
print("all were tried")
"""


@pytest.mark.parametrize("name", PACKAGES)
def test_what_is_exported_is_there(name: str) -> None:
    package = import_module(name)
    assert len(package.__all__) == len(set(package.__all__))
    assert all(hasattr(package, exported) for exported in package.__all__)
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = package.nothing_such


@pytest.mark.parametrize("name", LAZY)
def test_what_needs_an_extra_is_imported_by_its_name_and_not_with_a_star(name: str) -> None:
    package = import_module(name)
    for lazy in LAZY[name]:
        assert getattr(package, lazy).__name__ == lazy and lazy not in package.__all__


def test_imports_need_no_extra_and_bring_nothing_heavy_with_them() -> None:
    """Each in a process of its own, forked from one that has imported numpy alone."""
    command = [sys.executable, "-c", FORKS]
    done = subprocess.run(command, input=json.dumps(IMPORTS), capture_output=True, text=True, timeout=PROGRAM_S, check=True)
    assert done.stdout == "all were tried\n", done.stdout
