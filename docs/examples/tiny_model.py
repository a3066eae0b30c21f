"""A model of one's own: full attention on every other layer, a window on the rest, written down by hand.

A package offers it as `tiny = "tiny_model:tiny"` in the entry-point group `unified_tree.models`; without a package it is
`composition_for("tiny_model:tiny")`, and `--model tiny_model:tiny` on the command line, run in this folder.
"""

from __future__ import annotations

from typing import Any

from unified_tree import WHOLE, Component, ConfigurationError, PageFormat, Part, Path, Trailing
from unified_tree.components import Composition

WINDOW = 128


def tiny(*, page_size: int | None = None, tensor_parallel: int = 1, kv_dtype: str = "bfloat16", **_: Any) -> Composition:
    """Four layers of two KV heads; options that it does not name make no difference to it."""
    if tensor_parallel != 1:
        raise ConfigurationError(f"tiny: fits on one rank, so tensor_parallel must be 1, not {tensor_parallel}")
    page_size = 16 if page_size is None else page_size
    parts = (Part("k", kv_dtype, (2, 64)), Part("v", kv_dtype, (2, 64)))
    layers = {"full": (0, 2), "swa": (1, 3)}
    formats = {
        name: PageFormat(component=name, layer_ids=ids, parts=parts, slots_per_page=page_size, shard=WHOLE)
        for name, ids in layers.items()
    }
    components = (
        Component(name="full", coverage=Path(), flops_per_token=4e6),
        Component(name="swa", coverage=Trailing(WINDOW - 1), flops_per_token=4e6),
    )
    return Composition(name="tiny", page_size=page_size, components=components).with_formats(formats)
