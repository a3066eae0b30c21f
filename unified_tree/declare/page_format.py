"""What one page of a component holds: which layers, which tensors, how many slots, which shard.

A page is layers x parts x slots of *rows*, a row being one part's tensor for one slot. Everything that moves or stores pages
counts in these units, so a new kind of state is a new format and no new code. Nothing here needs torch.

A composition declares the formats, and pools, stores and linkers read them from there. A second declaration elsewhere could
differ, and then different bytes would pass for the same page.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

ITEM_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}
"""Bytes of one element, by torch's name of the dtype."""


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor a slot and layer: the keys of a token, its values, a state.

    Attributes:
        name: unique in its format, e.g. `k`, `v`, `latent`, `conv`, `ssm`.
        dtype: a name in `ITEM_BYTES`.
        shape: of one slot in one layer, positive sizes; `(heads, dim)` for keys.

    >>> Part("k", "bfloat16", (8, 128)).row_bytes
    2048
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if type(self.name) is not str or not self.name:
            raise ConfigurationError(f"a part's name must be a non-empty string, not {repr_of(self.name)}")
        if type(self.dtype) is not str or self.dtype not in ITEM_BYTES:
            raise ConfigurationError(
                f"{self.name}: dtype {repr_of(self.dtype)} is not known; known are {', '.join(ITEM_BYTES)}"
            )
        if type(self.shape) is not tuple or not self.shape or any(not _is_positive(size) for size in self.shape):
            raise ConfigurationError(f"{self.name}: shape must be a tuple of positive integers, not {repr_of(self.shape)}")

    @property
    def row_bytes(self) -> int:
        """Bytes of one slot in one layer."""
        return ITEM_BYTES[self.dtype] * prod(self.shape)

    @property
    def word_bytes(self) -> int:
        """The widest of 8, 4, 2, 1 bytes that divides a row: the unit in which rows are copied. At least the item's size."""
        return min(8, self.row_bytes & -self.row_bytes)


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of the state a page holds, where tensor parallelism divides it: part `index` of `count`.

    Ranks that keep the same heads have the same shard. Part 0 of 1 is all of the state, kept by a single rank or replicated.

    Raises ConfigurationError for an index outside `0..count - 1`.

    >>> Shard(1, 8)
    Shard(index=1, count=8)
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if type(self.index) is not int or type(self.count) is not int or not 0 <= self.index < self.count:
            raise ConfigurationError(
                f"a shard is part 0 … count - 1 of a positive count, not {repr_of(self.index)} of {repr_of(self.count)}"
            )


WHOLE = Shard(0, 1)
"""All of the state: of a model on one rank, and of state that is the same on every rank (the latents of MLA)."""


@dataclass(frozen=True, slots=True)
class ContextShard:
    """Which slots of every page a rank keeps, where context parallelism divides them.

    Runs of `interleave` slots go to the ranks in turn: slot `s` of a page lies on rank `s // interleave % count`. So one page
    of the tree is a page on each of the ranks, all under the same page id, and each holds its part of the slots. With
    `interleave=1` token `i` lies on rank `i % count`: the default of decode context parallelism in vLLM and in SGLang.

    Raises ConfigurationError for an index outside `0..count - 1`, for an interleave of zero or below, and for one of a single
    rank, which keeps every slot in any case.

    >>> ContextShard(1, 2, 2).slots(8)
    (2, 3, 6, 7)
    """

    index: int
    count: int
    interleave: int = 1

    def __post_init__(self) -> None:
        if type(self.index) is not int or type(self.count) is not int or not 0 <= self.index < self.count:
            raise ConfigurationError(
                f"a context shard is part 0 … count - 1 of a positive count, not {repr_of(self.index)} of {repr_of(self.count)}"
            )
        if type(self.interleave) is not int or self.interleave < 1 or self.interleave > 1 == self.count:
            raise ConfigurationError(
                "interleave must be a positive number of slots, 1 for a single rank, "
                f"not {repr_of(self.interleave)} of {self.count}"
            )

    def slots(self, page_slots: int) -> tuple[int, ...]:
        """Which of a page's slots this rank keeps, in the order in which they lie in its page. Cost: O(page_slots).

        Raises ConfigurationError unless every rank gets as many whole runs.
        """
        if page_slots % (self.count * self.interleave):
            raise ConfigurationError(
                f"a page of {page_slots} slots is no multiple of {self.count} ranks times runs of {self.interleave} slots"
            )
        return tuple(slot for slot in range(page_slots) if slot // self.interleave % self.count == self.index)


EVERY_SLOT = ContextShard(0, 1)
"""All slots of a page: without context parallelism, and of state that is the same on all of its ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFormat:
    """What one page of a component holds. Equal formats hold equal bytes, so pages can be copied between their pools.

    Attributes:
        component: the component's name.
        layer_ids: the *model's* layer numbers, ascending; full layers of a hybrid may be 3, 7, 11, …
        parts: the tensors of each slot and layer.
        slots_per_page: that this rank keeps: `page_size // tokens_per_slot`, divided by the ranks of `context`; 1 for states.
        shard: which part of the state; None where that is not stated, and then the pages can be kept on device and host but
            not in a store or by a linker, where other ranks would take them for theirs.
        context: which slots of a page those are; `EVERY_SLOT` without context parallelism.

    Raises ConfigurationError for a field that is not as described.
    """

    component: str
    layer_ids: tuple[int, ...]
    parts: tuple[Part, ...]
    slots_per_page: int
    shard: Shard | None = None
    context: ContextShard = EVERY_SLOT

    def __post_init__(self) -> None:
        if type(self.component) is not str or not self.component:
            raise ConfigurationError(f"a format's component must be a non-empty string, not {repr_of(self.component)}")
        ids = self.layer_ids
        if type(ids) is not tuple or not ids or any(type(i) is not int or i < 0 for i in ids) or list(ids) != sorted(set(ids)):
            raise ConfigurationError(
                f"{self.component}: layer_ids must be a tuple of ascending layer numbers, not {repr_of(ids)}"
            )
        if type(self.parts) is not tuple or not self.parts or any(type(part) is not Part for part in self.parts):
            raise ConfigurationError(f"{self.component}: parts must be a tuple of at least one Part, not {repr_of(self.parts)}")
        names = [part.name for part in self.parts]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"{self.component}: two parts have the same name among {', '.join(names)}")
        if not _is_positive(self.slots_per_page):
            raise ConfigurationError(
                f"{self.component}: slots_per_page must be a positive integer, not {repr_of(self.slots_per_page)}"
            )
        if self.shard is not None and type(self.shard) is not Shard:
            raise ConfigurationError(f"{self.component}: shard must be a Shard or None, not {repr_of(self.shard)}")
        if type(self.context) is not ContextShard:
            raise ConfigurationError(f"{self.component}: context must be a ContextShard, not {repr_of(self.context)}")
        if self.slots_per_page > 1 and self.slots_per_page % self.context.interleave:  # one slot: a page that is not divided
            raise ConfigurationError(
                f"{self.component}: {self.slots_per_page} slots on each rank are no whole runs of {self.context.interleave}"
            )

    def divided(self, context: ContextShard) -> PageFormat:
        """The same pages, with the slots that one of several context-parallel ranks keeps.

        Raises ConfigurationError for pages that are divided already, and for slots that do not divide among the ranks.
        """
        if self.context != EVERY_SLOT:
            raise ConfigurationError(f"{self.component}: its pages are divided among ranks already, as {self.context}")
        return replace(self, slots_per_page=len(context.slots(self.slots_per_page)), context=context)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page: all layers, all parts."""
        return len(self.layer_ids) * sum(self.block_bytes(part) for part in self.parts)

    def block_bytes(self, part: Part) -> int:
        """Bytes of one page in one layer and part, the largest piece that is contiguous on every tier."""
        return self.slots_per_page * part.row_bytes

    def part(self, name: str) -> Part:
        """The part of that name. Raises ConfigurationError if there is none."""
        for part in self.parts:
            if part.name == name:
                return part
        raise ConfigurationError(
            f"{self.component}: has no part {name!r}; its parts are {', '.join(p.name for p in self.parts)}"
        )

    def layer_index(self, layer_id: int) -> int:
        """Where a model layer stands in this format's tensors. Raises ConfigurationError for one not kept. Cost: O(layers)."""
        try:
            return self.layer_ids.index(layer_id)
        except ValueError:
            raise ConfigurationError(
                f"{self.component}: does not keep layer {layer_id!r}; it keeps {list(self.layer_ids)}"
            ) from None

    def layer_slice(self, layer_ids: tuple[int, ...]) -> slice:
        """Where some model layers stand in this format's tensors. Raises ConfigurationError for none, and for layers that are
        not kept or not neighbours among those that are. Cost: O(layers)."""
        first = self.layer_index(layer_ids[0]) if layer_ids else 0
        if not layer_ids or self.layer_ids[first : first + len(layer_ids)] != tuple(layer_ids):
            raise ConfigurationError(
                f"{self.component}: {list(layer_ids)} are no neighbours among the layers it keeps, {list(self.layer_ids)}"
            )
        return slice(first, first + len(layer_ids))


def _is_positive(value: object) -> bool:
    return type(value) is int and value > 0
