"""Salts, which separate prefixes of equal tokens by namespace, weights version and format, in a form that any peer accepts."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import sha256


class PrefixSalt:
    """Salts of a cache's namespaces.

    After `PrefixCache.invalidate` a namespace's salt is unique: only this process finds what is computed from then on, until a
    link is created with the new weights version.

    Args:
        weights_version: of the model at the time.
        formats: identifies the linked pages' formats (`format_digest`).
        generation: `InvalidationCounters.of`.
    """

    def __init__(self, weights_version: str, formats: str, generation: Callable[[str], tuple[int, int]]) -> None:
        self._weights_version = weights_version
        self._formats = formats
        self._generation = generation
        self._overall = generation("")[0]
        self._secret = secrets.token_hex(16)

    def of(self, namespace: str) -> str:
        """32 hexadecimal digits."""
        generation = self._generation(namespace)
        parts: tuple[object, ...] = (namespace, self._weights_version, self._formats)
        if generation != (self._overall, 0):
            parts = (*parts, self._secret, generation)
        return sha256(repr(parts).encode()).hexdigest()[:32]
