"""A tree of letters that also locks, backs up, and checks itself."""

from __future__ import annotations

from typing import Any, Self

from unified_tree import Receipt, Tier
from unified_tree.controllers.testing.policy_contract import LetterTree, key, lists

__all__ = ["Grove", "key", "lists"]


class Grove(LetterTree):
    """A LetterTree with what only tests of the tree need."""

    def having(self, *texts: str) -> Self:
        """The same with these texts in it, put one after the other."""
        for text in texts:
            self.put(text)
        return self

    def lock(self, text: str, **options: Any) -> Receipt:
        """Lock the device boundary of a text."""
        return self.tree.lock(self.match(text, touch=False).device, **options)

    def pages(self, text: str, component: str = "full", tier: Tier = Tier.DEVICE) -> list[int]:
        """The pages of a text's device boundary."""
        ids: list[int] = self.tree.pages(self.match(text, touch=False).device, component, tier).tolist()
        return ids

    def backup(self, text: str) -> dict[str, list[int]]:
        """Copy a text's device boundary to fresh host pages at once; the pages by component."""
        boundary = self.match(text, touch=False).device
        pages = {name: self.fresh(name, count) for name, count in self.tree.transfers.backup_needs(boundary).items()}
        assert not self.tree.transfers.acknowledge(self.tree.transfers.backup(boundary, pages))
        return lists(pages)

    def check(self) -> None:
        """The tree is sound."""
        assert self.tree.check() == [], self.tree.dump()
