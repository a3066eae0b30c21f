"""The settings of an inspector that an engine's adapter opens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.storage.engine_settings import Bounds, check_settings
from unified_tree.controllers.storage_tier.store_settings import check_names

if TYPE_CHECKING:
    from unified_tree.controllers.inspector.inspected import Inspected
    from unified_tree.controllers.inspector.inspector import Inspector


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectorSettings:
    """Where the page is.

    Attributes:
        host: an address of this machine. Beyond loopback the page asks for a token.
        port: 0 for a free one; the log tells which.
        token: of 16 characters at least; None for none on loopback, and elsewhere for a random one, which the log tells.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None

    def __post_init__(self) -> None:
        check_settings("inspector", self, {"port": Bounds(0, 65535)})

    @classmethod
    def of(cls, given: Any) -> InspectorSettings | None:
        """The settings in a mapping; None for None. Raises ConfigurationError for one that does not exist or fit.

        >>> InspectorSettings.of({"port": 8200}).port
        8200
        """
        if given is None:
            return None
        check_names(cls, given, "inspector")
        return cls(**given)

    def open(self, cache: Inspected) -> Inspector:
        """Open the page of a cache. Raises ConfigurationError if it cannot listen there, or start the page's process."""
        from unified_tree.controllers.inspector.inspector import Inspector

        return Inspector.open(cache, self.host, self.port, self.token)

    def line(self, url: str) -> str:
        """What a log says of the page: its address, with a token that nobody has chosen."""
        return f"unified_tree: the inspector's page is at {url if self.token is None else url.partition('?')[0]}"
