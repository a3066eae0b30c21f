"""Compiles the tree's hot modules with mypyc, and the C modules, where a C compiler is at hand; without one the same
source runs as it is, and Python does what those do.

An editable install is never compiled, or edits would go unseen; UNIFIED_TREE_PURE=1 skips compiling too.

mypyc leaves docstrings out of the C that it writes, and `help` would be empty; they are written into it here. Long chains of
objects end as `dealloc.h` says and why.
"""

import ast
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HOT = (
    "ages",
    "archive",
    "arguments",
    "causes",
    "children",
    "controllers/cache/admission",
    "controllers/cache/decode_row",
    "controllers/cache/layout",
    "controllers/cache/lease",
    "controllers/cache/lease_locks",
    "controllers/cache/lease_misses",
    "controllers/cache/lease_tokens",
    "controllers/cache/leases",
    "controllers/cache/miss_ledger",
    "controllers/cache/page_table",
    "controllers/cache/page_tables",
    "controllers/cache/publication",
    "controllers/cache/published_tokens",
    "controllers/cache/resources",
    "controllers/cache/state_pages",
    "controllers/cache/transfer_counters",
    "controllers/cache/weights",
    "controllers/cache/weights_names",
    "controllers/host/backup_queue",
    "controllers/host/block_allocator",
    "controllers/host/hybrid_cache_controller",
    "controllers/host/load",
    "controllers/host/open_transfers",
    "controllers/host/page_allocator",
    "controllers/host/shared_tier_pages",
    "controllers/host/tier_pages",
    "controllers/inspector/tree_walk",
    "controllers/latency_counter",
    "controllers/ranks/ballot",
    "controllers/ranks/completions",
    "controllers/ranks/distributed_consensus",
    "controllers/ranks/history",
    "controllers/ranks/local_consensus",
    "controllers/ranks/rank_agreement",
    "controllers/ranks/reduction",
    "controllers/ranks/ticked_consensus",
    "controllers/ranks/ticket",
    "controllers/ranks/tickets",
    "controllers/sglang/device_pools",
    "controllers/sglang/device_tier",
    "controllers/sglang/page_numbers",
    "controllers/sglang/request_keys",
    "controllers/sglang/request_misses",
    "controllers/sglang/request_rows",
    "controllers/sglang/running_states",
    "controllers/storage/digests",
    "controllers/storage_tier/found_prefix",
    "controllers/storage_tier/known_prefixes",
    "controllers/storage_tier/persist_job",
    "controllers/storage_tier/persist_queue",
    "controllers/storage_tier/prefetch",
    "controllers/storage_tier/prefetch_requests",
    "controllers/storage_tier/prefetch_stages",
    "controllers/storage_tier/prefetcher",
    "controllers/storage_tier/storage_controller",
    "controllers/storage_tier/storage_tier_stats",
    "controllers/storage_tier/store_jobs",
    "controllers/storage_tier/stored_digests",
    "controllers/transfer_engines/copy_checks",
    "controllers/transfer_engines/ledger",
    "controllers/transfer_engines/null_engine",
    "controllers/transfer_engines/progress",
    "cost",
    "effect",
    "elsewhere",
    "evicting",
    "ghosts",
    "grafting",
    "in_flight",
    "insert_plan",
    "inserting",
    "int64",
    "keys",
    "landing",
    "line",
    "locking",
    "matching",
    "miss",
    "node",
    "node_table",
    "open_effects",
    "order",
    "page_ids",
    "page_set",
    "page_source",
    "place_memory",
    "policies",
    "pool",
    "queues",
    "receipt",
    "held_by_recency",
    "recency",
    "resumability",
    "retiring",
    "reuse",
    "shared_pools",
    "shared_windows",
    "splitting",
    "state",
    "token_bytes",
    "visit",
    "visit_fit",
    "visit_memory",
)

NATIVE = {
    "key_bytes": "unified_tree/key_bytes.c",
    "monotonic": "unified_tree/monotonic.c",
    "page_flags": "unified_tree/page_flags.c",
    "untracked_tuples": "unified_tree/untracked_tuples.c",
    "controllers/pools/row_copy": "controllers/pools/row_copy.c",
    "controllers/storage/file/bucket_scan": "controllers/storage/file/bucket_scan.c",
}


CORE = "unified_tree_core__mypyc"
"""What all hot modules are compiled into; each module's own extension only looks for itself there."""

WITHIN = ["-fvisibility=hidden", "-fno-plt"]
"""What the compiled functions call, they call directly: no other library may put one of its own in the place of theirs."""


def extensions() -> list[Any]:
    """All that is compiled; none where it cannot be or shall not."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    editable = "editable_wheel" in sys.argv or "develop" in sys.argv
    if editable or os.environ.get("UNIFIED_TREE_PURE") or shutil.which(compiler) is None:
        return []
    native = [Extension(f"unified_tree.{name.replace('/', '.')}", [source]) for name, source in NATIVE.items()]
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
        found = list(
            mypycify([*options, *(f"unified_tree/{name}.py" for name in HOT)], group_name=CORE.removesuffix("__mypyc"))
        )
    except SystemExit:  # how mypyc says that it cannot; it printed why
        return []
    sources = {source for extension in found for source in extension.sources}
    document(sources)
    if not bound_deallocation(sources):
        print("not compiled: the C that this mypyc writes is not what dealloc.h mends", file=sys.stderr)
        return []
    if sys.platform != "win32":
        for extension in found:
            extension.extra_compile_args = [*extension.extra_compile_args, *WITHIN]  # mypyc gives all of them one list
    return found


# What carries a docstring in the C of mypyc: modules, functions, properties, native classes and classes of Python's own.
MODULE = re.compile(r'(?<=PyModuleDef )(\w+)( = {\s+PyModuleDef_HEAD_INIT,\s+"[\w.]+",\s+)(NULL)(?=, /\* docstring)')
FUNCTION = re.compile(r'(?<=\(PyCFunction\)CPyPy_)(\w+)(,\s+[A-Z_| ]+, PyDoc_STR\()((?:"(?:[^"\\]|\\.)*"|NULL))')
GETTER = re.compile(r"(?<=\(getter\))(\w+)(,\s+(?:NULL|\(setter\)\w+), )(NULL)(?=, NULL})")
NATIVE_CLASS = re.compile(r'(?<=PyTypeObject CPyType_)(\w+)(_template_ = {[^}]*\.tp_doc = PyDoc_STR\()("(?:[^"\\]|\\.)*"|NULL)')
OTHER_CLASS = re.compile(r"CPyStatics\[\d+\](?=; /\* 'mypyc filler docstring' \*/(?:.*\n)*?.*CPyType_(\w+) = \(PyTypeObject)")


def document(sources: set[str]) -> None:
    """Write the docstrings of the hot modules into the C that mypyc made of them. A test looks whether all are there."""
    from mypyc.codegen.cstring import c_string_initializer

    texts = {name: c_string_initializer(text.encode()) for source in HOT for name, text in docstrings(source)}

    def append(match: re.Match[str]) -> str:
        name, between, signature = match.groups()
        if name not in texts:
            return match[0]
        return f"{name}{between}{texts[name] if signature == 'NULL' else f'{signature} {texts[name]}'}"

    def replace(match: re.Match[str]) -> str:
        return f"PyUnicode_FromString({texts[match[1]]})" if match[1] in texts else match[0]

    for path in map(Path, sources):
        code = path.read_text(encoding="utf-8")
        for pattern in (MODULE, FUNCTION, GETTER, NATIVE_CLASS):
            code = pattern.sub(append, code)
        path.write_text(OTHER_CLASS.sub(replace, code), encoding="utf-8")


LAST_INCLUDE = re.compile(r'(?<=#include "__native_internal_unified_tree_core.h"\n)')


def bound_deallocation(sources: set[str]) -> bool:
    """Have the C that mypyc made of the hot modules end long chains of objects as `dealloc.h` does; whether it does now."""
    changed = 0
    for path in map(Path, sources):
        code = path.read_text(encoding="utf-8")
        if "CPy_TRASHCAN_BEGIN" in code:
            code, count = LAST_INCLUDE.subn(f'#include "{Path("unified_tree/dealloc.h").resolve().as_posix()}"\n', code)
            path.write_text(code, encoding="utf-8")
            changed += count
    return changed == 1


def docstrings(source: str) -> Iterator[tuple[str, str]]:
    """The docstrings of a module, each under the names that mypyc gives a module, function, class, method or getter."""
    module = source.rpartition("/")[2]
    parsed = ast.parse(Path(f"unified_tree/{source}.py").read_text(encoding="utf-8"))
    yield f"{module}module", ast.get_docstring(parsed) or ""
    for node in parsed.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        yield f"{module}___{node.name}", ast.get_docstring(node) or ""
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.FunctionDef) and (text := ast.get_docstring(inner)):
                yield f"{module}___{node.name}___{inner.name}", text
                yield f"{module}___{node.name}_get_{inner.name}", text


class BuildAllOrNothing(build_ext):
    """Keeps all extensions of the hot modules or none: where one could not be compiled (for want of memory, say), importing the
    package would fail, and it can run as it is.
    """

    def run(self) -> None:
        """Compile, and take back."""
        names = {CORE, *(f"unified_tree.{name.replace('/', '.')}" for name in HOT)}
        built = [Path(self.get_ext_fullpath(each.name)) for each in self.extensions or [] if each.name in names]
        for path in built:
            path.unlink(missing_ok=True)  # what an earlier run left would pass for one of this
        super().run()
        if not all(path.exists() for path in built):
            for path in built:
                path.unlink(missing_ok=True)


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildAllOrNothing})
