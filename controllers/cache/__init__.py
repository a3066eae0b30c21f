"""The cache that a scheduler calls: `PrefixCache`, its leases, its statistics, metrics and spans.

Start at `PrefixCache`; its `acquire` returns a `Lease`, its `stats` a `CacheStats`. `CacheCollector` exports these to
Prometheus and needs the `metrics` extra; `RequestSpans` reports each request to OpenTelemetry and needs the `otel` extra.
A `Generation` is one weights version of a namespace. A `CacheLayout` lists which components have their own pages.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.cache.decode_batch import DecodeBatch
from unified_tree.controllers.cache.lease import Lease
from unified_tree.controllers.cache.prefix_cache import PrefixCache
from unified_tree.controllers.cache.resources import CacheLayout
from unified_tree.controllers.cache.state_pages import StateCopy
from unified_tree.controllers.cache.stats import (
    AgeStats,
    CacheStats,
    HostPoolStats,
    PolicyStats,
    PoolAgeStats,
    PoolStats,
    TransferStats,
)
from unified_tree.controllers.weights.generations import Generation

if TYPE_CHECKING:
    from unified_tree.controllers.cache.metrics import CacheCollector
    from unified_tree.controllers.cache.request_spans import RequestSpans

__all__ = [
    "AgeStats",
    "CacheLayout",
    "CacheStats",
    "DecodeBatch",
    "Generation",
    "HostPoolStats",
    "Lease",
    "PolicyStats",
    "PoolAgeStats",
    "PoolStats",
    "PrefixCache",
    "StateCopy",
    "TransferStats",
]
if TYPE_CHECKING:
    __all__ += ["CacheCollector", "RequestSpans"]  # not without extras: a star import would fail
NEED_EXTRAS = {"CacheCollector": "metrics", "RequestSpans": "request_spans"}
"""Names whose modules need prometheus_client or opentelemetry-api."""


def __getattr__(name: str) -> Any:
    if name in NEED_EXTRAS:
        return getattr(import_module(f"unified_tree.controllers.cache.{NEED_EXTRAS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
