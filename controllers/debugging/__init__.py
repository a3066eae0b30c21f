"""Tools to debug wrong hits: seals on published pages, and a query for a page's owner.

Everything here reads the cache through its public methods, costs time, and is not meant for normal service.
"""

from unified_tree.controllers.debugging.page_owner import PageOwner, page_owner
from unified_tree.controllers.debugging.sealed_pages import PageSeal, SealedPages, WrongPage

__all__ = ["PageOwner", "PageSeal", "SealedPages", "WrongPage", "page_owner"]
