"""LMCache as a prefix linker: a daemon that outlives the server. Its package is imported when a linker is opened."""

if __name__ != "unified_tree.controllers.prefix_linker.lmcache":  # a second name would make every class exist twice
    raise ImportError(f"import this package as unified_tree.controllers.prefix_linker.lmcache, not as {__name__}")

from unified_tree.controllers.prefix_linker.lmcache.daemon_linker import DaemonLinker, open_daemon
from unified_tree.controllers.prefix_linker.lmcache.lmcache_settings import LmcacheSettings
from unified_tree.controllers.prefix_linker.lmcache.shared_segments import remove_leftovers, share_pools

__all__ = ["DaemonLinker", "LmcacheSettings", "open_daemon", "remove_leftovers", "share_pools"]
