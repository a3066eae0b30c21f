"""How a model is served: page size, tensor-parallel ranks, and the bytes of each kind of element."""

from __future__ import annotations

from dataclasses import dataclass

from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.draft import DraftModel
from unified_tree.declare.page_format import WHOLE, Shard
from unified_tree.terms.errors import ConfigurationError

DTYPES = {
    **{
        name: name
        for name in (
            "float64",
            "float32",
            "bfloat16",
            "float16",
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e4m3fnuz",
            "float8_e5m2fnuz",
            "int8",
            "uint8",
        )
    },
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
"""Torch's name of a dtype, by the names in use; plain `fp8` is e4m3, as serving engines take it. Scales that a quantized cache
keeps a token are parts of their own, which the readers here do not state: `Composition.with_formats` does. Constant ones belong
to the weights version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The choices of a deployment that a `config.json` does not make.

    Attributes:
        name: the model's name, for reports.
        page_size: tokens a page; None for the family's default.
        ranks: tensor-parallel ranks.
        rank: this rank, from 0; None if not stated.
        kv_dtype: of keys, values, latents and index keys; torch's name, as all dtypes here.
        conv_dtype: of a convolution's state.
        state_dtype: of a recurrent or overlap state; None for what the model's own code keeps.
        draft: the draft model, or a number of draft layers shaped like the model's own.
    """

    name: str
    page_size: int | None = None
    ranks: int = 1
    rank: int | None = None
    kv_dtype: str = "bfloat16"
    conv_dtype: str = "bfloat16"
    state_dtype: str | None = None
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

    def shard(self, parts: int) -> Shard | None:
        """This rank's shard of state that the ranks divide into so many different parts; None if the rank was not stated.

        With more ranks than heads, neighbouring ranks keep the same one, as serving engines place them.
        """
        if parts == 1:
            return WHOLE
        return None if self.rank is None else Shard(self.rank * parts // self.ranks, parts)


def dtype_name(dtype: str, parameter: str) -> str:
    """Torch's name of `dtype`, a name such as `bfloat16`, `torch.float32` or `fp8_e4m3`.

    Raises ConfigurationError for an unknown name.
    """
    name = DTYPES.get(dtype.removeprefix("torch.")) if isinstance(dtype, str) else None
    if name is None:
        raise ConfigurationError(f"{parameter}: {dtype!r} is none of {', '.join(DTYPES)}")
    return name
