"""Tuples that are kept, one or more for each node: where C was compiled, the garbage collector does not look at them.

Compiled, nothing in a tree can be part of a cycle that only the collector would free, and it knows of no object of it. But
every new tuple is on its list until it comes by, and while as much is freed as is made it comes by seldom: then it looks at all
tuples of the tree at once, for some ms in the middle of some request.
"""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

from typing import TypeVar

try:
    from unified_tree.native.untracked_tuples import untracked, with_item
except ImportError:
    Item = TypeVar("Item")

    def untracked(items: tuple[Item, ...], /) -> tuple[Item, ...]:
        """A tuple that is kept for long. Cost: O(items)."""
        return items

    def with_item(items: tuple[Item, ...], index: int, item: Item, /) -> tuple[Item, ...]:
        """A copy with another item at an index; IndexError if there is none. Cost: O(items)."""
        if not 0 <= index < len(items):
            raise IndexError("with_item(items, index, item): there is no such item")
        return (*items[:index], item, *items[index + 1 :])


__all__ = ["untracked", "with_item"]
