"""The settings of a link to an LMCache daemon."""

from __future__ import annotations

import re
from dataclasses import dataclass

from unified_tree.controllers.storage.engine_settings import SECONDS, Bounds, check_settings, host_and_port
from unified_tree.terms.errors import ConfigurationError

_MODEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
_BOUNDS = {
    "answer_timeout_s": SECONDS,
    "heartbeat_s": SECONDS,
    "drain_timeout_s": SECONDS,
    "probe_attempts": Bounds(1, 1 << 20),
    "probe_pause_s": SECONDS,
}


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
            was tried with (`group_probe`): it finds what was stored a moment later.

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
        check_settings("lmcache", self, _BOUNDS)
        try:
            host_and_port(self.daemon)
        except ValueError as error:
            raise ConfigurationError(f"lmcache: daemon must be host:port, as in 127.0.0.1:5555, not {self.daemon!r}") from error
        if not _MODEL.fullmatch(self.model):
            raise ConfigurationError(f"lmcache: model must be 1 to 64 letters, digits, ., - and _, which {self.model!r} is not")
