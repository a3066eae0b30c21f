"""A tree whose keys are texts, a token per letter, with a supply of distinct page ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_tree import Chunked, Component, InsertResult, Key, Match, Path, Point, Tier, Trailing, UnifiedTree


def key(text: str, namespace: str = "", *, bigram: bool = False) -> Key:
    """A key with a token a letter."""
    return Key([ord(letter) for letter in text], namespace, bigram=bigram)


def lists(pages: dict[str, NDArray[np.int64]]) -> dict[str, list[int]]:
    """Page arrays as lists, to compare."""
    return {name: ids.tolist() for name, ids in pages.items()}


class LetterTree:
    """A tree of letters. Pages are two tokens unless said otherwise.

    >>> letters = LetterTree([Component(name="full", coverage=Path())], policy="fifo")
    >>> letters.put("abcd").canonical["full"].tolist(), letters.match("abzz").device.length
    ([100, 101], 2)
    >>> letters.evict(1)
    {'full': [100, 101]}
    """

    def __init__(self, components: Sequence[Component], page_size: int = 2, **options: Any) -> None:
        self.tree = UnifiedTree(components, page_size, **options)
        self._next = {component.name: 100 * (i + 1) for i, component in enumerate(components)}

    def fresh(self, component: str, count: int) -> NDArray[np.int64]:
        """New page ids: 100, 101, … for the first component, 200, … for the second."""
        first = self._next[component]
        self._next[component] += count
        return np.arange(first, first + count)

    def put(
        self,
        text: str,
        states: Iterable[int] = (),
        *,
        since: int | None = None,
        window: int | None = None,
        namespace: str = "",
        **options: Any,
    ) -> InsertResult:
        """Insert a text with fresh pages: the paths from token `since` (where the tree ends), the windows' last `window`
        pages (what they need), and states at the lengths given."""
        tree, size, whole = self.tree, self.tree.page_size, key(text, namespace)
        end = len(text) // size
        known = tree.match_prefix(whole, touch=False).path_length if since is None else since
        pages, given_states = {}, {}
        for component in tree.components:
            if component.shares is not None:
                continue
            match component.coverage:
                case Path():
                    pages[component.name] = self.fresh(component.name, end - known // size)
                case Trailing() | Chunked():
                    needed = component.coverage.pages_needed(end * size, size)
                    pages[component.name] = self.fresh(component.name, needed if window is None else window)
                case Point():
                    given_states[component.name] = {at: int(self.fresh(component.name, 1)[0]) for at in states}
        return tree.insert(whole, pages, given_states, **options)

    def match(self, text: str, namespace: str = "", **options: Any) -> Match:
        """Match a text."""
        return self.tree.match_prefix(key(text, namespace), **options)

    def evict(self, count: int, component: str = "full", tier: Tier = Tier.DEVICE) -> dict[str, list[int]]:
        """Evict, as lists."""
        return lists(self.tree.evict({component: count}, tier).freed)
