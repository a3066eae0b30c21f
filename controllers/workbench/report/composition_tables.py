"""Tables about compositions: the built-in models, and how a budget is split between the pools of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.pools.host_layout import host_page_bytes
from unified_tree.controllers.workbench.report.text_table import print_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from unified_tree.components import Composition

GIB = 1 << 30


def print_models(console: Console, compositions: Sequence[Composition]) -> None:
    """One line a component: what a prefix needs of it, and its bytes on one rank."""
    lines: list[tuple[str, ...]] = []
    for composition in compositions:
        lines.append((composition.name, "", f"{composition.page_size}", "", "", ""))
        per_token, per_state = composition.bytes_per_token(), composition.bytes_per_state()
        for component in composition.components:
            name = component.name
            lines.append(
                (
                    f"  {name}",
                    component.coverage.describe() + ("" if component.required else " (optional)"),
                    "",
                    f"{per_token[name]:,.6g}" if name in per_token else "",
                    f"{per_state[name]:,}" if name in per_state else "",
                    f"pages of {component.shares}" if component.shares else "pages of its own",
                )
            )
    headings = ("model\n  component", "a prefix needs", "tokens\na page", "bytes\na token", "bytes\na state", "kept in")
    print_table(console, headings, lines, left=(0, 1, 5))


def print_device_split(console: Console, composition: Composition, device_bytes: int, page_counts: Mapping[str, int]) -> None:
    """How the device budget is split, and what the other pools take from the path's."""
    page_bytes = composition.pool_page_bytes()
    lines = []
    for component in composition.components:
        if component.shares is not None:
            lines.append((component.name, component.coverage.describe(), "", "", "", f"in the pages of {component.shares}"))
            continue
        pages = page_counts[component.name]
        size_bytes = pages * page_bytes[component.name]
        figures = (f"{pages:,}", f"{size_bytes / GIB:.2f}", f"{100 * size_bytes / device_bytes:.1f} %")
        lines.append(
            (
                component.name,
                component.coverage.describe(),
                *figures,
                component.coverage.describe_pages(pages, composition.page_size),
            )
        )
    headings = ("pool", "a prefix needs", "pages", "GiB", "share", "holds")
    print_table(console, headings, lines, title="Split of the device's budget", left=(0, 1, 5))
    names = [c.name for c in composition.components if c.shares is None and c.coverage.is_path]
    tokens = min(page_counts[name] for name in names) * composition.page_size
    alone = device_bytes // max(1, sum(page_bytes[name] for name in names)) * composition.page_size
    if tokens < alone and len(names) < len(page_counts):
        console.print(
            f"The other pools take {100 * (1 - tokens / alone):.1f} % of what {', '.join(names)} could hold with the whole "
            f"budget: {tokens:,} of {alone:,} tokens are left."
        )
    console.print()


def print_host_split(console: Console, composition: Composition, page_counts: Mapping[str, int]) -> None:
    """How the host's memory is split."""
    lines = []
    for component in composition.components:
        pages = page_counts[component.name]
        size_gib = pages * host_page_bytes(component.page_bytes) / GIB
        lines.append(
            (component.name, f"{pages:,}", f"{size_gib:.2f}", component.coverage.describe_pages(pages, composition.page_size))
        )
    print_table(console, ("pool", "pages", "GiB", "holds"), lines, title="Split of the host's memory", left=(0, 3))
    console.print()
