"""Habits that no other tool checks: documented names, imports that point one way, no leftovers."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("unified_tree", "components", "controllers", "tests", "benches", "examples")
TREE = sorted((ROOT / "unified_tree").rglob("*.py"))  # which follows no links
SOURCES = [path for folder in FOLDERS[1:] for path in sorted((ROOT / folder).rglob("*.py"))] + TREE
LIBRARY = [*TREE, *sorted((ROOT / "components").rglob("*.py")), *sorted((ROOT / "controllers").rglob("*.py"))]
TEXT_LETTERS = set("…→·\u00d7Σ²³µ∞")
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK", "WI" + "P")) + r")\b")
RIDDLES = (
    "as good as once",
    "nobody's worry",
    "told apart by neither",
    "anything that is not that",
    "for good.",
    "that cannot be.",
    "its own word",
    "hang up",
    "let go",
    "the seam",
    "where figures go",
)
"""Phrases of our own making for which the field has a term: idempotent, invalid, trusted, close, release, protocol."""
MAX_WORDS = 45
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users|work|opt|tmp|mnt)/\w")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> ModuleType:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] != "unified_tree":
        parts = ("unified_tree", *parts)
    return importlib.import_module(".".join(part for part in parts if part != "__init__"))


def test_sources_are_tidy() -> None:
    wrong: list[str] = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        strange = {letter for letter in text if ord(letter) > 126 or (ord(letter) < 32 and letter != "\n")} - TEXT_LETTERS
        found = {
            f"letters that should not be here: {strange}": strange,
            "a mark of unfinished work": UNFINISHED.search(text),
            "a path of somebody's machine": MACHINE_PATH.search(text),
            "no end of its last line": text and not text.endswith("\n"),
        }
        wrong += [f"{relative(path)}: {what}" for what, is_so in found.items() if is_so]
    assert not wrong, "\n".join(wrong)


def public_definitions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Public classes and functions of a module, and the public methods of those classes."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                        yield f"{node.name}.{inner.name}", inner


def undocumented(path: Path) -> Iterator[str]:
    """Public names of a module without a docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inherited = {
        f"{node.name}.{inner.name}"
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.bases
        for inner in node.body
        if isinstance(inner, ast.FunctionDef)
    }
    bare = [name for name, node in public_definitions(tree) if not ast.get_docstring(node) and name not in inherited]
    if path.parent.name == "unified_tree" and path.name == "policies.py":
        bare = [name for name in bare if name.split(".")[-1] not in ("touched", "rank", "evicted")]
    if path.name != "__init__.py" and not ast.get_docstring(tree):
        bare.append("the module itself")
    yield from (f"{relative(path)}: {name}" for name in bare)


def test_public_names_are_documented() -> None:
    bare = [name for path in LIBRARY for name in undocumented(path)]
    assert not bare, "\n".join(bare)


def imported(path: Path) -> Iterator[str]:
    """The modules that a source imports, all by their whole names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, relative(path)
            yield node.module or ""


def test_the_tree_imports_neither_what_builds_on_it_nor_torch() -> None:
    allowed = {"__future__", "mypy_extensions", "numpy", "unified_tree", *sys.stdlib_module_names}
    above = ("unified_tree.components", "unified_tree.controllers")
    wrong = [
        f"{relative(path)} imports {name}"
        for path in TREE
        for name in imported(path)
        if name.split(".")[0] not in allowed or name.startswith(above)
    ]
    assert not wrong


def test_the_components_do_not_import_the_controllers() -> None:
    paths = sorted((ROOT / "components").rglob("*.py"))
    wrong = [path for path in paths for name in imported(path) if name.startswith("unified_tree.controllers")]
    assert not wrong


def test_only_a_lease_writes_a_lease() -> None:
    for path in LIBRARY:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
            for target in targets:
                if isinstance(target, ast.Attribute):
                    owner = ast.unparse(target.value)
                    assert not (owner == "lease" or owner.endswith(".lease")), f"{relative(path)}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", [path for path in LIBRARY if ">>> " in path.read_text(encoding="utf-8")], ids=relative)
def test_examples_in_docstrings_run(path: Path) -> None:
    result = doctest.testmod(module_of(path), optionflags=doctest.ELLIPSIS)
    assert result.attempted
    assert not result.failed


def test_the_examples_are_found() -> None:
    documented = {path.stem for path in LIBRARY if ">>> " in path.read_text(encoding="utf-8")}
    assert {"tree", "keys", "prefix_cache"} <= documented


def sentences(docstring: str) -> Iterator[str]:
    """The sentences of a docstring; entries of lists and clauses between semicolons count as such, examples are left out."""
    for paragraph in re.split(r"\n\s*\n|\n(?=    \S[^\n]*: )|\n(?=\s*- )", docstring.split(">>> ", maxsplit=1)[0]):
        yield from re.split(r"(?<=[.!?;])\s+", paragraph.strip())


def test_docstrings_are_short_sentences_in_common_terms() -> None:
    wrong = []
    for path in LIBRARY:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {name: ast.get_docstring(node) or "" for name, node in public_definitions(tree)}
        for name, text in {**docstrings, "the module": ast.get_docstring(tree) or ""}.items():
            words = " ".join(text.lower().split())
            wrong += [f"{relative(path)}: {name}: {riddle!r}" for riddle in RIDDLES if riddle in words]
        for name, text in docstrings.items():
            wrong += [f"{relative(path)}: {name}: {each}" for each in sentences(text) if len(each.split()) > MAX_WORDS]
    assert not wrong, "sentences that must be read twice: " + "\n".join(wrong)
