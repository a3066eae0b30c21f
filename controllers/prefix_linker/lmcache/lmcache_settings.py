"""What a link to an LMCache daemon is told."""

from __future__ import annotations

import re
from dataclasses import dataclass

from unified_tree.errors import ConfigurationError

_MODEL = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LmcacheSettings:
    """Settings of a client of `lmcache server`.

    Attributes:
        daemon: "host:port" of the daemon, on this machine: it maps the memory of this process.
        model: letters, digits, ., - and _: whose prefixes these are. Servers of the same model and formats share them.
        answer_timeout_s: of the daemon to a question; to a lookup, too.
        heartbeat_s: between two questions whether it is there.
        drain_timeout_s: how long closing waits for transfers under way.

    Raises ConfigurationError for values that cannot be.
    """

    daemon: str
    model: str
    answer_timeout_s: float = 2.0
    heartbeat_s: float = 1.0
    drain_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        host, _, port = self.daemon.rpartition(":")
        if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ConfigurationError(f"lmcache: daemon must be host:port, as in 127.0.0.1:5555, not {self.daemon!r}")
        if not _MODEL.fullmatch(self.model):
            raise ConfigurationError(f"lmcache: model must be 1 to 64 letters, digits, ., - and _, which {self.model!r} is not")
        for name in ("answer_timeout_s", "heartbeat_s", "drain_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"lmcache: {name} must be positive, not {getattr(self, name)!r}")
