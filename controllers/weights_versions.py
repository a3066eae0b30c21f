"""Which weights version each namespace has, by the name that a store knows it under.

It belongs to the cache and outlives the stores that are attached to it: what a namespace's own invalidation said is still true
when another store comes, whose settings name one version for all.
"""

from __future__ import annotations

import uuid


class WeightsVersions:
    """One name for all namespaces, and others for those that were invalidated on their own since it was given."""

    def __init__(self) -> None:
        self._common = ""
        self._own: dict[str, str] = {}

    def attached(self, version: str) -> None:
        """The name that a store's settings give to the weights now: for all that has no name of its own."""
        self._common = version

    def invalidated(self, namespace: str | None, version: str | None) -> None:
        """The weights changed. Without a name for them, nothing stored under them is shared with anyone or found again."""
        name = version if version is not None else f"unnamed {uuid.uuid4().hex}"
        if namespace is None:
            self._common = name
            self._own.clear()
        else:
            self._own[namespace] = name

    def of(self, namespace: str) -> str:
        """The name for a namespace now."""
        return self._own.get(namespace, self._common)
