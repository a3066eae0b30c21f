"""A model over the cache that comes with `transformers`, in the same chunks as an engine's: equal to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


@torch.no_grad()
def stock_logits(model: Any, tokens: Sequence[int], ends: Sequence[int]) -> torch.Tensor:
    """[token, vocabulary] of all tokens, run in chunks that end at `ends`."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    said = []
    for start, end in zip([0, *ends], ends, strict=False):
        positions = torch.arange(start, end)[None]
        ids = torch.tensor([list(tokens[start:end])])
        said.append(model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True).logits[0])
    return torch.cat(said)
