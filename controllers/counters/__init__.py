"""The counters and latencies of a cache, and its observers. A leaf: it imports no other room of the controllers.

Derive from `CacheObserver` to be told of requests, evictions and copies: `cache.counters.observers.add(observer)`.
"""

from unified_tree.controllers.counters.observers import CacheObserver, ObservedRequest

__all__ = ["CacheObserver", "ObservedRequest"]
