"""Compiles the tree's hot modules with mypyc, and the C modules, where a C compiler is at hand; without one the same
source runs as it is, and Python does what those do.

An editable install is never compiled, or edits would go unseen; UNIFIED_TREE_PURE=1 skips compiling too.
"""

import os
import shutil
import sys
import sysconfig
from typing import Any

from setuptools import Extension, setup

HOT = (
    "children",
    "controllers/host/page_allocator",
    "cost",
    "evicting",
    "insert_plan",
    "inserting",
    "int64",
    "locking",
    "matching",
    "node",
    "node_table",
    "order",
    "page_ids",
    "page_set",
    "policies",
    "pool",
    "receipt",
    "resumability",
    "retiring",
    "shared_windows",
    "splitting",
    "state",
    "token_bytes",
)

NATIVE = ("controllers/pools/row_copy", "controllers/storage/file/bucket_scan")


def extensions() -> list[Any]:
    """All that is compiled; none where it cannot be or shall not."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    editable = "editable_wheel" in sys.argv or "develop" in sys.argv
    if editable or os.environ.get("UNIFIED_TREE_PURE") or shutil.which(compiler) is None:
        return []
    native = [Extension(f"unified_tree.{name.replace('/', '.')}", [f"{name}.c"]) for name in NATIVE]
    found = [*native, *hot_modules()]
    for extension in found:
        extension.optional = True
    return found


def hot_modules() -> list[Any]:
    """The hot modules as C extensions; none without mypyc."""
    try:
        from mypyc.build import mypycify
    except ImportError:
        return []
    options = ["--config-file=", "--no-site-packages", "--ignore-missing-imports", "--follow-imports=silent"]
    try:
        return list(mypycify([*options, *(f"unified_tree/{name}.py" for name in HOT)], group_name="unified_tree_core"))
    except SystemExit:  # how mypyc says that it cannot; it printed why
        return []


setup(ext_modules=extensions())
