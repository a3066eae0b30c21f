"""Models by name: the built-in ones, those of installed packages, and any other as `module:factory`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from unified_tree.components.composition import Composition
from unified_tree.components.hf_config import ConfigSource, from_hf_config
from unified_tree.components.model_facts import MODEL_FACTS
from unified_tree.inputs.extensions import find_extension, known_names
from unified_tree.terms.errors import ConfigurationError, UnifiedTreeError

ENTRY_POINT_GROUP = "unified_tree.models"
"""An installed package offers `name = "module:factory"` here."""

ModelFactory = Callable[..., Composition]
"""Makes a composition from the options of `composition_for`, all of them by keyword."""

BUILT_IN: Mapping[str, ModelFactory] = {
    name: partial(from_hf_config, MODEL_FACTS[name], name=name) for name in sorted(MODEL_FACTS)
}
"""The factory of each built-in model."""


def model_names() -> tuple[str, ...]:
    """The names that `composition_for` knows: of the built-in models, then of those of installed packages."""
    return known_names(ENTRY_POINT_GROUP, BUILT_IN)


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
    """The composition of a model by its name; the options are those of `from_hf_config`.

    Args:
        name: of a built-in model, or of an entry point in the group `unified_tree.models`, or `module:factory`. A custom
            factory is called with all the options by keyword, and may refuse those it does not support.

    Raises ConfigurationError for an unknown name, and for a factory that does not return a composition.

    >>> composition_for("llama-3.1-8b").bytes_per_token()
    {'full': 131072.0}
    """
    factory = find_extension("model", name, ENTRY_POINT_GROUP, BUILT_IN)
    choices: dict[str, Any] = {
        "page_size": page_size,
        "tensor_parallel": tensor_parallel,
        "rank": rank,
        "kv_dtype": kv_dtype,
        "conv_dtype": conv_dtype,
        "state_dtype": state_dtype,
        "draft": draft,
    }
    if name in BUILT_IN:
        return factory(**choices)
    try:
        made: object = factory(**choices)
    except UnifiedTreeError:
        raise
    except (Exception, SystemExit) as error:  # anybody's function
        raise ConfigurationError(f"the factory of model {name!r} cannot make it: {type(error).__name__}: {error}") from error
    if not isinstance(made, Composition):
        raise ConfigurationError(f"the factory of model {name!r} must return a Composition, not {made!r}")
    return made
