"""Compares what an adapter relies on with the sources of its engine, without importing them.

A script declares an Interface and calls its `main`: with SOURCE, an installed or unpacked engine (the folder that holds its
package) or a wheel, or with `--newest`, which downloads the newest wheel. It prints what was added, removed and changed since
that version in the record, or since the newest there. It ends with 1 if the adapter uses something of that, or if a method is
abstract now. `--record` adds the version to the record.
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
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ABSTRACT = "abstract "

Declared = dict[str, dict[str, str]]
"""By class, or by file for functions and constants: what each member is declared as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference.

    Attributes:
        what: `added`, `removed` or `changed`.
        matters: the adapter uses it, or has to define it.
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
    """The files of an engine: a folder that holds its package, or a wheel."""

    def __init__(self, path: Path, package: str) -> None:
        self._path = path
        self._package = package
        self._wheel = zipfile.ZipFile(path) if path.is_file() else None

    @property
    def version(self) -> str:
        """By the name of its `.dist-info`; `unknown` without one."""
        folders = self._path.glob(f"{self._package}-*.dist-info")
        names = self._wheel.namelist() if self._wheel else [folder.name for folder in folders]
        found = (re.match(rf"{self._package}-([^-/]+)\.dist-info", name) for name in names)
        return next((match[1] for match in found if match), "unknown")

    def tree(self, file: str) -> ast.Module:
        """A parsed file; empty if there is none."""
        try:
            text = self._wheel.read(file).decode() if self._wheel else (self._path / file).read_text(encoding="utf-8")
        except (KeyError, FileNotFoundError):
            text = ""
        return ast.parse(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """The part of an engine that is compared.

    Attributes:
        engine, package: its name in messages, and that of its package.
        adapter: the folder of the sources that use it.
        record: the file of what the versions declare.
        classes, functions: what is compared, by file; a function may be a constant.
        base: a class that every version has.
        extended: the adapter extends these classes, and has to define what is abstract there.
        whole: besides these, classes of which every change is told; of the others, those of members whose names the adapter
            writes.
        listed: classes of settings, of which each new or gone field matters; what is said of a field is not compared.
        constructed: the adapter calls the constructors of these; those of others are not compared.
        positional: the adapter names no field of these, and any change matters.
    """

    engine: str
    package: str
    adapter: Path
    record: Path
    classes: Mapping[str, Collection[str]]
    functions: Mapping[str, Collection[str]]
    base: str
    extended: frozenset[str]
    whole: frozenset[str]
    constructed: frozenset[str]
    positional: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()

    def read(self, path: Path) -> Declared:
        """The declarations of all that is compared, whether the adapter uses it or not: so a name that the adapter
        begins to use is no change of the engine's.
        """
        source = Source(path, self.package)
        declared: Declared = {}
        for file in sorted({*self.classes, *self.functions}):
            body = source.tree(file).body
            found = {node.name: _signature(node) for node in body if isinstance(node, ast.FunctionDef)}
            found |= {
                target.id: ast.unparse(node.value)
                for node in body
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            wanted = {name: found[name] for name in self.functions.get(file, ()) if name in found}
            if wanted:
                declared[file] = wanted
            for node in body:
                if isinstance(node, ast.ClassDef) and node.name in self.classes.get(file, ()):
                    members = dict(_members(node))
                    if node.name not in self.constructed:
                        members.pop("__init__", None)
                    if node.name in self.listed:
                        members = {item.target.id: _default(item) for item in _fields(node)}
                    declared[node.name] = dict(sorted(members.items()))
        return declared

    def used(self) -> set[str]:
        """Every name that the adapter's sources write: variables, attributes, keyword arguments, definitions, imports."""
        found: set[str] = set()
        for file in self.adapter.glob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                for field in ("id", "attr", "arg", "name"):
                    value = getattr(node, field, None)
                    if isinstance(value, str):
                        found.add(value)
        return found

    def compare(self, before: Declared, after: Declared, used: set[str]) -> list[Change]:
        """The differences that are told, those that matter first."""
        changes = []
        for owner in sorted(before.keys() | after.keys()):
            old, new = before.get(owner, {}), after.get(owner, {})
            is_whole = owner in self.whole | self.extended | self.positional | self.listed or owner in self.functions
            for name in sorted(old.keys() | new.keys()):
                was, now = old.get(name), new.get(name)
                if was == now or not (is_whole or name in used):
                    continue
                what = "added" if was is None else "removed" if now is None else "changed"
                becomes_abstract = owner in self.extended and now is not None and now.startswith(ABSTRACT)
                matters = becomes_abstract or owner in self.positional | self.listed or (was is not None and name in used)
                changes.append(Change(what=what, owner=owner, name=name, before=was, after=now, matters=matters))
        return sorted(changes, key=lambda change: not change.matters)

    def recorded(self) -> dict[str, Declared]:
        """The record, by version, in the order in which they were added."""
        found: dict[str, Declared] = json.loads(self.record.read_text(encoding="utf-8")) if self.record.exists() else {}
        return found

    def main(self, arguments: list[str] | None = None) -> int:
        """The command; its exit code."""
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("source", nargs="?", type=Path, help=f"a wheel, or the folder that holds {self.package}/")
        parser.add_argument("--newest", action="store_true", help="download the newest wheel")
        parser.add_argument("--record", action="store_true", help=f"add the version to {self.record.name}")
        given = parser.parse_args(arguments)
        if (given.source is None) != given.newest:
            parser.error("give a source, or --newest")
        with tempfile.TemporaryDirectory() as folder:
            path = self._newest(Path(folder)) if given.newest else given.source
            version, declared = Source(path, self.package).version, self.read(path)
        if self.base not in declared:
            file = next(file for file, names in self.classes.items() if self.base in names)
            parser.error(f"there is no {file} in {given.source}")
        record = self.recorded()
        if given.record:
            self.record.write_text(json.dumps(record | {version: declared}, indent=1) + "\n", encoding="utf-8")
            return 0
        before = version if version in record else list(record)[-1]
        changes = self.compare(record[before], declared, self.used())
        for change in changes:
            print(change)
        count = sum(change.matters for change in changes)
        print(f"{self.engine} {version} against {before}: {len(changes)} changes, {count} of which the adapter uses")
        return int(count > 0)

    def _newest(self, folder: Path) -> Path:
        """Download the newest wheel, without what it depends on."""
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--dest",
            str(folder),
        ]
        subprocess.run([*command, self.package], check=True)
        return next(folder.glob(f"{self.package}-*.whl"))


def _fields(node: ast.ClassDef) -> list[Any]:
    return [item for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]


def _default(field: Any) -> str:
    return "no default" if field.value is None else str(ast.unparse(field.value))


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
