"""The rooms: which folders may import which, types included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from benches.machine import core
from benches.walk import KINDS, walks

ROOT = Path(__file__).parents[1]
TREE = (
    "terms",
    "inputs",
    "native",
    "declare",
    "nodes",
    "memory",
    "policies",
    "state",
    "lookup",
    "misses",
    "locks",
    "inserts",
    "transfers",
    "eviction",
    "checks",
    "build",
    "tree",
)
"""The rooms of the tree, and its modules beside them: each imports those before it alone."""
CONTROLLERS = (
    "shapes",
    "tensors",
    "ranks",
    "counters",
    "pages",
    "pools",
    "storage",
    "transfer_engines",
    "host",
    "weights",
    "storage_tier",
    "tiers",
    "cache",
    "prefix_linker",
    "debugging",
    "doctor",
    "inspector",
    "adapters",
    "testing",
    "workbench",
    "cli",
)
WORKBENCH = ("optimum", "traces", "recorder", "server", "runs", "report", "sizing")
CIRCLES = ({"nodes.children", "nodes.claim", "nodes.effect", "nodes.node"},)
"""Modules that refer to each other, for types alone. No other may, and none of these that need not any more."""


def modules() -> dict[str, Path]:
    """All modules of the library by their names in it; packages' own `__init__` by the package's."""
    found = {}
    for top in ("unified_tree", "components", "controllers"):
        for path in (ROOT / top).rglob("*.py"):  # follows no links
            parts = path.relative_to(ROOT / top).with_suffix("").parts
            name = (*(() if top == "unified_tree" else (top,)), *(parts[:-1] if parts[-1] == "__init__" else parts))
            found[".".join(name)] = path
    return found


MODULES = modules()


def imported(path: Path) -> Iterator[str]:
    """The modules of the library that a module names in an import, also for types and within functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "unified_tree":
            module = (node.module or "").removeprefix("unified_tree").removeprefix(".")
            for alias in node.names:
                inner = f"{module}.{alias.name}".removeprefix(".")
                yield inner if inner in MODULES else module
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("unified_tree.") for a in node.names if a.name.startswith("unified_tree."))


IMPORTS = {name: {each for each in imported(path) if each in MODULES} for name, path in MODULES.items()}


def upward(order: tuple[str, ...], prefix: str) -> list[str]:
    """Imports among rooms, the folders or modules behind a prefix, that do not go to an earlier one."""
    places = {room: at for at, room in enumerate(order)}
    wrong = []
    for name, given in IMPORTS.items():
        if not name.startswith(prefix) or name == prefix:
            continue
        here = name.removeprefix(prefix).split(".")[0]
        for each in given:
            there = each.removeprefix(prefix).split(".")[0]
            if not each.startswith(prefix) or not there or here == there:
                continue
            if places[there] > places[here]:
                wrong.append(f"{name} imports {each}")
    return wrong


@pytest.mark.parametrize(
    ("order", "prefix"),
    [(CONTROLLERS, "controllers."), (WORKBENCH, "controllers.workbench.")],
    ids=["controllers", "workbench"],
)
def test_rooms_import_only_earlier_ones(order: tuple[str, ...], prefix: str) -> None:
    rooms = {name.removeprefix(prefix).split(".")[0] for name in MODULES if name.startswith(prefix)}
    assert rooms == set(order)
    assert upward(order, prefix) == []


def test_rooms_of_the_tree_import_only_earlier_ones() -> None:
    rooms = {name.split(".")[0] for name in MODULES if name} - {"components", "controllers"}
    assert rooms == set(TREE)
    assert upward((*TREE, "components", "controllers"), "") == []


def test_the_table_of_policies_alone_imports_the_learned_order() -> None:
    learned = "policies.density"
    given = {name for name, each in IMPORTS.items() if any(one.startswith(learned) for one in each)}
    assert {name for name in given if not name.startswith(learned)} == {"policies.table"}


def circles() -> list[set[str]]:
    """Modules that import each other, types included: the components of the graph of imports (Tarjan, 1972)."""
    numbers: dict[str, int] = {}
    least: dict[str, int] = {}
    open_: list[str] = []
    found = []

    def visit(name: str) -> None:
        numbers[name] = least[name] = len(numbers)
        open_.append(name)
        for other in IMPORTS[name]:
            if other not in numbers:
                visit(other)
                least[name] = min(least[name], least[other])
            elif other in open_:
                least[name] = min(least[name], numbers[other])
        if least[name] == numbers[name]:
            at = open_.index(name)
            found.append(set(open_[at:]))
            del open_[at:]

    for name in IMPORTS:
        if name not in numbers:
            visit(name)
    return [each for each in found if len(each) > 1]


def test_only_known_modules_refer_to_each_other() -> None:
    assert sorted(map(sorted, circles())) == sorted(map(sorted, CIRCLES))


MOST = {
    "full": {"acquire": (24, 63), "commit": (30, 78), "evict": (23, 108)},
    "full + states": {"acquire": (30, 105), "commit": (34, 142), "evict": (26, 189)},
}
"""Modules that a call goes through, and changes of module. Let them become fewer."""


@pytest.mark.skipif(core() == "compiled", reason="compiled code calls no Python functions")
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_goes_through_no_more_modules_than_it_did(kind: str) -> None:
    for call, walk in walks(kind).items():
        modules, changes = MOST[kind][call]
        assert len(walk.modules) <= modules and walk.changes <= changes, (call, len(walk.modules), walk.changes)
