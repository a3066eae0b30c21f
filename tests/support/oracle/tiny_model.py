"""A family's model, tiny and with random weights, on CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from unified_tree.components import Composition, from_hf_config


@dataclass(frozen=True, kw_only=True)
class Family:
    """How to make a tiny model of one architecture.

    Attributes:
        name: of the family, as people say it.
        config: fields of its configuration; `model_type` picks the class.
        page_size: tokens a page.
        chunk_tokens: chunk lengths of prefill to choose from.
        prompt_tokens: the longest prompt.
    """

    name: str
    config: Mapping[str, Any]
    page_size: int = 8
    chunk_tokens: tuple[int, ...] = (7, 16, 40)
    prompt_tokens: int = 90


DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Precision:
    """What a run computes in, and how far its logits may be from those without the cache."""

    dtype: str
    tolerance: float

    def context(self) -> AbstractContextManager[Any]:
        """To be active whenever a model of this precision runs."""
        return true_double() if self.dtype == "float64" else nullcontext()


SINGLE = Precision("float32", 1e-3)
DOUBLE = Precision("float64", 1e-9)


def tiny_config(family: Family) -> Any:
    """The family's configuration object."""
    from transformers import AutoConfig

    fields = dict(family.config)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config._experts_implementation = "eager"
    return config


def tiny_model(family: Family, precision: Precision, seed: int) -> Any:
    """A model with random weights; different seeds give models that agree on nothing."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    make: Any = AutoModelForCausalLM.from_config
    model = make(tiny_config(family), attn_implementation="eager")
    model.set_experts_implementation("eager")
    draw_weights(model)
    return model.to(DTYPES[precision.dtype]).eval()


@torch.no_grad()
def draw_weights(model: Any) -> None:
    """Draw weights that let a model say something; those of its own class are almost nothing."""
    for name, weight in model.named_parameters():
        if weight.ndim > 1 and "conv" not in name:
            fan_in = weight.shape[-1]
            weight.normal_(0, fan_in**-0.5)
        else:
            weight.add_(torch.randn_like(weight) * 0.1)


def tiny_composition(family: Family, precision: Precision, draft: Family | None = None) -> Composition:
    """What the library makes of the family's configuration."""
    return from_hf_config(
        tiny_config(family).to_dict(),
        name=family.name,
        page_size=family.page_size,
        kv_dtype=precision.dtype,
        conv_dtype=precision.dtype,
        state_dtype=precision.dtype,
        draft=None if draft is None else tiny_config(draft).to_dict(),
    )


@contextmanager
def gpu() -> Iterator[None]:
    """Models and device pools are made on a GPU, which computes in full precision. Skips the test where there is none."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False  # of convolutions; products have full precision by default
    try:
        with torch.device("cuda"):
            yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


FLOAT32 = torch.float32


class TrueDouble(TorchFunctionMode):
    """While it is active, `torch.float32` means `torch.float64` to every torch function that takes a dtype."""

    is_active = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        for value in args:  # called half a million times a mix
            if value is FLOAT32:
                args = [_lifted(value) for value in args]
                break
        return func(*args, **{name: _lifted(value) for name, value in kwargs.items()}) if kwargs else func(*args)


@contextmanager
def true_double() -> Iterator[None]:
    """The mode, once: within itself it would look at every call twice."""
    if TrueDouble.is_active:
        yield
        return
    TrueDouble.is_active = True
    try:
        with TrueDouble():
            yield
    finally:
        TrueDouble.is_active = False


def _lifted(value: Any) -> Any:
    return torch.float64 if value is FLOAT32 else value
