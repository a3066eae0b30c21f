"""The folders, the packages, and the names they are imported under."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PROGRAM_S

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "controllers/inspector/page"
LINKED = {"components": "unified_tree.components", "controllers": "unified_tree.controllers"}


def packages() -> dict[str, Path]:
    """With their folders: those that have an `__init__`."""
    found = {}
    for name, top in (("unified_tree", ROOT / "unified_tree"), *((name, ROOT / folder) for folder, name in LINKED.items())):
        for init in top.rglob("__init__.py"):
            if not (init.parent.parent == ROOT / "unified_tree" and init.parent.is_symlink()):
                found[".".join([name, *init.parent.relative_to(top).parts])] = init.parent
    return found


def modules() -> set[str]:
    """Where each module belongs in an installation."""
    return {
        f"{package.replace('.', '/')}/{file.name}" for package, folder in packages().items() for file in folder.glob("*.py")
    }


def test_no_module_lies_outside_a_package() -> None:
    for top in ("unified_tree", *LINKED):
        for file in (ROOT / top).rglob("*.py"):
            assert (file.parent / "__init__.py").is_file(), file


def test_what_is_deployed_beside_the_library_is_data() -> None:
    """Dashboards and alerts: no package, and nothing that runs."""
    files = sorted(str(path.relative_to(ROOT / "deploy")) for path in (ROOT / "deploy").rglob("*") if path.is_file())
    assert files == ["grafana/unified_tree.json", "prometheus/unified_tree.rules.yml"]


@pytest.mark.parametrize("folder", LINKED)
def test_the_links_resolve(folder: str) -> None:
    link = ROOT / "unified_tree" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder
    assert link.resolve() == (ROOT / folder).resolve()


@pytest.mark.parametrize("folder", LINKED)
def test_a_folder_refuses_another_name(folder: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", f"import {folder}"], cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_S, check=False
    )
    assert result.returncode
    assert f"import this package as {LINKED[folder]}, not as {folder}" in result.stderr


def test_a_wheel_holds_every_module_and_nothing_else(tmp_path: Path) -> None:
    copy = tmp_path / "source"  # building writes into the source folder
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "unified_tree", *LINKED):
        subprocess.run(["cp", "-a", str(ROOT / name), str(copy)], check=True)
    build = "import setuptools.build_meta as backend, sys; print(backend.build_wheel(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)],
        cwd=copy,
        env={**os.environ, "UNIFIED_TREE_PURE": "1"},
        check=True,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    [wheel] = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name for name in names if not name.endswith((".so", ".pyd"))} == {
        *modules(),
        *(f"unified_tree/controllers/inspector/page/{file.name}" for file in PAGE.iterdir()),
        "unified_tree/components/class_defaults.json",
        "unified_tree/components/model_facts.json",
        "unified_tree/py.typed",
        "unified_tree/native/key_bytes.pyi",
        "unified_tree/native/monotonic.pyi",
        "unified_tree/native/page_flags.pyi",
        "unified_tree/native/untracked_tuples.pyi",
        "unified_tree/controllers/pools/row_copy.pyi",
        "unified_tree/controllers/storage/file/bucket_scan.pyi",
    }


def imports_at_run_time(path: Path) -> Iterator[str]:
    """What a module imports when it runs, imports within functions included; those for types alone are not."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        pending.extend(ast.iter_child_nodes(node))


def test_no_module_needs_itself() -> None:
    """Packages' own `__init__` gather names and are not looked through."""
    paths = {
        f"{package}.{file.stem}": file
        for package, folder in packages().items()
        for file in folder.glob("*.py")
        if file.stem != "__init__"
    }
    needs = {
        name: {found for found in (*given, *(each.rpartition(".")[0] for each in given)) if found in paths}
        for name, given in ((name, list(imports_at_run_time(path))) for name, path in paths.items())
    }
    done: set[str] = set()
    while len(done) < len(needs):
        ready = {name for name in needs if name not in done and needs[name] <= done}
        assert ready, f"these modules need one another: {sorted(set(needs) - done)}"
        done |= ready
