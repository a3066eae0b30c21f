"""How a model is served: page size, tensor-parallel ranks, and the bytes of each kind of element."""

from __future__ import annotations

from dataclasses import dataclass

from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.draft import DraftModel
from unified_tree.errors import ConfigurationError

DTYPE_BYTES = {
    "float32": 4,
    "fp32": 4,
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "fp16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
}
"""Bytes of one element, by the names in use. Scales that a quantized cache keeps besides are not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The choices of a deployment that a `config.json` does not make.

    Attributes:
        name: the model's name, for reports.
        page_size: tokens a page; None for the family's default.
        ranks: tensor-parallel ranks.
        kv_bytes: bytes of one element of keys, values, latents and index keys.
        conv_bytes: bytes of one element of a convolution's state.
        state_bytes: bytes of one element of a recurrent or overlap state; None for what the model's own code keeps.
        draft: the draft model, or a number of draft layers shaped like the model's own.
    """

    name: str
    page_size: int | None = None
    ranks: int = 1
    kv_bytes: int = 2
    conv_bytes: int = 2
    state_bytes: int | None = None
    draft: DraftModel | int = 0

    def divided(self, fields: ConfigFields, field: str, count: int) -> int:
        """One rank's part of `count` heads, which must divide evenly; raises ConfigurationError naming `field`."""
        if count % self.ranks:
            raise fields.error(field, f"gives {count}, which does not divide over {self.ranks} tensor-parallel ranks")
        return count // self.ranks

    def divided_or_replicated(self, fields: ConfigFields, field: str, count: int) -> int:
        """One rank's part of `count` heads; with more ranks than heads each head is kept by several ranks."""
        if count < self.ranks and self.ranks % count == 0:
            return 1
        return self.divided(fields, field, count)


def element_bytes(dtype: str | int, parameter: str) -> int:
    """Bytes of one element of `dtype`, a name such as `bfloat16`, `torch.float32` or `fp8_e4m3`, or a number of bytes."""
    if type(dtype) is int and dtype > 0:
        return dtype
    if isinstance(dtype, str) and dtype.removeprefix("torch.") in DTYPE_BYTES:
        return DTYPE_BYTES[dtype.removeprefix("torch.")]
    raise ConfigurationError(f"{parameter}: {dtype!r} is neither a number of bytes nor one of {', '.join(DTYPE_BYTES)}")
