"""How a model is served: page size, tensor-parallel ranks, and the bytes of each kind of element."""

from __future__ import annotations

from dataclasses import dataclass

from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.draft import DraftModel
from unified_tree.declare.page_format import WHOLE, Part, Shard
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


FP8_DS_MLA = "fp8_ds_mla"
"""Of latents: 656 bytes a token of DeepSeek-V3.2, as vLLM names it and SGLang keeps it, too."""
FP8_SCALED = "fp8_scaled"
"""Of index keys: 132 bytes for 128 dims."""
SCALED = 128
"""Elements to one scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The choices of a deployment that a `config.json` does not make.

    Attributes:
        name: the model's name, for reports.
        page_size: tokens a page; None for the family's default.
        ranks: tensor-parallel ranks.
        rank: this rank, from 0; None if not stated.
        kv_dtype: of keys, values and latents; torch's name, as all dtypes here.
        conv_dtype: of a convolution's state.
        state_dtype: of a recurrent or overlap state; None for what the model's own code keeps.
        index_dtype: of index keys; None for what engines keep: fp8 with scales beside latents, else that of keys and values.
        draft: the draft model by the reach of its layers, or a number of draft layers shaped like the model's own.
    """

    name: str
    page_size: int | None = None
    ranks: int = 1
    rank: int | None = None
    kv_dtype: str = "bfloat16"
    conv_dtype: str = "bfloat16"
    state_dtype: str | None = None
    index_dtype: str | None = None
    draft: tuple[DraftModel, ...] | int = 0

    def latent_parts(self, fields: ConfigFields, latent_dim: int, rope_dim: int) -> tuple[Part, ...]:
        """A latent and a rope key of one token, as one vector; with the dtype `fp8_ds_mla` in the layout that engines keep for
        sparse MLA: the latent in fp8, one fp32 scale for 128 of it, the rope key in bf16."""
        if self.kv_dtype != FP8_DS_MLA:
            return (Part("latent", self.kv_dtype, (latent_dim + rope_dim,)),)
        if latent_dim % SCALED:
            raise fields.error("kv_lora_rank", f"must be a multiple of {SCALED} for kv_dtype {FP8_DS_MLA}, not {latent_dim}")
        parts = (Part("latent", "float8_e4m3fn", (latent_dim,)), Part("scale", "float32", (latent_dim // SCALED,)))
        return (*parts, Part("rope", "bfloat16", (rope_dim,))) if rope_dim else parts

    def index_parts(self, fields: ConfigFields, dim: int, *, usual: str | None = None) -> tuple[Part, ...]:
        """An indexer's key of one token. With the dtype `fp8_scaled`, as engines keep it: fp8, one fp32 scale for 128 of it.

        `usual` is the dtype in which engines keep the keys of such a model whatever that of keys and values is.
        """
        dtype = self.index_dtype
        if dtype is None:
            dtype = usual if usual is not None and dim % SCALED == 0 else self.kv_dtype
        dtype = "float8_e4m3fn" if dtype == FP8_DS_MLA else dtype
        if dtype != FP8_SCALED:
            return (Part("key", dtype, (dim,)),)
        if dim % SCALED:
            raise fields.error("index_head_dim", f"must be a multiple of {SCALED} for index_dtype {FP8_SCALED}, not {dim}")
        return Part("key", "float8_e4m3fn", (dim,)), Part("scale", "float32", (dim // SCALED,))

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


def kv_dtype_name(dtype: str) -> str:
    """As `dtype_name`, or `fp8_ds_mla`."""
    return dtype if dtype == FP8_DS_MLA else dtype_name(dtype, "kv_dtype")


def index_dtype_name(dtype: str) -> str:
    """As `dtype_name`, or `fp8_scaled`."""
    return dtype if dtype == FP8_SCALED else dtype_name(dtype, "index_dtype")
