"""The path of a model that keeps nothing for every token: all its layers are windows, or recurrent states."""

from __future__ import annotations

from unified_tree.component import Component
from unified_tree.coverage import Path
from unified_tree.page_format import WHOLE, PageFormat, Part

MARK = Part("mark", "uint8", (1,))
"""The only content of a page; nobody writes or reads it."""


def token_path(*, name: str = "tokens") -> Component:
    """The required `Path` component on which windows or states stand where no layer attends to the whole prefix.

    A tree remembers a prefix by its path's pages. Here these hold no state, but a byte a page, so that pools, host memory and
    stores treat them as any other; how many there are bounds how many tokens are remembered. A boundary, a length one can
    resume from, is still only where the windows or states are.

    Args:
        name: the component's name.

    >>> token_path().page_bytes
    1
    """
    page_format = PageFormat(component=name, layer_ids=(0,), parts=(MARK,), slots_per_page=1, shard=WHOLE)
    return Component(name=name, coverage=Path(), format=page_format)


def is_token_path(component: Component) -> bool:
    """Whether a component's pages are of `token_path`: worth keeping only for what stands on them."""
    return component.format is not None and component.format.parts == (MARK,)
