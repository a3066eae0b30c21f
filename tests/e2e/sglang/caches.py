"""The caches that are compared, and what each asks of the engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CONFIG_VARIABLE = "UNIFIED_TREE_SGLANG_CONFIG"
"""Where the backend finds its settings: one JSON object."""
HOST: dict[str, object] = {"host": {"ratio": 4.0}}
WRITE_POLICIES = ("write-through", "write-back", "write-through-selective", "write-back-selective")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A cache by its name: the engine's settings, the backend's settings, whether it starts on the files of the one before.

    A cache with files is not emptied between two mixes, which have namespaces of their own. A cache with a host tier and
    no write policy of its own takes them in turn.
    """

    name: str
    engine: dict[str, object]
    config: dict[str, object] | None = None
    keeps_files: bool = False
    restarts: bool = False
    write_policy: str | None = None

    @property
    def is_ours(self) -> bool:
        """Whether it needs the backend `unified_tree`."""
        return self.config is not None

    @property
    def has_host(self) -> bool:
        """Whether it has a host tier."""
        return "enable_hierarchical_cache" in self.engine

    def writes(self, turn: int) -> str | None:
        """The write policy in some turn; None without a host tier."""
        return (self.write_policy or WRITE_POLICIES[turn % len(WRITE_POLICIES)]) if self.has_host else None

    def settings(self, files: Path, turn: int = 0) -> dict[str, object]:
        """The backend's settings in some turn, with its files in a folder."""
        writes = self.writes(turn)
        config = {**(self.config or {}), **({} if writes is None else {"write_policy": writes})}
        if not self.keeps_files:
            return config
        store = {"engine": "file", "directory": str(files), "capacity_bytes": 1 << 30, "prefetch": {"min_tokens": 8}}
        return {**config, "store": store}


OURS: dict[str, object] = {"radix_cache_backend": "unified_tree"}
TIERS: dict[str, object] = {**OURS, "enable_hierarchical_cache": True, "hicache_ratio": 4.0}
"""Without a ratio SGLang sizes its own host pool, and ends the start where less than 10 GiB of memory are free."""
STORE: dict[str, object] = {**TIERS, "hicache_storage_backend": "file"}
"""SGLang asks a cache to prefetch only if a storage backend is named; its own `file` is never built."""
SESSIONS: dict[str, object] = {"enable_session_radix_cache": True}
TENANTS: dict[str, object] = {
    "groups": [
        {"name": "keyed", "namespaces": ["a"], "floor": 0.2, "cap": 0.5},
        {"name": "salted", "namespaces": ["s"], "weight": 1},
    ],
    "weight": 2,
}
"""Groups of the mixes' extra key and cache salt."""
CACHES = (
    Cache(name="none", engine={"disable_radix_cache": True}),
    Cache(name="builtin", engine={}),
    Cache(name="builtin+sessions", engine=SESSIONS),
    Cache(name="ours", engine=OURS, config={}),
    Cache(name="ours+sessions", engine={**OURS, **SESSIONS}, config={}),
    Cache(name="ours+causes", engine=OURS, config={"misses": {"memory_mib": 64}}),
    Cache(name="ours+host", engine=TIERS, config=HOST),
    *(Cache(name=f"ours+{policy}", engine=TIERS, config=HOST, write_policy=policy) for policy in WRITE_POLICIES),
    Cache(name="ours+sessions+host", engine={**TIERS, **SESSIONS}, config=HOST),
    Cache(name="ours+tenants", engine={**TIERS, **SESSIONS}, config={**HOST, "tenants": TENANTS}),
    Cache(name="ours+files", engine=STORE, config=HOST, keeps_files=True),
    Cache(name="ours+restart", engine=STORE, config=HOST, keeps_files=True, restarts=True),
)


def chosen(names: Iterable[str]) -> list[Cache]:
    """Caches by their names, in the order in which they run: a restart comes after what wrote its files."""
    wanted = set(names)
    unknown = wanted - {cache.name for cache in CACHES}
    if unknown:
        raise ValueError(f"no such cache: {sorted(unknown)}; there are {[cache.name for cache in CACHES]}")
    return [cache for cache in CACHES if cache.name in wanted]
