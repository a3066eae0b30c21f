"""The kinds of attention state, and the compositions of real model families.

Start at `composition_for("gpt-oss-20b")` for a built-in model (`model_names()` lists them), or at `from_hf_config`, which
reads a model's `config.json`. Both return a `Composition`: the model's components, what their pages hold, what a token costs,
and how to split a memory budget over the pools.

`full`, `swa`, `mamba`, `indexer`, `draft`, `compressed` and `overlap` each make one component. A kind of state that is not
among them is a `Component` of your own. `families` reads the configurations of model families. docs/kind_of_state.md shows how
to declare a new kind.
"""

if __name__ != "unified_tree.components":  # a second name would make every class exist twice
    raise ImportError(f"import this package as unified_tree.components, not as {__name__}")

from unified_tree.components.attention_cost import AttentionCost
from unified_tree.components.composition import Composition
from unified_tree.components.draft import draft
from unified_tree.components.hf_config import from_hf_config
from unified_tree.components.kinds import compressed, full, indexer, mamba, overlap, swa, token_path
from unified_tree.components.models import composition_for, model_names

__all__ = [
    "AttentionCost",
    "Composition",
    "composition_for",
    "compressed",
    "draft",
    "from_hf_config",
    "full",
    "indexer",
    "mamba",
    "model_names",
    "overlap",
    "swa",
    "token_path",
]
