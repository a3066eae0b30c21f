"""Links to prefix caches elsewhere, which look prefixes up by tokens and copy device pages themselves (LMCache, say). Start at
`LinkedPrefixes`, which links a PrefixCache to a `PrefixLinker`. `MemoryLinker` is a linker for tests; those of LMCache are in
`controllers/adapters/lmcache`. `linked_pools` describes device pools to a linker.
"""

from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool, linked_pools
from unified_tree.controllers.prefix_linker.linked_prefixes import LinkedPrefixes
from unified_tree.controllers.prefix_linker.memory_linker import MemoryLinker
from unified_tree.controllers.prefix_linker.prefix_linker import LinkCounters, PrefixLinker, Progress, Span

__all__ = [
    "LinkCounters",
    "LinkedPool",
    "LinkedPrefixes",
    "MemoryLinker",
    "PrefixLinker",
    "Progress",
    "Span",
    "linked_pools",
]
