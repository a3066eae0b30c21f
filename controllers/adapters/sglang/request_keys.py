"""Keys of the tree for SGLang's requests."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from unified_tree.declare.keys import Key

if TYPE_CHECKING:
    from unified_tree.declare.tenants import Tenants

ADAPTER_ID_LENGTH = 32
"""Of SGLang's ids of LoRA adapters, with which the extra keys of their requests end."""


class RequestKeys:
    """Makes the tree's keys of what SGLang says of a request.

    Args:
        is_bigram: keys are of pairs of tokens, for EAGLE.
        adapters: see `UnifiedTreeCache`.
        tenants: groups, which name a namespace by the extra key of its requests, or by their cache salt if they have none.

    Attributes:
        tenants: the same, for the tree; None without.
    """

    def __init__(self, *, is_bigram: bool, adapters: Mapping[str, str], tenants: Tenants | None = None) -> None:
        self._is_bigram = is_bigram
        self._adapters = adapters
        self._named = frozenset(() if tenants is None else tenants.index())
        self.tenants = None if tenants is None else replace(tenants, named_by=self.tenant)

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

    def tenant(self, namespace: str) -> str:
        """By what groups name a namespace: the extra key of its requests, without the adapter that SGLang writes behind it, or
        else their cache salt.
        """
        if not namespace:
            return ""
        extra_key, salt = literal_eval(namespace)[:2]
        for name in (extra_key or "", (extra_key or "")[:-ADAPTER_ID_LENGTH]):
            if name and name in self._named:
                return str(name)
        return str(salt or "")
