"""Compiles the tree's hot modules with mypyc, and the C modules, where a C compiler is at hand; without one the same
source runs as it is, and Python does what those do.

An editable install is never compiled, or edits would go unseen; UNIFIED_TREE_PURE=1 skips compiling too.

mypyc leaves docstrings out of the C that it writes, and `help` would be empty; they are written into it here. Long chains of
objects end as `dealloc.h` says and why.
"""

import ast
import gc
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

COMPILED = (
    "terms/results",
    "terms/tier",
    "declare/component_layout",
    "declare/keys",
    "declare/suffix",
    "eviction/*",
    "inputs/arguments",
    "inserts/*",
    "locks/*",
    "lookup/*",
    "memory/*",
    "misses/*",
    "nodes/*",
    "policies/*",
    "policies/density/*",
    "state/*",
    "transfers/*",
    "controllers/adapters/sglang/device_pools",
    "controllers/adapters/sglang/device_tier",
    "controllers/adapters/sglang/request_*",
    "controllers/cache/*",
    "controllers/counters/*_counter",
    "controllers/counters/transfer_counters",
    "controllers/host/*",
    "controllers/inspector/tree_walk",
    "controllers/pages/*",
    "controllers/ranks/*",
    "controllers/storage/digests",
    "controllers/storage_tier/*",
    "controllers/transfer_engines/copy_checks",
    "controllers/transfer_engines/ledger",
    "controllers/transfer_engines/null_engine",
    "controllers/weights/weights*",
    "controllers/workbench/runs/row_counters",
    "controllers/workbench/server/server",
    "controllers/workbench/server/step_clock",
    "controllers/workbench/server/timed_cache",
    "controllers/workbench/server/traffic",
)
"""The rooms that are compiled, and single modules of others."""

INTERPRETED = frozenset(
    (
        # Users derive from these or call them with anything, or tests put something in their place.
        "policies/eviction_policy",
        "transfers/transfers",
        "controllers/cache/decode_batch",
        "controllers/cache/held_hints",
        "controllers/cache/hints",
        "controllers/cache/prefix_cache",
        "controllers/cache/request_spans",
        "controllers/ranks/consensus",
        "controllers/ranks/distributed_consensus",
        "controllers/ranks/rank_watch",
        # Settings, records and what is said in words: seldom made.
        "misses/explain",
        "misses/miss_cause",
        "controllers/cache/group_stats",
        "controllers/cache/stats",
        "controllers/cache/metric_aliases",
        "controllers/cache/metrics",
        "controllers/cache/tenant_settings",
        "controllers/host/idle_boundaries",
        "controllers/host/host_tier",
        "controllers/pages/block_tables",
        "controllers/ranks/message",
        "controllers/storage_tier/fetch",
        "controllers/storage_tier/jobs",
        "controllers/storage_tier/mapped_pages",
        "controllers/storage_tier/policies",
        "controllers/storage_tier/prefetch_room",
        "controllers/storage_tier/storage_tier",
        "controllers/storage_tier/store_settings",
        "controllers/storage_tier/stored_composition",
    )
)
"""Of these rooms, the modules that are not compiled."""


def compiled_modules() -> tuple[str, ...]:
    """The modules that are compiled, by their paths in the package, without the ending."""
    found = [
        path.relative_to("unified_tree").with_suffix("").as_posix()
        for pattern in COMPILED
        for path in sorted(Path("unified_tree").glob(f"{pattern}.py"))
    ]
    return tuple(name for name in found if name not in INTERPRETED and not name.endswith("__init__"))


HOT = compiled_modules()

NATIVE = {
    stub.with_suffix("").as_posix().removeprefix("unified_tree/"): stub.with_suffix(".c").as_posix()
    for top in ("unified_tree", "controllers")
    for stub in sorted(Path(top).rglob("*.pyi"))
}
"""The modules written in C, by their paths in the package; each has a stub of its types."""


CORE = "unified_tree_core__mypyc"
"""What all hot modules are compiled into; each module's own extension only looks for itself there."""

HOTTEST_PART = "hottest"
"""The file of what is called most."""

HOTTEST = frozenset(
    (
        "declare/keys",
        "declare/suffix",
        "inputs/arguments",
        "inserts/insert_plan",
        "inserts/inserting",
        "locks/locks",
        "lookup/matching",
        "memory/ages",
        "nodes/node",
        "nodes/order",
        "policies/density/hit_density",
        "state/resumability",
        "controllers/cache/lease_state",
        "controllers/cache/lease_tokens",
        "controllers/cache/page_tables",
        "controllers/pages/page_allocator",
        "controllers/storage/digests",
    )
)
"""Where requests spend most instructions for the C that there is to compile: two thirds of them in a quarter of it."""

OTHER_PARTS = 4
"""How many files the other modules are, of equal length: so many that few cores end together."""

FLAGS = ["-g0", "-fvisibility=hidden", "-fno-plt"]
"""What the compiled functions call, they call directly: no other library may put one of its own in the place of theirs."""

LEFT_OUT = [
    "-fno-branch-count-reg",
    "-fno-if-conversion",
    "-fno-if-conversion2",
    "-fno-ipa-modref",
    "-fno-ipa-profile",
    "-fno-ipa-pure-const",
    "-fno-ipa-reference",
    "-fno-move-loop-invariants",
    "-fno-ssa-phiopt",
    "-fno-tree-bit-ccp",
    "-fno-tree-ch",
    "-fno-tree-dominator-opts",
    "-fno-tree-fre",
    "-fno-tree-loop-optimize",
    "-fno-tree-pta",
    "-fno-tree-sink",
    "-fno-tree-slsr",
]
"""Of `-O1` the passes that find nothing in the C of mypyc: a fifth of gcc's time, for 2 % more instructions."""

QUICK = [
    "-O1",
    *FLAGS,
    *LEFT_OUT,
    "-fno-combine-stack-adjustments",
    "-fno-compare-elim",
    "-fno-cprop-registers",
    "-fno-dse",
    "-fno-forward-propagate",
    "-fno-shrink-wrap",
]
"""Without these, too, it takes seven tenths of the time of `-O1`, for 3 to 4 % more instructions."""

TUNED = [
    "-O1",
    *FLAGS,
    *LEFT_OUT,
    "-falign-functions",
    "-falign-jumps",
    "-falign-loops",
    "-fcaller-saves",
    "-fexpensive-optimizations",
    "-finline-functions",
    "-finline-small-functions",
    "-fipa-ra",
    "-foptimize-sibling-calls",
    "-fpartial-inlining",
    "-fpeephole2",
    "-freorder-blocks-algorithm=stc",
    "-freorder-blocks-and-partition",
    "-fschedule-insns2",
    "-fstrict-aliasing",
    "-ftree-vrp",
    "--param=early-inlining-insns=14",
    "--param=max-inline-insns-auto=30",
]
"""Of `-O2` and `-O3` the passes that the tree's operations gain by: a tenth fewer instructions than with `-O1`."""

NOT_COMPILED = "unified_tree/not_compiled.txt"
"""Where an installation keeps why it is not compiled, if that was not asked for; its first import says so."""


FAILURES = (BaseError, CCompilerError, OSError)
"""What a step of setuptools raises."""


class NotCompiledError(Exception):
    """Why the hot modules cannot be compiled here."""


class BuildExtensions(build_ext):
    """Compiles all hot modules or none: where one could not be compiled (for want of memory, say), importing the package would
    fail, and it can run as it is.
    """

    def build_extensions(self) -> None:
        """Compile on all cores, or write down why not."""
        [core] = [each for each in self.extensions if each.name == CORE]
        native = [each for each in self.extensions if each.name != CORE]
        modules = [Path(self.get_ext_fullpath(module_name(name))) for name in HOT]
        reason = Path(self.build_lib, NOT_COMPILED)
        for path in (Path(self.get_ext_fullpath(CORE)), *modules, reason):
            path.unlink(missing_ok=True)  # what an earlier run left would pass for one of this
        Path(self.build_temp).mkdir(parents=True, exist_ok=True)
        try:
            hottest, others = self.flags()
            with ThreadPoolExecutor(cores()) as pool:
                native_built = [pool.submit(self.build_native, each) for each in native]
                self.build_core(core, hottest, others, pool)
                self.build_modules(modules, others)
                for each in native_built:
                    each.result()
        except (NotCompiledError, *FAILURES) as error:
            for path in (Path(self.get_ext_fullpath(CORE)), *modules):
                path.unlink(missing_ok=True)
            reason.parent.mkdir(parents=True, exist_ok=True)
            reason.write_text(f"{' '.join(str(error).split())[:300]}\n", encoding="utf-8")
            print(f"unified_tree is not compiled: {error}", file=sys.stderr)

    def flags(self) -> tuple[list[str], list[str]]:
        """The flags for the hottest modules and for the others. Raises at once where there is no compiler, or none that finds
        Python's headers.
        """
        probe = Path(self.build_temp, "probe.c")
        probe.write_text("#include <Python.h>\n", encoding="utf-8")
        try:
            self.compile_c(probe, [], [])
        except NotCompiledError as error:
            raise NotCompiledError(f"{error}, which only includes Python.h") from error
        if self.compiler.compiler_type != "unix":
            return [], []
        try:
            for flags in (TUNED, QUICK):
                self.compile_c(probe, [], flags)
        except NotCompiledError:  # another than gcc
            return ["-O2", *FLAGS], ["-O1", *FLAGS]
        return TUNED, QUICK

    def build_native(self, extension: Extension) -> None:
        """Compile a module of which there is another in Python."""
        try:
            self.build_extension(extension)
        except (NotCompiledError, *FAILURES) as error:
            print(f"{extension.name} is not compiled: {error}", file=sys.stderr)

    def build_core(self, core: Extension, hottest: list[str], others: list[str], pool: ThreadPoolExecutor) -> None:
        """Compile the hot modules in parts, and link them. The longest part begins first."""
        folder = Path(self.build_temp, "core").resolve()
        shutil.rmtree(folder, ignore_errors=True)
        written = write_c(str(folder))
        common = [each for each in written.extra_compile_args if each != "-Werror"]
        includes = [*written.include_dirs, str(folder)]
        compiling = []
        for part in parts(written.sources, folder):
            flags = [*common, *(hottest if part.stem == HOTTEST_PART else others)]
            compiling.append(pool.submit(self.compile_c, part, includes, flags))
        core.extra_objects = [each.result() for each in compiling]
        self.build_extension(core)

    def build_modules(self, paths: list[Path], flags: list[str]) -> None:
        """The modules' own extensions: copies of one, in which each finds its own beginning."""
        from mypyc.namegen import exported_name

        folder = Path(self.build_temp, "core").resolve()
        lines = [f'MODULE({name.rpartition("/")[2]}, "{exported_name(module_name(name))}")\n' for name in HOT]
        (folder / "modules.h").write_text("".join(lines), encoding="utf-8")
        (folder / "library.h").write_text(f'#define LIBRARY "{CORE}"\n', encoding="utf-8")
        first = Extension(module_name(HOT[0]), [])
        first._needs_stub = False
        first.extra_objects = [self.compile_c(Path("unified_tree/native/begin.c"), [str(folder)], flags)]
        first.export_symbols = [f"PyInit_{name.rpartition('/')[2]}" for name in HOT]
        self.build_extension(first)
        for path in paths[1:]:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(paths[0], path)

    def compile_c(self, source: Path, include_dirs: list[str], flags: list[str]) -> str:
        """The object file of a C file. Raises NotCompiledError."""
        try:
            [made] = self.compiler.compile(
                [str(source)], output_dir=self.build_temp, include_dirs=include_dirs, extra_postargs=flags
            )
        except FAILURES as error:
            name = getattr(self.compiler, "compiler", [self.compiler.compiler_type])[0]
            raise NotCompiledError(f"{name} could not compile {source.name}") from error
        return str(made)


def module_name(hot: str) -> str:
    """The import name of a hot module."""
    return f"unified_tree.{hot.replace('/', '.')}"


def cores() -> int:
    """How many of the processor's this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write_c(folder: str) -> Extension:
    """Have mypyc write the hot modules as C, one file each; the extension that they are compiled into."""
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        raise NotCompiledError(f"mypyc is not installed ({error})") from error
    options = ["--config-file=", "--no-site-packages", "--ignore-missing-imports", "--follow-imports=silent"]
    paths = [f"unified_tree/{name}.py" for name in HOT]
    try:
        core, *_ = mypycify(
            [*options, *paths], group_name=CORE.removesuffix("__mypyc"), multi_file=True, target_dir=folder, debug_level="0"
        )
    except SystemExit as error:
        raise NotCompiledError("mypyc cannot compile it, and printed why") from error
    gc.freeze()  # or each full collection, the one at the end too, walks all that mypy knows of the source: 4 s
    return core


def parts(sources: Iterable[str], folder: Path) -> list[Path]:
    """The C that mypyc wrote, in a few files, and with what it leaves out: docstrings, and how long chains of objects end.

    The hottest modules are one file with mypyc's own functions, so that the compiler can inline them. Of the others a module
    each would read the headers a hundred times.
    """
    codes = patched({Path(source).name: Path(source).read_text(encoding="utf-8") for source in sources})
    library = CORE.removesuffix("__mypyc")
    dealloc = Path("unified_tree/native/dealloc").resolve().as_posix()
    headers = [f"__native_{library}.h", f"__native_internal_{library}.h", f"{dealloc}.h"]
    modules = {f"__native_{module_name(name).replace('.', '___')}.c": name for name in HOT}
    own = [name for name in codes if name not in modules and name != f"__native_{library}.c"]  # mypyc's functions
    shares = {HOTTEST_PART: [*own, *headers, f"{dealloc}.c", f"__native_{library}.c"]}
    shares |= {f"others_{number}": [*headers] for number in range(1, OTHER_PARTS + 1)}
    lengths = dict.fromkeys(list(shares)[1:], 0)
    for name in sorted(codes.keys() - set(own), key=lambda name: len(codes[name]), reverse=True):
        (folder / name).write_text(codes[name], encoding="utf-8")
        if name not in modules:
            continue
        part = HOTTEST_PART
        if modules[name] not in HOTTEST:
            part = min(lengths, key=lambda each: lengths[each])
            lengths[part] += len(codes[name])
        shares[part].append(name)
    for part, names in shares.items():
        (folder / f"{part}.c").write_text("".join(f'#include "{name}"\n' for name in names), encoding="utf-8")
    return [folder / f"{part}.c" for part in shares]


# What carries a docstring in the C of mypyc: modules, functions, properties, native classes and classes of Python's own.
MODULE = re.compile(r'(?<=PyModuleDef )(\w+)( = {\s+PyModuleDef_HEAD_INIT,\s+"[\w.]+",\s+)(NULL)(?=, /\* docstring)')
FUNCTION = re.compile(r'(?<=\(PyCFunction\)CPyPy_)(\w+)(,\s+[A-Z_| ]+, PyDoc_STR\()((?:"(?:[^"\\]|\\.)*"|NULL))')
GETTER = re.compile(r"(?<=\(getter\))(\w+)(,\s+(?:NULL|\(setter\)\w+), )(NULL)(?=, NULL})")
NATIVE_CLASS = re.compile(r'(?<=PyTypeObject CPyType_)(\w+)(_template_ = {[^}]*\.tp_doc = PyDoc_STR\()("(?:[^"\\]|\\.)*"|NULL)')
OTHER_CLASS = re.compile(r"CPyStatics\[\d+\](?=; /\* 'mypyc filler docstring' \*/(?:.*\n)*?.*CPyType_(\w+) = \(PyTypeObject)")


def patched(codes: dict[str, str]) -> dict[str, str]:
    """The C of mypyc with the docstrings of the hot modules, for which mypyc has no switch.

    Raises NotCompiledError where a docstring finds no place, or where the macros that `dealloc.h` replaces are not used:
    another mypy than the one in pyproject.toml may write other C.
    """
    from mypy.version import __version__
    from mypyc.codegen.cstring import c_string_initializer

    found = [each for source in HOT for each in docstrings(source)]
    texts = {name: c_string_initializer(text.encode()) for names, text in found for name in names}
    placed = set()

    def text_of(name: str) -> str:
        placed.add(name)
        return texts[name]

    def append(match: re.Match[str]) -> str:
        name, between, signature = match.groups()
        if name not in texts:
            return match[0]
        return f"{name}{between}{text_of(name) if signature == 'NULL' else f'{signature} {text_of(name)}'}"

    def replace(match: re.Match[str]) -> str:
        return f"PyUnicode_FromString({text_of(match[1])})" if match[1] in texts else match[0]

    def document(code: str) -> str:
        for pattern in (MODULE, FUNCTION, GETTER, NATIVE_CLASS):
            code = pattern.sub(append, code)
        return OTHER_CLASS.sub(replace, code)

    documented = {name: document(code) for name, code in codes.items()}
    homeless = [names[0] for names, _ in found if placed.isdisjoint(names)]
    where = f"the C of mypy {__version__}"
    if homeless:
        raise NotCompiledError(f"{len(homeless)} docstrings find no place in {where}, such as {homeless[0]}'s")
    if not any("CPy_TRASHCAN_BEGIN(" in code for code in codes.values()):
        raise NotCompiledError(f"{where} is not what dealloc.h mends")
    print(f"put {len(found)} docstrings into {where}, and dealloc.h for its trashcan", file=sys.stderr)
    return documented


def docstrings(source: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The docstrings of a module, each with the names that mypyc may give its module, function, class, method or getter."""
    module = source.rpartition("/")[2]
    parsed = ast.parse(Path(f"unified_tree/{source}.py").read_text(encoding="utf-8"))
    if text := ast.get_docstring(parsed):
        yield (f"{module}module",), text
    for node in parsed.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        if text := ast.get_docstring(node):
            yield (f"{module}___{node.name}",), text
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.FunctionDef) and (text := ast.get_docstring(inner)):
                name = f"{module}___{node.name}"
                yield (f"{name}___{inner.name}", f"{name}_get_{inner.name}"), text


def packages() -> dict[str, str]:
    """All packages with their folders: those with an `__init__`."""
    found = {}
    for top in ("unified_tree", "components", "controllers"):
        for init in sorted(Path(top).rglob("__init__.py")):
            folder = init.parent
            if not Path(*folder.parts[:2]).is_symlink():
                found[".".join(folder.parts if top == "unified_tree" else ("unified_tree", *folder.parts))] = folder.as_posix()
    return found


def declared() -> list[Extension]:
    """All that is compiled; nothing where that is not wanted."""
    editable = "editable_wheel" in sys.argv or "develop" in sys.argv
    if editable or os.environ.get("UNIFIED_TREE_PURE"):
        return []
    return [Extension(CORE, []), *(Extension(module_name(name), [source]) for name, source in NATIVE.items())]


setup(
    packages=list(packages()),
    package_dir=packages(),
    package_data={
        "": ["*.pyi"],
        "unified_tree": ["py.typed"],
        "unified_tree.components": ["*.json"],
        "unified_tree.controllers.inspector": ["page/*"],
    },
    include_package_data=False,
    ext_modules=declared(),
    cmdclass={"build_ext": BuildExtensions},
)
