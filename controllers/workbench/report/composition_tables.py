"""Tables about compositions: the built-in models, and how a budget is split between the pools of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.components.equal_pages import EqualPages, equal_pages
from unified_tree.components.token_path import is_token_path
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


def print_model(console: Console, by_dtype: Mapping[str, Composition], vllm: Composition) -> None:
    """One model, read with several dtypes: its stack of layers, what a prefix needs, bytes, and where it can be resumed.

    `vllm` is the model as vLLM keeps it.
    """
    first = next(iter(by_dtype.values()))
    console.print(f"{first.name}: {stack_text(first)}")
    console.print()
    sizes = {label: {**each.bytes_per_token(), **each.bytes_per_state()} for label, each in by_dtype.items()}
    lines: list[tuple[str, ...]] = []
    for component in first.components:
        unit = "a state" if component.coverage.is_exact else "a token"
        needed = component.coverage.describe() + ("" if component.required else " (optional)")
        layers = "" if component.format is None else str(len(component.format.layer_ids))
        bytes_each = [f"{sizes[label].get(component.name, 0):,.6g}" for label in by_dtype]
        lines.append((component.name, needed, layers, *bytes_each, unit, component.shares or ""))
    headings = ("component", "a prefix needs", "layers", *(f"bytes\n{label}" for label in by_dtype), "of", "in the pages of")
    print_table(console, headings, lines, left=(0, 1, len(headings) - 2, len(headings) - 1))
    console.print()
    console.print(resume_text(first))
    pages = equal_pages(vllm)
    if pages is not None:
        console.print(equal_pages_text(pages))
    for note in first.notes:
        console.print(f"Note: {note}.")


def stack_text(composition: Composition) -> str:
    """A model's layers by the components that keep something of them, runs counted.

    >>> from unified_tree.components import composition_for
    >>> stack_text(composition_for("gemma-3-27b"))
    '62 layers: 10 x (5 swa, 1 full), 2 swa'
    """
    kept: dict[int, list[str]] = {}
    for component in composition.components:
        if component.format is not None and not is_token_path(component):
            for layer in component.format.layer_ids:
                kept.setdefault(layer, []).append(component.name)
    if not kept:
        return "no layers are stated"
    kinds = ["+".join(kept.get(layer, ["nothing"])) for layer in range(max(kept) + 1)]
    runs: list[tuple[int, str]] = []
    for kind in kinds:
        count = runs.pop()[0] if runs and runs[-1][1] == kind else 0
        runs.append((count + 1, kind))
    pieces, at = [], 0
    while at < len(runs):
        period, times = max(
            ((period, _times(runs, at, period)) for period in range(1, 9)), key=lambda each: each[0] * (each[1] - 1)
        )
        group = ", ".join(f"{count} {kind}" for count, kind in runs[at : at + (period if times > 1 else 1)])
        pieces.append(f"{times} x ({group})" if times > 1 else group)
        at += period * times if times > 1 else 1
    return f"{len(kinds)} layers: {', '.join(pieces)}"


def _times(runs: Sequence[tuple[int, str]], at: int, period: int) -> int:
    """How often the next `period` runs stand there one after the other."""
    times, pattern = 1, runs[at : at + period]
    while len(pattern) == period and runs[at + times * period : at + (times + 1) * period] == pattern:
        times += 1
    return times


def resume_text(composition: Composition) -> str:
    """Where a prompt can be resumed, in a sentence."""
    states = [c for c in composition.components if c.required and c.coverage.is_exact]
    grid = max((c.save_grid_tokens for c in states), default=composition.page_size)
    text = f"A prompt resumes at multiples of {composition.page_size:,} tokens"
    if states:
        text = f"A prompt resumes where a state was saved, at multiples of {grid:,} tokens"
    rebuild = composition.rebuild_tokens
    if rebuild:
        text += f"; a window that is missing is rebuilt from the last {rebuild:,}"
    return text + "."


def equal_pages_text(pages: EqualPages) -> str:
    """vLLM's pages of a model with states, in a sentence."""
    return (
        f"vLLM makes blocks of {pages.block_tokens:,} tokens, whose {pages.page_bytes:,} bytes in a layer are also a state's "
        f"page; the states of a boundary take {pages.boundary_bytes:,} bytes, {pages.padding_share:.1%} of them padding."
    )


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
