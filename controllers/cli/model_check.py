"""`unified-tree sglang-check`: what SGLang with this backend would cache for a model, found without SGLang."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from unified_tree import Path, Point, Trailing
from unified_tree.components import composition_for, from_hf_config
from unified_tree.components.composition_file import is_description, read_file
from unified_tree.components.kinds import full, is_token_path
from unified_tree.components.models import MODEL_FACTS
from unified_tree.controllers.adapters.sglang.refusals import Served
from unified_tree.controllers.adapters.sglang.settings import HostSettings
from unified_tree.controllers.workbench.report.text_table import print_models, print_table, report_console
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from unified_tree.components import Composition

GIB = 1 << 30
WINDOWS_APART = frozenset(
    [
        "beam",
        "deepseek_v4",
        "deepseek_v41",
        "deepseek_v41_text",
        "dots3_note_text",
        "gemma4_text",
        "gemma4_unified_text",
        "gpt_oss",
        "granite_swa",
        "granitemoe_swa",
        "inkling_text",
        "laguna",
        "mellum",
        "mimo_v2_flash",
        "muse_glimmer_text",
        "step3p5",
    ]
)
"""Types whose windows SGLang 0.5.23 keeps in a pool of their own. It keeps those of other types as full attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCheck:
    """A model, and how it would be served.

    Attributes:
        composition: the kinds of state that SGLang keeps for it.
        served: the rest that decides whether the backend serves it.
        swa_full_tokens_ratio: SGLang's option: window tokens for each full-attention token.
        mamba_full_memory_ratio: SGLang's option: bytes of states for each byte of the other pools.
    """

    composition: Composition
    served: Served
    swa_full_tokens_ratio: float = 0.8
    mamba_full_memory_ratio: float = 0.9

    @classmethod
    def of(
        cls,
        model_path: str,
        *,
        page_size: int = 1,
        tensor_parallel: int = 1,
        kv_dtype: str | None = None,
        is_eagle: bool = False,
        has_extra_buffer: bool = False,
        swa_full_tokens_ratio: float = 0.8,
        mamba_full_memory_ratio: float = 0.9,
        ignore: Sequence[str] = (),
    ) -> ModelCheck:
        """Read the model that `model_path` names: what `composition_for` takes.

        A file that describes layers says what SGLang keeps, so its windows stay windows. Raises ConfigurationError for a model
        that cannot be read for certain.
        """
        choices: dict[str, Any] = {"tensor_parallel": tensor_parallel, "kv_dtype": kv_dtype, "ignore": ignore}
        try:
            composition = _read(model_path, {**choices, "page_size": page_size})
        except ConfigurationError:  # of compressed KV, say, which has a page size of its own and is refused below
            composition = _read(model_path, choices)
        served = Served(
            has_full_attention=any(isinstance(c.coverage, Path) and not is_token_path(c) for c in composition.components),
            has_states=any(isinstance(c.coverage, Point) for c in composition.components),
            other_state=tuple(c.name for c in composition.components if c.tokens_per_slot != 1 or c.name == "overlap"),
            is_eagle=is_eagle,
            has_extra_buffer=has_extra_buffer,
            page_size=page_size,
        )
        return cls(
            composition=composition,
            served=served,
            swa_full_tokens_ratio=swa_full_tokens_ratio,
            mamba_full_memory_ratio=mamba_full_memory_ratio,
        )

    def device_pages(self, device_bytes: int) -> dict[str, int]:
        """Pages, and states, that fit in a device budget when it is divided as SGLang divides it."""
        sizes = self.composition.pool_page_bytes()
        owners = [c for c in self.composition.components if c.shares is None]
        ratio = self.mamba_full_memory_ratio if self.served.has_states else 0.0
        token_bytes = sum(
            sizes[c.name] * (self.swa_full_tokens_ratio if isinstance(c.coverage, Trailing) else 1.0)
            for c in owners
            if not isinstance(c.coverage, Point)
        )
        pages = int(device_bytes / (1 + ratio) / token_bytes) if token_bytes else 0
        state_bytes = device_bytes * ratio / (1 + ratio)
        found: dict[str, int] = {}
        for c in owners:
            if isinstance(c.coverage, Point):
                found[c.name] = int(state_bytes / sizes[c.name])
            else:
                found[c.name] = int(pages * self.swa_full_tokens_ratio) if isinstance(c.coverage, Trailing) else pages
        return found

    def host_pages(self, host_bytes: int, device_pages: Mapping[str, int]) -> dict[str, int]:
        """Pages, and states, that fit in the host's memory, which the backend divides as the device's is."""
        if not any(device_pages.values()):
            raise ConfigurationError("not one page fits in the device budget; raise --device-gib")
        return HostSettings(gib=host_bytes / GIB).page_counts(device_pages, self.composition.pool_page_bytes())


def _read(model: str, choices: Mapping[str, Any]) -> Composition:
    """The composition of a model by name or file, with windows kept as full attention where SGLang does so."""
    if model in MODEL_FACTS:
        return _cached(from_hf_config(MODEL_FACTS[model], **choices))
    if not os.path.exists(model) or is_description(read_file(model)):
        return composition_for(model, **choices)
    return _cached(from_hf_config(model, **choices))


def _cached(composition: Composition) -> Composition:
    if composition.name in WINDOWS_APART or not any(isinstance(c.coverage, Trailing) for c in composition.components):
        return composition
    windows = sum(c.page_bytes for c in composition.components if isinstance(c.coverage, Trailing))
    path = next(c for c in composition.components if isinstance(c.coverage, Path) and c.shares is None)
    if is_token_path(path):  # every layer has a window
        widened = full(page_size=composition.page_size, bytes_per_token=windows // composition.page_size)
    else:
        widened = replace(path, page_bytes=path.page_bytes + windows, format=None)
    kept = [widened if c is path else c for c in composition.components if not isinstance(c.coverage, Trailing)]
    note = "SGLang keeps the windows of this model as full attention."
    return replace(composition, components=tuple(kept), attention_costs=(), notes=(*composition.notes, note))


def print_check(check: ModelCheck, *, device_gib: float | None, host_gib: float | None) -> int:
    """Print what would be cached, how much fits and what is refused; 1 if anything is refused, else 0."""
    console = report_console()
    composition = check.composition
    print_models(console, [composition])
    for note in composition.notes:
        console.print(note)
    console.print()
    reasons = check.served.refusals()
    if reasons:
        print(f"refused: --radix-cache-backend unified_tree does not support {'; nor '.join(reasons)}.", file=sys.stderr)
        return 1
    if device_gib is not None:
        device = check.device_pages(int(device_gib * GIB))
        _print_pages(console, composition, device, f"{device_gib:g} GiB on device")
        if check.served.is_eagle:
            console.print("The KV of a draft is not counted.\n")
        if host_gib is not None:
            _print_pages(console, composition, check.host_pages(int(host_gib * GIB), device), f"{host_gib:g} GiB on host")
    console.print("Served with --radix-cache-backend unified_tree.")
    return 0


def _print_pages(console: Console, composition: Composition, pages: Mapping[str, int], title: str) -> None:
    sizes = composition.pool_page_bytes()
    lines = []
    for c in composition.components:
        if c.name in pages:
            is_state = isinstance(c.coverage, Point)
            count = pages[c.name] * (1 if is_state else composition.page_size)
            size_gib = pages[c.name] * sizes[c.name] / GIB
            lines.append((c.name, f"{count:,} {'states' if is_state else 'tokens'}", f"{size_gib:.2f}"))
    print_table(console, ("pool", "holds", "GiB"), lines, title=title, left=(0,))
    console.print()
