"""A description of a page's bytes. Pages of different formats have different keys, so none is mistaken for another.

A page's bytes depend on more than its own format: a state computed over KV in fp8 differs from one over KV in bf16, though both
are fp32. So the header of each component also describes the other required components.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.components import Composition
    from unified_tree.controllers.pools.host_layout import HostLayout
    from unified_tree.declare.component import Component
    from unified_tree.declare.page_format import PageFormat

VERSION = 2
"""Of this encoding and of the trailer behind a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatHeader:
    """The format of one component's pages.

    Attributes:
        model: a name unique to the model; the version of its weights is part of the key chain.
        format: component, layers, parts with dtypes and shapes, which slots of a page, and shard, which must be stated.
        layout: of the host pool; None for device pages, which a linker reads layer by layer.
        page_size: tokens a page.
        beside: a digest of the other components that a page's bytes depend on.

    Raises ConfigurationError for a format whose shard is not stated.
    """

    model: str
    format: PageFormat
    layout: HostLayout | None
    page_size: int
    beside: str = ""

    def __post_init__(self) -> None:
        reason = why_not_stated(self.format)
        if reason is not None:
            raise ConfigurationError(f"{self.format.component}: {reason}")

    def encode(self) -> bytes:
        """Canonical JSON, UTF-8: equal headers and only those have equal bytes."""
        shard = self.format.shard
        assert shard is not None
        fields = {
            "version": VERSION,
            "model": self.model,
            "component": self.format.component,
            **_content(self.format),
            "layout": "device" if self.layout is None else self.layout.value,
            "page_size": self.page_size,
            "shard": [shard.index, shard.count],
            "beside": self.beside,
        }
        if self.format.context.count > 1:
            fields["context"] = [self.format.context.index, *_division(self.format)]
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> bytes:
        """SHA-256 of `encode()`, 32 bytes. Cost: some microseconds; keep it."""
        return sha256(self.encode()).digest()


def format_headers(composition: Composition, layout: HostLayout | None) -> dict[str, FormatHeader]:
    """The headers of a composition's components, by name.

    Args:
        layout: of the host pools; None for device pages.

    Raises ConfigurationError, naming each component whose format is not stated in full, and how to state it.
    """
    reasons = {c.name: why_not_stated(c.format) for c in composition.components}
    wrong = [f"{name}: {reason}" for name, reason in reasons.items() if reason is not None]
    if wrong:
        raise ConfigurationError(
            f"pages of {composition.name} can be neither stored nor linked, for other servers could take them for theirs: "
            f"{'; '.join(wrong)}"
        )
    beside = _digest(composition.components)
    model = json.dumps([composition.name, composition.config_digest])
    return {
        c.name: FormatHeader(model=model, format=c.format, layout=layout, page_size=composition.page_size, beside=beside)
        for c in composition.components
        if c.format is not None
    }


def why_not_stated(page_format: PageFormat | None) -> str | None:
    """What this format does not state about a page's bytes; None if it is complete."""
    if page_format is None:
        return (
            "the size of its pages is known but not what they hold; state it as the component's `format`, or by "
            "`Composition.with_formats`"
        )
    if page_format.shard is None:
        return (
            "it is not stated which shard of the state its pages hold; give `composition_for` or `from_hf_config` the `rank`, "
            "or the format its `shard` (WHOLE on a single rank, and where the state is the same on every rank)"
        )
    return None


def _content(page_format: PageFormat) -> dict[str, object]:
    return {
        "layer_ids": page_format.layer_ids,
        "parts": [[part.name, part.dtype, part.shape] for part in page_format.parts],
        "slots_per_page": page_format.slots_per_page,
    }


def _division(page_format: PageFormat) -> list[int]:
    """How the slots of a page are divided among context-parallel ranks; nothing where each has all of them."""
    context = page_format.context
    return [context.count, context.interleave] if context.count > 1 else []


def _digest(components: Sequence[Component]) -> str:
    """A digest of the required components, equal on all ranks. An optional component, such as a draft, affects only its own
    pages.
    """
    described = [
        [c.name, repr(c.coverage), c.tokens_per_slot, _content(c.format), c.format.shard.count, *_division(c.format)]
        for c in components
        if c.required and c.format is not None and c.format.shard is not None
    ]
    return sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
