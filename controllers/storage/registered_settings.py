"""The settings that Mooncake's and SiMM's engines have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unified_tree.controllers.storage.setting_checks import BYTES, SECONDS, Bounds, check_key_prefix, check_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSettings:
    """Attributes:
    key_prefix: of every key, letters, digits, - and _: users of one store that should not share pages differ in it.
    bounce_bytes: registered memory for pages that lie in no registered buffer; at least one value of every pool.
    batch_bytes: of pages in one call of the client.
    retry_pause_s: between two tries of a store that is away.
    """

    key_prefix: str = "ut"
    bounce_bytes: int = 32 << 20
    batch_bytes: int = 128 << 20
    retry_pause_s: float = 1.0

    def _check(self, engine: str, bounds: Mapping[str, Bounds]) -> None:
        """Raise ConfigurationError for invalid values; `bounds` are of the other numbers."""
        own = {"bounce_bytes": BYTES, "batch_bytes": BYTES, "retry_pause_s": SECONDS}
        check_settings(engine, self, {**own, **bounds})
        check_key_prefix(engine, self.key_prefix)
