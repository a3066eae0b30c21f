"""The README and every page of docs/: their code runs and prints what it says, their links lead somewhere, the site builds.

A page's ```python blocks run one after the other in a namespace of their own. A `print` that starts a line says what it prints
in the comment behind it or in the comment lines below it. A block under `<!-- not run: why -->` needs what is not here (a
server, say): only its imports run.
"""

from __future__ import annotations

import ast
import contextlib
import io
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import patient_checks
import pytest
from waiting import PROGRAM_S

from unified_tree.components import model_names
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.storage_tier import PrefetchPolicy

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
EXAMPLES = ROOT / "docs" / "examples"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(<!-- not run: .+? -->\n)?```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROMISE = re.compile(r"^ *print\(.*\)(?:  +# (.*))?\n((?: *# .*\n)*)", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)|(?:src|srcset)=\"(?!https?:)([^\"]+)\"")
SNIPPET = re.compile(r'^--8<-- "([^"]+)"', re.MULTILINE)


class Block(NamedTuple):
    """One ```python block: its code, the line it starts at, and whether only its imports run."""

    code: str
    line: int
    imports_only: bool


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        code = found[2]
        named = SNIPPET.findall(code)
        if named:
            assert not SNIPPET.sub("", code).strip(), "a block that includes a file holds nothing else"
            code = "".join((ROOT / name).read_text(encoding="utf-8") for name in named)
        yield Block(code, text.count("\n", 0, found.start(2)), found[1] is not None)


def run(page: Path, block: Block, namespace: dict[str, object]) -> list[str]:
    """What the block prints. Line numbers in tracebacks are the page's."""
    tree = ast.parse("\n" * block.line + block.code, str(page))
    if block.imports_only:
        tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, str(page), "exec"), namespace)
    return printed.getvalue().splitlines()


def promises(block: Block) -> list[str]:
    """The lines that a block says it prints."""
    if block.imports_only:
        return []
    lines: list[str] = []
    for found in PROMISE.finditer(block.code):
        lines += [found[1]] if found[1] is not None else [line.strip().removeprefix("# ") for line in found[2].splitlines()]
    return lines


@pytest.fixture
def _examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A block may import a file that its page includes."""
    monkeypatch.syspath_prepend(EXAMPLES)
    yield
    for source in EXAMPLES.glob("*.py"):
        sys.modules.pop(source.stem, None)


@pytest.mark.usefixtures("_examples")
@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")], ids=relative)
def test_the_code_of_a_page_prints_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PrefetchPolicy, "patience_s", lambda *_: math.inf)  # no store is too slow for a page
    patient_checks.let_no_clause_be_too_slow(monkeypatch)
    patient_checks.let_no_copy_be_too_slow(monkeypatch)
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        printed = run(page, block, namespace)
        unseen = iter(printed)
        for promise in promises(block):
            assert promise in unseen, f"line {block.line}: {promise!r} is not among, or not in the order of, {printed}"


def test_promises_are_found_and_broken_ones_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)  # 2\nprint('a\\nb')\n# a\n# c\n```\n")
    [block] = blocks(page)
    assert promises(block) == ["2", "a", "c"]
    assert run(page, block, {}) == ["2", "a", "b"]
    assert sum(len(promises(block)) for page in PAGES for block in blocks(page)) > 30


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for found in LINK.finditer(text):
        target = found[1] or found[2]
        assert (page.parent / target).exists(), f"{target} is not there"
    for name in SNIPPET.findall(text):
        assert (ROOT / name).is_file(), f"{name} is not there"
    for command in re.findall(r"^make ([\w-]+)", text, re.MULTILINE):
        assert f"\n{command}:" in (ROOT / "Makefile").read_text()
    for call in re.findall(r"`cache\.(\w+)\(", text):
        assert hasattr(PrefixCache, call), f"PrefixCache has no {call}"


def test_the_readme_names_every_model() -> None:
    text = README.read_text(encoding="utf-8").split("## Models")[1]
    names = {name for name in model_names() if ":" not in name} - {"gpt-oss-120b"}
    assert [name for name in names if name not in text] == []


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the docs extra")
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],  # `--quiet` would hide the warnings
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (site / "reference" / "index.html").stat().st_size > 100_000, "the reference holds no docstrings"
