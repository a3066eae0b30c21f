"""What the host tier stored and removed, for routers that follow the KV events of an engine.

Only the first group of full attention is reported, by vLLM's own block hashes, which readers compute, too. The hash of a
page is kept while the page is in the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvent:
    """Blocks that came or went; without hashes everything went.

    Attributes:
        stored: whether they came.
        hashes: of the blocks.
        parent: the hash before the first of them; None at a prompt's beginning.
        tokens: of all of them.
    """

    stored: bool
    hashes: tuple[bytes, ...] = ()
    parent: bytes | None = None
    tokens: tuple[int, ...] = ()


class HostEvents:
    """The events since they were last taken."""

    def __init__(self) -> None:
        self._hashes: dict[int, bytes] = {}
        self._events: list[HostEvent] = []

    def stored(self, pages: Sequence[int], hashes: Sequence[bytes], parent: bytes | None, tokens: Sequence[int]) -> None:
        """The tree took pages."""
        self._hashes.update(zip(pages, hashes, strict=True))
        self._events.append(HostEvent(stored=True, hashes=tuple(hashes), parent=parent, tokens=tuple(tokens)))

    def known(self, pages: Iterable[int]) -> set[int]:
        """Those of some pages that were told of and are in the tree."""
        return {page for page in pages if page in self._hashes}

    def removed(self, pages: Iterable[int]) -> None:
        """The tree gave pages back."""
        hashes = tuple(self._hashes.pop(page) for page in pages if page in self._hashes)
        if hashes:
            self._events.append(HostEvent(stored=False, hashes=hashes))

    def cleared(self) -> None:
        """The tree was emptied."""
        self._hashes.clear()
        self._events.append(HostEvent(stored=False))

    def take(self) -> list[HostEvent]:
        """The events, in order."""
        events, self._events = self._events, []
        return events
