"""The settings of the links to LMCache: to a daemon, and to an engine in this process."""

from __future__ import annotations

import re
from dataclasses import dataclass

from unified_tree.controllers.storage.engine_settings import MAX_BYTES, SECONDS, Bounds, check_settings, host_and_port
from unified_tree.terms.errors import ConfigurationError

_MODEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DAEMON_BOUNDS = {
    "answer_timeout_s": SECONDS,
    "heartbeat_s": SECONDS,
    "drain_timeout_s": SECONDS,
    "probe_attempts": Bounds(1, 1 << 20),
    "probe_pause_s": SECONDS,
}
_IN_PROCESS_BOUNDS = {"chunk_tokens": Bounds(1, 1 << 31), "memory_bytes": Bounds(1, MAX_BYTES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LmcacheSettings:
    """Settings of a client of `lmcache server`.

    Attributes:
        daemon: "host:port" of the daemon, on this machine: it maps the memory of this process.
        model: letters, digits, ., - and _: whose prefixes these are. Servers of the same model and formats share them.
        answer_timeout_s: of the daemon to a question; to a lookup, too.
        heartbeat_s: between two questions whether it is there.
        drain_timeout_s: how long closing waits for transfers under way.
        probe_attempts, probe_pause_s: how often, and with which pauses, a daemon for windows and states is asked for what it
            was tried with (`check_object_groups`): it finds what was stored a moment later.

    Raises ConfigurationError for invalid values.
    """

    daemon: str
    model: str
    answer_timeout_s: float = 2.0
    heartbeat_s: float = 1.0
    drain_timeout_s: float = 5.0
    probe_attempts: int = 50
    probe_pause_s: float = 0.02

    def __post_init__(self) -> None:
        check_settings("lmcache", self, _DAEMON_BOUNDS)
        try:
            host_and_port(self.daemon)
        except ValueError as error:
            raise ConfigurationError(f"lmcache: daemon must be host:port, as in 127.0.0.1:5555, not {self.daemon!r}") from error
        _check_model("lmcache", self.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcessSettings:
    """Settings of an LMCache engine in this process.

    Attributes:
        model: letters, digits, ., - and _: whose prefixes these are, in the tiers that outlive the process.
        chunk_tokens: prefixes are found and stored in multiples of so many tokens.
        memory_bytes: for prefixes in host memory.
        engine_file: LMCache's own file of settings, for a disk or a remote tier; its `chunk_size` and `max_local_cpu_size` win.

    Raises ConfigurationError for invalid values.
    """

    model: str
    chunk_tokens: int = 256
    memory_bytes: int = 1 << 30
    engine_file: str = ""

    def __post_init__(self) -> None:
        check_settings("lmcache_in_process", self, _IN_PROCESS_BOUNDS)
        _check_model("lmcache_in_process", self.model)


def _check_model(link: str, model: str) -> None:
    if not _MODEL.fullmatch(model):
        raise ConfigurationError(f"{link}: model must be 1 to 64 letters, digits, ., - and _, which {model!r} is not")
