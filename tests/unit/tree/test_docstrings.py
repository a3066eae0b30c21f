"""What `help` says: compiled as interpreted, every docstring of the source is there."""

from __future__ import annotations

import ast
import importlib
import inspect
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import unified_tree
from unified_tree import AdmissionPolicy, EvictionPolicy

ROOT = Path(__file__).parents[3]
with pytest.MonkeyPatch.context() as patch:
    patch.setattr("setuptools.setup", lambda **_: None)
    patch.chdir(ROOT)
    HOT = runpy.run_path(str(ROOT / "setup.py"))["HOT"]


def documented(found: Any, node: ast.Module | ast.ClassDef | ast.FunctionDef) -> Iterator[tuple[str, str, str]]:
    """Names, what the source says of them, and what `help` does."""
    name = "the module" if isinstance(node, ast.Module) else node.name
    yield name, ast.get_docstring(node) or "", found.__doc__ or ""
    for inner in [] if isinstance(node, ast.FunctionDef) else node.body:
        if isinstance(inner, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(inner):
            yield from documented(getattr(found, inner.name), inner)


@pytest.mark.parametrize("name", HOT)
def test_docstrings_survive_compiling(name: str) -> None:
    module = importlib.import_module(f"unified_tree.{name.replace('/', '.')}")
    source = ast.parse((ROOT / "unified_tree" / f"{name}.py").read_text(encoding="utf-8"))
    lost = [name for name, text, shown in documented(module, source) if text not in inspect.cleandoc(shown)]
    assert not lost


@pytest.mark.parametrize("name", unified_tree.__all__)
def test_public_classes_say_what_they_are(name: str) -> None:
    public = getattr(unified_tree, name)
    if inspect.isclass(public):
        assert len(inspect.getdoc(public) or "") > 20


def test_a_policys_protocol_can_be_read() -> None:
    for protocol in (EvictionPolicy, AdmissionPolicy):
        for name in ("touched", "rank", "went", "next_victim", "explain", "arrived", "grew", "saved"):
            assert inspect.getdoc(getattr(protocol, name))
    assert "policy_state" in (inspect.getdoc(EvictionPolicy) or "")
    assert "duplicate" in (inspect.getdoc(AdmissionPolicy.admits) or "")
