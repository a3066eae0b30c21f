"""The path of a model without per-token state: all its layers keep windows or recurrent states."""

from __future__ import annotations

from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Path
from unified_tree.declare.page_format import WHOLE, PageFormat, Part

MARK = Part("mark", "uint8", (1,))
"""The only content of a page; nobody writes or reads it."""


def token_path(*, name: str = "tokens") -> Component:
    """The required `Path` component of a model in which no layer attends to the whole prefix.

    A tree identifies a prefix by its path's pages. Here a page is one byte without state, so that pools, host memory and stores
    treat it as any other. Their number bounds how many tokens the tree remembers. A boundary, a length one can resume from,
    still needs the windows or states.

    Args:
        name: the component's name.

    >>> token_path().page_bytes
    1
    """
    page_format = PageFormat(component=name, layer_ids=(0,), parts=(MARK,), slots_per_page=1, shard=WHOLE)
    return Component(name=name, coverage=Path(), format=page_format)


def is_token_path(component: Component) -> bool:
    """Whether a component is a `token_path`, whose pages are worth keeping only for the windows or states along them."""
    return component.format is not None and component.format.parts == (MARK,)
