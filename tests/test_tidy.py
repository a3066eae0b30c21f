"""Habits that no other tool checks: documented names, imports that point one way, no leftovers."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("unified_tree", "components", "controllers", "tests", "benches")
TREE = sorted((ROOT / "unified_tree").glob("*.py"))
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
PACKAGES = [
    "unified_tree",
    "unified_tree.components",
    "unified_tree.controllers",
    *(f"unified_tree.controllers.{path.parent.name}" for path in sorted((ROOT / "controllers").glob("*/__init__.py"))),
    "unified_tree.controllers.prefix_linker.lmcache",
]
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users|work|opt|tmp|mnt)/\w")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> ModuleType:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] != "unified_tree":
        parts = ("unified_tree", *parts)
    return importlib.import_module(".".join(part for part in parts if part != "__init__"))


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_source_is_tidy(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    strange = {letter for letter in text if ord(letter) > 126 or (ord(letter) < 32 and letter != "\n")} - TEXT_LETTERS
    assert not strange, f"letters that should not be here: {strange}"
    assert not UNFINISHED.search(text), "a mark of unfinished work"
    assert not MACHINE_PATH.search(text), "a path of somebody's machine"
    assert text == "" or text.endswith("\n")


def public_definitions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Public classes and functions of a module, and the public methods of those classes."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                        yield f"{node.name}.{inner.name}", inner


@pytest.mark.parametrize("path", LIBRARY, ids=relative)
def test_public_names_are_documented(path: Path) -> None:
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
    assert not bare, f"without a docstring: {bare}"
    assert path.name == "__init__.py" or ast.get_docstring(tree), "the module says nothing about itself"


def sentences(docstring: str) -> Iterator[str]:
    """The sentences of a docstring; entries of lists and clauses between semicolons count as such, examples are left out."""
    for paragraph in re.split(r"\n\s*\n|\n(?=    \S[^\n]*: )|\n(?=\s*- )", docstring.split(">>> ", maxsplit=1)[0]):
        yield from re.split(r"(?<=[.!?;])\s+", paragraph.strip())


@pytest.mark.parametrize("path", LIBRARY, ids=relative)
def test_docstrings_are_short_sentences_in_common_terms(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = [*public_definitions(tree), ("the module", tree)]
    docstrings = {name: ast.get_docstring(node) or "" for name, node in documented}
    riddles = {
        name: riddle for name, text in docstrings.items() for riddle in RIDDLES if riddle in " ".join(text.lower().split())
    }
    assert not riddles, "say it with the field's term"
    del docstrings["the module"]
    long = [
        f"{name}: {sentence}"
        for name, text in docstrings.items()
        for sentence in sentences(text)
        if len(sentence.split()) > MAX_WORDS
    ]
    assert not long, "a sentence that must be read twice"


@pytest.mark.parametrize("path", TREE, ids=relative)
def test_the_tree_imports_neither_what_builds_on_it_nor_torch(path: Path) -> None:
    allowed = {"__future__", "mypy_extensions", "numpy", "unified_tree", *sys.stdlib_module_names}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names = [node.module or ""]
        for name in names:
            assert name.split(".")[0] in allowed, name
            assert not name.startswith(("unified_tree.components", "unified_tree.controllers")), name


@pytest.mark.parametrize("path", sorted((ROOT / "components").rglob("*.py")), ids=relative)
def test_the_components_do_not_import_the_controllers(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        assert not any(name.startswith("unified_tree.controllers") for name in names)


def test_only_a_lease_writes_a_lease() -> None:
    for path in LIBRARY:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
            for target in targets:
                if isinstance(target, ast.Attribute):
                    owner = ast.unparse(target.value)
                    assert not (owner == "lease" or owner.endswith(".lease")), f"{relative(path)}: {ast.unparse(node)}"


@pytest.mark.parametrize("modules", ["unified_tree", "unified_tree.components", "unified_tree.controllers"])
def test_bookkeeping_needs_no_torch(modules: str) -> None:
    heavy = "{'torch', 'transformers', 'matplotlib', 'rich', 'click'}"
    code = f"import sys, {modules}; assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_exports_what_it_lists_and_says_what_is_there(name: str) -> None:
    package = importlib.import_module(name)
    listed = getattr(package, "__all__", [])
    assert len(listed) == len(set(listed))
    assert all(hasattr(package, each) for each in listed)
    assert len((package.__doc__ or "").split()) > 20, "where does one start?"


def test_documentation_imports_from_packages() -> None:
    """A reader of the documentation never has to know which module of a package defines a name."""
    texts = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.py"), ROOT / "README.md"]
    imported = {
        (relative(path), module, name.split(" as ")[0].strip(" ()"))
        for path in texts
        for module, names in re.findall(
            r"^from (unified_tree[\w.]*) import ([^#\n]+)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
        for name in names.split(",")
    }
    assert imported
    for path, module, name in sorted(imported):
        assert module in PACKAGES, f"{path}: {module}"
        assert name in importlib.import_module(module).__all__, f"{path}: {module}.{name}"


@pytest.mark.parametrize("path", [path for path in LIBRARY if ">>> " in path.read_text(encoding="utf-8")], ids=relative)
def test_examples_in_docstrings_run(path: Path) -> None:
    result = doctest.testmod(module_of(path), optionflags=doctest.ELLIPSIS)
    assert result.attempted
    assert not result.failed


def test_the_examples_are_found() -> None:
    documented = {path.stem for path in LIBRARY if ">>> " in path.read_text(encoding="utf-8")}
    assert {"tree", "keys", "prefix_cache"} <= documented
