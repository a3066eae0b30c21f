"""Tools to debug wrong hits: seals on published pages, and a query for a page's owner.

Everything here reads the cache through its public methods, costs time, and is not meant for normal service.
"""

if __name__ != "unified_tree.controllers.debugging":  # a second name would make every class exist twice
    raise ImportError(f"import this package as unified_tree.controllers.debugging, not as {__name__}")

from unified_tree.controllers.debugging.page_owner import PageOwner, page_owner
from unified_tree.controllers.debugging.sealed_pages import PageSeal, SealedPages, WrongPage

__all__ = ["PageOwner", "PageSeal", "SealedPages", "WrongPage", "page_owner"]
