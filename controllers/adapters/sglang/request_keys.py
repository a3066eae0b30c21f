"""Keys of the tree for SGLang's requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unified_tree.declare.keys import Key

ADAPTER_ID_LENGTH = 32
"""Of SGLang's ids of LoRA adapters."""


class RequestKeys:
    """Makes the tree's keys of what SGLang says of a request.

    Args:
        is_bigram: keys are of pairs of tokens, for EAGLE.
        adapters: see `UnifiedTreeCache`.
    """

    def __init__(self, *, is_bigram: bool, adapters: Mapping[str, str]) -> None:
        self._is_bigram = is_bigram
        self._adapters = adapters

    def key(self, tokens: Any, count: int, extra_key: str | None, cache_salt: str | None, begin: int = 0) -> Key:
        """The key of the first `count` tokens, an `array("q")`, or its tail from `begin` on. Cost: a copy of its elements."""
        namespace = "" if extra_key is None and not cache_salt else self._namespace(extra_key, cache_salt or None)
        if self._is_bigram:
            return Key(tokens[:count], namespace, bigram=True)
        return Key.from_elements(tokens[begin:count].tobytes(), namespace, bigram=False, begin=begin)

    def _namespace(self, extra_key: str | None, cache_salt: str | None) -> str:
        if self._adapters and extra_key is not None:
            weights = self._adapters.get(extra_key[-ADAPTER_ID_LENGTH:])
            if weights is not None:
                return repr((extra_key, cache_salt, weights))
        return repr((extra_key, cache_salt))
