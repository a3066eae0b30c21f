"""Built-in models by name."""

from __future__ import annotations

from unified_tree.components.composition import Composition
from unified_tree.components.hf_config import ConfigSource, from_hf_config
from unified_tree.components.model_facts import MODEL_FACTS
from unified_tree.errors import ConfigurationError


def model_names() -> tuple[str, ...]:
    """The names that `composition_for` knows, sorted."""
    return tuple(sorted(MODEL_FACTS))


def composition_for(
    name: str,
    *,
    page_size: int | None = None,
    tensor_parallel: int = 1,
    rank: int | None = None,
    kv_dtype: str = "bfloat16",
    conv_dtype: str = "bfloat16",
    state_dtype: str | None = None,
    draft: int | ConfigSource | None = None,
) -> Composition:
    """The composition of a built-in model; the options are those of `from_hf_config`.

    Raises ConfigurationError for a name it does not know.

    >>> composition_for("llama-3.1-8b").bytes_per_token()
    {'full': 131072.0}
    """
    facts = MODEL_FACTS.get(name)
    if facts is None:
        raise ConfigurationError(f"model {name!r} is not known; known are {', '.join(model_names())}")
    return from_hf_config(
        facts,
        name=name,
        page_size=page_size,
        tensor_parallel=tensor_parallel,
        rank=rank,
        kv_dtype=kv_dtype,
        conv_dtype=conv_dtype,
        state_dtype=state_dtype,
        draft=draft,
    )
