"""The built-in models as a table: what a token costs in each of their components."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_tree.component import Component
    from unified_tree.components import Composition


def model_table(compositions: Sequence[Composition]) -> Table:
    """One line a component: what it covers, and its bytes on one rank."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("model", "page", "component", "a prefix needs", "bytes a token", "bytes a state", "kept in"):
        table.add_column(name, justify="right" if name in ("page", "bytes a token", "bytes a state") else "left")
    for composition in compositions:
        per_token, per_state = composition.bytes_per_token(), composition.bytes_per_state()
        for i, component in enumerate(composition.components):
            table.add_row(
                composition.name if i == 0 else "",
                str(composition.page_size) if i == 0 else "",
                component.name,
                _needs(component),
                f"{per_token[component.name]:,.6g}" if component.name in per_token else "",
                f"{per_state[component.name]:,}" if component.name in per_state else "",
                f"pages of {component.shares}" if component.shares else "pages of its own",
            )
    return table


def _needs(component: Component) -> str:
    needs = component.coverage.describe()
    return needs if component.required else f"{needs} (optional)"
