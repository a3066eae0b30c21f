"""Compares what the vLLM connector relies on with the sources of a vLLM, without importing it.

`python tests/e2e/vllm/vllm_contract.py SOURCE` reads an installed or unpacked vLLM (the folder that holds `vllm/`) or a wheel;
`--newest` downloads the newest wheel. It prints what was added, removed and changed since that version in contract.json, or
since the newest there, and ends with 1 if the connector uses something of it, or if a method is abstract now. `--record` adds
the version to the file.
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
CONNECTOR = Path(__file__).parents[3] / "controllers" / "adapters" / "vllm"
CONNECTORS = "vllm/distributed/kv_transfer/kv_connector/v1"
CLASSES: dict[str, tuple[str, ...]] = {
    f"{CONNECTORS}/base.py": (
        "KVConnectorBase_V1",
        "KVConnectorMetadata",
        "KVConnectorRole",
        "KVConnectorTransferResults",
        "KVConnectorWorkerMetadata",
        "SupportsHMA",
    ),
    f"{CONNECTORS}/metrics.py": ("KVConnectorPromMetrics", "KVConnectorStats"),
    "vllm/distributed/kv_events.py": ("AllBlocksCleared", "BlockRemoved", "BlockStored"),
    "vllm/device_allocator/__init__.py": ("AllocationData", "MemAllocator"),
    "vllm/device_allocator/cumem.py": ("CuMemAllocator",),
    "vllm/device_allocator/sleep_mode_backend.py": ("SleepModeBackend",),
    "vllm/v1/core/kv_cache_manager.py": ("KVCacheBlocks",),
    "vllm/v1/core/sched/output.py": ("KVConnectorBlockState", "SchedulerOutput"),
    "vllm/v1/kv_cache_interface.py": (
        "FullAttentionSpec",
        "KVCacheConfig",
        "KVCacheGroupSpec",
        "MambaSpec",
        "MLAAttentionSpec",
        "SlidingWindowSpec",
        "UniformTypeKVCacheSpecs",
    ),
    "vllm/v1/metrics/cache_hit_source.py": ("CacheHitSource",),
    "vllm/v1/outputs.py": ("KVConnectorOutput",),
    "vllm/v1/request.py": ("Request",),
    "vllm/lora/request.py": ("LoRARequest",),
    "vllm/config/kv_transfer.py": ("KVTransferConfig",),
    "vllm/config/offload.py": ("OffloadConfig", "PrefetchOffloadConfig", "UVAOffloadConfig"),
}
"""What is compared: classes by file."""
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "vllm/device_allocator/__init__.py": ("get_mem_allocator_instance",),
    "vllm/distributed/parallel_state.py": ("get_tensor_model_parallel_rank", "get_tensor_model_parallel_world_size"),
    "vllm/distributed/kv_events.py": ("MEDIUM_CPU",),
    "vllm/logger.py": ("init_logger",),
    "vllm/v1/core/kv_cache_utils.py": ("maybe_convert_block_hash", "hash_block_tokens", "init_none_hash"),
    "vllm/v1/kv_cache_interface.py": ("get_kv_cache_spec_kind",),
}
EXTENDED = {
    "KVConnectorBase_V1",
    "KVConnectorMetadata",
    "KVConnectorPromMetrics",
    "KVConnectorStats",
    "KVConnectorWorkerMetadata",
    "SupportsHMA",
}
"""The connector extends these, and has to define what is abstract there."""
WHOLE = EXTENDED | {"AllocationData", "BlockStored", "KVConnectorBlockState", "KVConnectorTransferResults"}
"""Classes of which every change is told; of the others, those of members whose names the connector writes."""
CONSTRUCTED = {"KVConnectorBase_V1"}
"""The connector calls these constructors; of others it is not compared."""
ABSTRACT = "abstract "

Contract = dict[str, dict[str, str]]
"""By class, or by file for functions: what each member is declared as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference.

    Attributes:
        what: `added`, `removed` or `changed`.
        matters: the connector uses it, or has to define it.
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
    """The files of a vLLM: a folder that holds `vllm/`, or a wheel."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wheel = zipfile.ZipFile(path) if path.is_file() else None

    @property
    def version(self) -> str:
        """By the name of its `.dist-info`; `unknown` without one."""
        names = self._wheel.namelist() if self._wheel else [folder.name for folder in self._path.glob("vllm-*.dist-info")]
        found = (re.match(r"vllm-([^-/]+)\.dist-info", name) for name in names)
        return next((match[1] for match in found if match), "unknown")

    def tree(self, file: str) -> ast.Module:
        """A parsed file; empty if there is none."""
        try:
            text = self._wheel.read(file).decode() if self._wheel else (self._path / file).read_text(encoding="utf-8")
        except (KeyError, FileNotFoundError):
            text = ""
        return ast.parse(text)


def read(source: Source) -> Contract:
    """What a vLLM declares of all that is compared, whether the connector uses it or not: so a name that the connector
    begins to use is no change of vLLM's."""
    contract: Contract = {}
    for file in sorted({*CLASSES, *FUNCTIONS}):
        body = source.tree(file).body
        functions = {node.name: _signature(node) for node in body if isinstance(node, ast.FunctionDef)}
        functions |= {
            target.id: ast.unparse(node.value)
            for node in body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
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
    """Every name that the connector's sources write: variables, attributes, keyword arguments, definitions, imports."""
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
            matters = becomes_abstract or (was is not None and name in used)
            changes.append(Change(what=what, owner=owner, name=name, before=was, after=now, matters=matters))
    return sorted(changes, key=lambda change: not change.matters)


def newest(folder: Path) -> Path:
    """Download the newest wheel of vLLM, some 330 MB, without what it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    subprocess.run([*command, "vllm"], check=True)
    return next(folder.glob("vllm-*.whl"))


def recorded() -> dict[str, Contract]:
    """The contracts of the file, by version, in the order they were recorded."""
    found: dict[str, Contract] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    return found


def main(arguments: list[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", type=Path, help="a wheel, or the folder that holds vllm/")
    parser.add_argument("--newest", action="store_true", help="download the newest wheel")
    parser.add_argument("--record", action="store_true", help=f"add the version to {RECORD.name}")
    given = parser.parse_args(arguments)
    if (given.source is None) != given.newest:
        parser.error("give a source, or --newest")
    with tempfile.TemporaryDirectory() as folder:
        source = Source(newest(Path(folder)) if given.newest else given.source)
        version, contract = source.version, read(source)
    if "KVConnectorBase_V1" not in contract:
        parser.error(f"there is no {CONNECTORS}/base.py in {given.source}")
    record = recorded()
    if given.record:
        record[version] = contract
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return 0
    before = version if version in record else list(record)[-1]
    changes = compare(record[before], contract, names_used(CONNECTOR))
    for change in changes:
        print(change)
    count = sum(change.matters for change in changes)
    print(f"vLLM {version} against {before}: {len(changes)} changes, {count} of which the connector uses")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
