"""Compares what the SGLang backend relies on with the sources of an SGLang, without importing it.

`python tests/e2e/sglang/contract.py SOURCE` reads an installed or unpacked SGLang (the folder that holds `sglang/`) or a wheel;
`--newest` downloads the newest wheel. It prints what was added, removed and changed since the version in contract.json, and
ends with 1 if the backend uses something of it, or if a method is abstract now. `--record` writes the file.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RECORD = Path(__file__).with_name("contract.json")
BACKEND = Path(__file__).parents[3] / "controllers" / "adapters" / "sglang"
MEMORY = "sglang/srt/mem_cache"
CLASSES: dict[str, tuple[str, ...]] = {
    f"{MEMORY}/base_prefix_cache.py": (
        "BasePrefixCache",
        "EvictParams",
        "EvictResult",
        "InitLoadBackParams",
        "MatchPrefixParams",
        "MatchResult",
        "TreeLock",
    ),
    f"{MEMORY}/registry.py": ("TreeCacheBuildContext",),
    f"{MEMORY}/cache_init_params.py": ("CacheInitParams",),
    f"{MEMORY}/radix_cache.py": ("RadixKey",),
    f"{MEMORY}/events.py": ("KVCacheEventRecorder", "KvEventLoraNames"),
    "sglang/srt/disaggregation/kv_events.py": ("BlockStored", "BlockRemoved"),
    f"{MEMORY}/allocator/base.py": ("BaseTokenToKVPoolAllocator",),
    f"{MEMORY}/allocator/token.py": ("TokenToKVPoolAllocator",),
    f"{MEMORY}/allocator/paged.py": ("PagedTokenToKVPoolAllocator",),
    f"{MEMORY}/allocator/swa.py": ("SWATokenToKVPoolAllocator",),
    f"{MEMORY}/allocator/mamba.py": ("MambaSlotAllocator",),
    "sglang/srt/lora/lora_registry.py": ("LoRARef",),
    "sglang/srt/managers/cache_controller.py": ("LayerDoneCounter",),
    "sglang/srt/model_executor/model_runner.py": ("ModelRunner",),
    f"{MEMORY}/memory_pool.py": ("HybridReqToTokenPool", "MambaPool", "ReqToTokenPool"),
}
"""What is compared: classes by file."""
FUNCTIONS: dict[str, tuple[str, ...]] = {
    f"{MEMORY}/registry.py": ("register_radix_cache_backend", "default_radix_cache_factory"),
    "sglang/srt/disaggregation/kv_events.py": ("kv_event_namespace_seed", "namespaced_block_hash"),
    "sglang/srt/runtime_context.py": ("get_lora", "mamba_checkpoint_grid"),
}
POSITIONAL = {"EvictResult"}
"""The backend names no field of these, and any change matters."""
EXTENDED = {"BasePrefixCache"}
"""The backend extends these, and has to define what is abstract there."""
WHOLE = {"CacheInitParams", "LayerDoneCounter", "MatchResult", "TreeCacheBuildContext"} | EXTENDED | POSITIONAL
"""Classes of which every change is told; of the others, those of members whose names the backend writes."""
CONSTRUCTED = {"KVCacheEventRecorder"}
"""The backend constructs these; of others the constructor is not compared."""
ABSTRACT = "abstract "

Contract = dict[str, dict[str, str]]
"""By class, or by file for functions: what each member is declared as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference.

    Attributes:
        what: `added`, `removed` or `changed`.
        matters: the backend uses it, or has to define it.
    """

    what: str
    owner: str
    name: str
    before: str | None
    after: str | None
    matters: bool

    def __str__(self) -> str:
        mark = "!" if self.matters else " "
        lines = [f"{mark} {self.what}: {self.owner}.{self.name}"]
        lines += [f"      {word}: {text}" for word, text in (("was", self.before), ("is", self.after)) if text is not None]
        return "\n".join(lines)


class Source:
    """The files of an SGLang: a folder that holds `sglang/`, or a wheel."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wheel = zipfile.ZipFile(path) if path.is_file() else None

    @property
    def version(self) -> str:
        """By the name of its `.dist-info`; `unknown` without one."""
        names = self._wheel.namelist() if self._wheel else [folder.name for folder in self._path.glob("sglang-*.dist-info")]
        found = (re.match(r"sglang-([^-/]+)\.dist-info", name) for name in names)
        return next((match[1] for match in found if match), "unknown")

    def tree(self, file: str) -> ast.Module:
        """A parsed file; empty if there is none."""
        try:
            text = self._wheel.read(file).decode() if self._wheel else (self._path / file).read_text(encoding="utf-8")
        except (KeyError, FileNotFoundError):
            text = ""
        return ast.parse(text)


def read(source: Source) -> Contract:
    """What an SGLang declares of all that is compared, whether the backend uses it or not: so a name that the backend begins to
    use is no change of SGLang's."""
    contract: Contract = {}
    for file in sorted({*CLASSES, *FUNCTIONS}):
        body = source.tree(file).body
        functions = {node.name: _signature(node) for node in body if isinstance(node, ast.FunctionDef)}
        wanted = {name: functions[name] for name in FUNCTIONS.get(file, ()) if name in functions}
        if wanted:
            contract[file] = wanted
        for node in body:
            if isinstance(node, ast.ClassDef) and node.name in CLASSES.get(file, ()):
                members = dict(_members(node))
                if node.name not in CONSTRUCTED:
                    members.pop("__init__", None)
                contract[node.name] = dict(sorted(members.items()))
    return contract


def _members(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The fields, methods and properties of a class; of `__init__` also what it sets."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            default = "" if item.value is None else f" = {ast.unparse(item.value)}"
            yield item.target.id, f"{ast.unparse(item.annotation)}{default}"
        elif isinstance(item, ast.FunctionDef):
            yield item.name, _signature(item)
            for inner in ast.walk(item) if item.name == "__init__" else ():
                targets = inner.targets if isinstance(inner, ast.Assign) else []
                targets = [inner.target] if isinstance(inner, ast.AnnAssign) else targets
                for target in targets:
                    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                        yield target.attr, "set by __init__"


def _signature(node: ast.FunctionDef) -> str:
    decorators = [ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list]
    kinds = "".join(f"{kind} " for kind in ("abstractmethod", "property", "staticmethod", "classmethod") if kind in decorators)
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return kinds.replace("abstractmethod ", ABSTRACT) + f"({ast.unparse(node.args)}){returns}"


def names_used(folder: Path) -> set[str]:
    """Every name that the backend's sources write: variables, attributes, keyword arguments, definitions, imports."""
    found: set[str] = set()
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for field in ("id", "attr", "arg", "name"):
                value = getattr(node, field, None)
                if isinstance(value, str):
                    found.add(value)
    return found


def compare(before: Contract, after: Contract, used: set[str]) -> list[Change]:
    """The differences that are told, those that matter first."""
    changes = []
    for owner in sorted(before.keys() | after.keys()):
        old, new = before.get(owner, {}), after.get(owner, {})
        for name in sorted(old.keys() | new.keys()):
            was, now = old.get(name), new.get(name)
            is_told = owner in WHOLE or owner in FUNCTIONS or name in used
            if was == now or not is_told:
                continue
            what = "added" if was is None else "removed" if now is None else "changed"
            becomes_abstract = owner in EXTENDED and now is not None and now.startswith(ABSTRACT)
            matters = becomes_abstract or owner in POSITIONAL or (was is not None and name in used)
            changes.append(Change(what=what, owner=owner, name=name, before=was, after=now, matters=matters))
    return sorted(changes, key=lambda change: not change.matters)


def newest(folder: Path) -> Path:
    """Download the newest wheel of SGLang, without what it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    subprocess.run([*command, "sglang"], check=True)
    return next(folder.glob("sglang-*.whl"))


def main(arguments: list[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", type=Path, help="a wheel, or the folder that holds sglang/")
    parser.add_argument("--newest", action="store_true", help="download the newest wheel")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    given = parser.parse_args(arguments)
    if (given.source is None) != given.newest:
        parser.error("give a source, or --newest")
    used = names_used(BACKEND)
    with tempfile.TemporaryDirectory() as folder:
        source = Source(newest(Path(folder)) if given.newest else given.source)
        version, contract = source.version, read(source)
    if "BasePrefixCache" not in contract:
        parser.error(f"there is no {MEMORY}/base_prefix_cache.py in {given.source}")
    if given.record:
        RECORD.write_text(json.dumps({"version": version, "contract": contract}, indent=1, sort_keys=True) + "\n")
        return 0
    record = json.loads(RECORD.read_text())
    changes = compare(record["contract"], contract, used)
    for change in changes:
        print(change)
    count = sum(change.matters for change in changes)
    print(f"SGLang {version} against {record['version']}: {len(changes)} changes, {count} of which the backend uses")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
