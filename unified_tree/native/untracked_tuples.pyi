"""The C module beside this file; missing where nothing is compiled. See `fallbacks`."""

from typing import TypeVar

Item = TypeVar("Item")

def untracked(items: tuple[Item, ...], /) -> tuple[Item, ...]: ...
def with_item(items: tuple[Item, ...], index: int, item: Item, /) -> tuple[Item, ...]: ...
