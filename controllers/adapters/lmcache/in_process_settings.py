"""The settings of LMCache in this process."""

from __future__ import annotations

import re
from dataclasses import dataclass

from unified_tree.controllers.storage.engine_settings import MAX_BYTES, Bounds, check_settings
from unified_tree.terms.errors import ConfigurationError

_MODEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
_BOUNDS = {"chunk_tokens": Bounds(1, 1 << 31), "memory_bytes": Bounds(1, MAX_BYTES)}


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
        check_settings("lmcache_in_process", self, _BOUNDS)
        if not _MODEL.fullmatch(self.model):
            raise ConfigurationError(
                f"lmcache_in_process: model must be 1 to 64 letters, digits, ., - and _, which {self.model!r} is not"
            )
