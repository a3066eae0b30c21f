"""What an engine is told about a pool before the first page, and the refusal of what it cannot do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unified_tree.controllers.pools.host_layout import HostLayout
from unified_tree.controllers.storage.storage_engine import KEY_BYTES
from unified_tree.terms.errors import ConfigurationError, PageError

if TYPE_CHECKING:
    from unified_tree.controllers.storage.storage_engine import Capabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPool:
    """One pool's values.

    Attributes:
        name: the component's name, or another for what is stored beside the components.
        format_digest: 32 bytes, `FormatHeader.digest`; pools of different formats never share a value. `stored_pools` derives
            it from a composition; if you set it by hand, make sure that it is unique to the format.
        value_bytes: of every value: a page and its trailer.
        layout: of its host pages.

    Raises ConfigurationError for invalid fields.
    """

    name: str
    format_digest: bytes
    value_bytes: int
    layout: HostLayout = HostLayout.PAGE_FIRST_DIRECT

    def __post_init__(self) -> None:
        if type(self.name) is not str or not self.name:
            raise ConfigurationError(f"a stored pool's name must be a non-empty string, not {self.name!r}")
        if type(self.format_digest) is not bytes or len(self.format_digest) != KEY_BYTES:
            raise ConfigurationError(f"{self.name}: format_digest must be {KEY_BYTES} bytes, not {self.format_digest!r}")
        if type(self.value_bytes) is not int or self.value_bytes <= 0:
            raise ConfigurationError(f"{self.name}: value_bytes must be a positive integer, not {self.value_bytes!r}")

    def check_batch(self, keys: Sequence[bytes], pages: Sequence[memoryview], *, writable: bool = False) -> None:
        """Raise PageError for an invalid batch of keys and pages. Cost: O(keys)."""
        self.check_keys(keys)
        if len(keys) != len(pages):
            raise PageError(f"{self.name}: {len(keys)} keys for {len(pages)} pages")
        for page in pages:
            if page.nbytes != self.value_bytes or not page.c_contiguous or (writable and page.readonly):
                kind = "writable " if writable else ""
                raise PageError(
                    f"{self.name}: a page must be {kind}contiguous memory of {self.value_bytes} bytes, not of {page.nbytes}"
                    f"{' read-only' if page.readonly else ''}"
                )

    def check_keys(self, keys: Sequence[bytes]) -> None:
        """Raise PageError for keys that are not 32 bytes each, or not distinct. Cost: O(keys)."""
        for key in keys:
            if type(key) is not bytes or len(key) != KEY_BYTES:
                raise PageError(f"{self.name}: a key must be {KEY_BYTES} bytes, not {key!r}")
        if len(set(keys)) < len(keys):
            raise PageError(f"{self.name}: a key stands twice in one batch")


def pools_by_name(pools: Iterable[StoredPool]) -> dict[str, StoredPool]:
    """The pools by their names. Raises ConfigurationError for two of one name or one format, and for none at all."""
    every = list(pools)
    by_name = {pool.name: pool for pool in every}
    if not every or len(by_name) < len(every):
        raise ConfigurationError(f"storage needs pools of different names, not {[pool.name for pool in every]}")
    if len({pool.format_digest for pool in every}) < len(every):
        raise ConfigurationError(f"two of the pools {', '.join(by_name)} have the same format digest")
    return by_name


def check_can_hold(capabilities: Capabilities, pools: Iterable[StoredPool]) -> None:
    """Raise ConfigurationError, naming every pool that an engine with these capabilities cannot keep, and why."""
    largest, wrong = capabilities.largest_value_bytes, []
    for pool in pools:
        if pool.layout not in capabilities.layouts:
            known = ", ".join(sorted(layout.value for layout in capabilities.layouts))
            wrong.append(f"{pool.name}: its pages are {pool.layout.value}, the engine takes {known or 'no layout at all'}")
        if largest is not None and pool.value_bytes > largest:
            wrong.append(f"{pool.name}: its values are {pool.value_bytes} bytes, the engine's largest {largest}")
    if wrong:
        raise ConfigurationError("; ".join(wrong))


def check_opened_for(opened: Collection[str], pools: Iterable[StoredPool]) -> None:
    """Raise ConfigurationError, naming every pool that the engine was not opened for."""
    missing = [pool.name for pool in pools if pool.name not in opened]
    if missing:
        raise ConfigurationError(
            f"the engine was not opened for {', '.join(map(repr, missing))}, only for {', '.join(map(repr, opened))}; "
            "open it with StorageTier.open, or for all that `stored_pools` lists, the pool of the restore points included"
        )
