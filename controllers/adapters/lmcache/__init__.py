"""LMCache as a prefix linker: `open_daemon` for a daemon that outlives the server, `open_in_process` for this process. The
package lmcache is imported when one is opened.
"""

from unified_tree.controllers.adapters.lmcache.daemon_linker import DaemonLinker, open_daemon
from unified_tree.controllers.adapters.lmcache.in_process_linker import InProcessLinker, open_in_process
from unified_tree.controllers.adapters.lmcache.lmcache_settings import InProcessSettings, LmcacheSettings
from unified_tree.controllers.adapters.lmcache.shared_segments import remove_leftovers, share_pools

__all__ = [
    "DaemonLinker",
    "InProcessLinker",
    "InProcessSettings",
    "LmcacheSettings",
    "open_daemon",
    "open_in_process",
    "remove_leftovers",
    "share_pools",
]
