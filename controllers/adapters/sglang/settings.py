"""The settings of the SGLang backend: SGLang's own options where they mean the same, and an object for the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

from unified_tree.controllers.cache.tenant_settings import tenants_of
from unified_tree.controllers.counters.observers import check_observers
from unified_tree.controllers.host.host_tier import WritePolicy
from unified_tree.controllers.inspector.inspector_settings import InspectorSettings
from unified_tree.controllers.storage_tier.store_settings import StoreSettings, check_names
from unified_tree.declare.tenants import Tenants
from unified_tree.inputs.arguments import integer, number
from unified_tree.inputs.given_files import NotJsonError, parse_json, read_given
from unified_tree.terms.errors import ConfigurationError

VARIABLE = "UNIFIED_TREE_SGLANG_CONFIG"
"""The environment variable that holds the settings: a JSON object, or the path of a JSON or YAML file."""
MAX_BYTES = 1 << 20
"""Of that file."""
MISS_MEMORY_MIB = 64
"""If `misses.memory_mib` is left out and something tells the causes."""
RANK_TIMEOUT_S = 30.0
"""If `rank_timeout_s` is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """How much host memory a rank uses; at most one of these.

    Attributes:
        ratio: host pages for each device page of every pool; `--hicache-ratio`.
        gib: for all pools together, divided as the device memory is; `--hicache-size`.
        pages: host pages by component: `full`, `swa`, `mamba`.
    """

    ratio: float | None = None
    gib: float | None = None
    pages: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        if len(given) > 1:
            raise ConfigurationError(f"host: give one of ratio, gib and pages, not {' and '.join(given)}")
        for name in ("ratio", "gib"):
            if getattr(self, name) is not None:
                number(getattr(self, name), f"host.{name}", ConfigurationError, positive=True)
        if self.pages is not None and not isinstance(self.pages, Mapping):
            raise ConfigurationError(
                f'host.pages must name each component, such as {{"full": {self.pages}}}; host.ratio is one number for all'
            )
        for name, count in (self.pages or {}).items():
            integer(count, f"host.pages.{name}", ConfigurationError, minimum=1)

    def page_counts(self, device_pages: Mapping[str, int], page_bytes: Mapping[str, int]) -> dict[str, int]:
        """Host pages by component. Raises ConfigurationError for a pool that `pages` leaves out."""
        if self.pages is not None:
            missing = sorted(device_pages.keys() - self.pages.keys())
            if missing:
                raise ConfigurationError(f"host.pages lacks {', '.join(missing)}; the model has {', '.join(device_pages)}")
            return {name: self.pages[name] for name in device_pages}
        ratio = self.ratio if self.ratio is not None else 2.0
        if self.gib is not None:
            ratio = self.gib * (1 << 30) / sum(count * page_bytes[name] for name, count in device_pages.items())
        return {name: max(1, int(ratio * count)) for name, count in device_pages.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MissSettings:
    """How the causes of misses are kept and told.

    Attributes:
        memory_mib: memory for what was evicted, by which causes are told apart; 0 for no causes at all. None for 64 where
            SGLang keeps metrics (`--enable-metrics`) or the inspector's page is open, else 0.
        log_s: seconds between two lines in the log; 0 for none.
    """

    memory_mib: int | None = None
    log_s: float = 60.0

    def __post_init__(self) -> None:
        if self.memory_mib is not None:
            integer(self.memory_mib, "misses.memory_mib", ConfigurationError)
        number(self.log_s, "misses.log_s", ConfigurationError)

    def memory_bytes(self, *, is_told: bool) -> int:
        """The memory in bytes, for a server with something that tells the causes, or without."""
        if self.memory_mib is None:
            return MISS_MEMORY_MIB << 20 if is_told else 0
        return self.memory_mib << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the backend.

    Attributes:
        policy: the eviction policy; None for SGLang's `--radix-eviction-policy`.
        host: the host tier; None for `--hicache-size` or `--hicache-ratio`.
        write_policy: when boundaries are copied to host; None for `--hicache-write-policy`.
        store: the store behind the host tier; None for none.
        rank_timeout_s: a tensor-parallel rank that has not answered for so long is an error in the log; ranks that share a host
            tier then stop to agree, too.
        misses: the causes of misses.
        inspector: the page of the inspector; None for none.
        observers: settings of further observers by name: `record`, which writes a trace, one that an installed package
            registers (`unified_tree.observers`), or `module:factory`.
        event_groups: KV events tell of windows and states, as groups of their own.
        infer_sessions: a request without a session supersedes the states that it resumed from, as a session's next turn does.
        tenants: groups of namespaces and their shares; None for none.
        allow_unproven_gpu: allow a host tier on a GPU, where its copies have not run.
    """

    policy: str | None = None
    host: HostSettings | None = None
    write_policy: WritePolicy | None = None
    store: StoreSettings | None = None
    rank_timeout_s: float = RANK_TIMEOUT_S
    misses: MissSettings = MissSettings()
    inspector: InspectorSettings | None = None
    observers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    event_groups: bool = False
    infer_sessions: bool = False
    tenants: Tenants | None = None
    allow_unproven_gpu: bool = False

    def __post_init__(self) -> None:
        for name in ("event_groups", "infer_sessions", "allow_unproven_gpu"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"{name} must be true or false, not {getattr(self, name)!r}")
        number(self.rank_timeout_s, "rank_timeout_s", ConfigurationError, positive=True)
        if self.inspector is not None and self.misses.memory_mib == 0:
            raise ConfigurationError("an inspector tells the causes of misses: give misses.memory_mib more than 0")
        check_observers(self.observers)
        if self.observers and self.misses.memory_mib == 0:
            raise ConfigurationError("observers are told of requests with their misses: give misses.memory_mib more than 0")

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings in `UNIFIED_TREE_SGLANG_CONFIG`. Raises ConfigurationError for one that does not exist or fit."""
        text = environment.get(VARIABLE, "").strip()
        return cls.of(_mapping(text)) if text else cls()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """The settings in a mapping, as it stands in a file. Raises ConfigurationError for one that does not exist or fit."""
        check_names(cls, given, VARIABLE)
        host, store, write_policy = given.get("host"), given.get("store"), given.get("write_policy")
        misses = given.get("misses") or {}
        check_names(MissSettings, misses, "misses")
        if host is not None:
            check_names(HostSettings, host, "host")
        try:
            policy = None if write_policy is None else WritePolicy(str(write_policy).replace("_", "-"))
        except ValueError:
            known = ", ".join(policy.value for policy in WritePolicy)
            raise ConfigurationError(f"write_policy must be one of {known}, not {write_policy!r}") from None
        return cls(
            policy=given.get("policy"),
            host=None if host is None else HostSettings(**host),
            write_policy=policy,
            store=None if store is None else StoreSettings.of(store),
            rank_timeout_s=given.get("rank_timeout_s", RANK_TIMEOUT_S),
            misses=MissSettings(**misses),
            inspector=InspectorSettings.of(given.get("inspector")),
            observers=given.get("observers") or {},
            event_groups=given.get("event_groups", False),
            infer_sessions=given.get("infer_sessions", False),
            tenants=tenants_of(given.get("tenants")),
            allow_unproven_gpu=given.get("allow_unproven_gpu", False),
        )


def _mapping(text: str) -> Any:
    """A JSON object, or what the file of that name holds."""
    if not text.startswith("{"):
        try:
            text = read_given(text, max_bytes=MAX_BYTES).decode("utf-8")
        except (ConfigurationError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{VARIABLE} is neither a JSON object nor a file: {error}") from error
    with suppress(NotJsonError):
        return parse_json(text)
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigurationError(f"{VARIABLE} is not JSON, and YAML needs pyyaml") from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigurationError(f"{VARIABLE} is neither JSON nor YAML: {' '.join(str(error).split())}") from None
