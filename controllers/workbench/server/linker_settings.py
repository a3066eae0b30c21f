"""The prefix linker of a replay: which one, how it is opened, and how fast it is taken to be."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.storage_tier import PrefetchPolicy
from unified_tree.controllers.workbench.server.storage_settings import StorageCost, settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unified_tree.controllers.pools import DevicePool
    from unified_tree.controllers.prefix_linker import LinkedPool, PrefixLinker

DAEMON = "lmcache"
IN_PROCESS = "lmcache-in-process"
LINKERS = (DAEMON, IN_PROCESS)
"""Names that --storage takes for what is no storage engine but finds prefixes and fills device pages itself."""
MODEL_CHARACTERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkerSettings:
    """What all rows with a linker have in common. Each row finds only what it stored itself, in this replay or an earlier one.

    Attributes:
        name: one of LINKERS.
        place: what stands behind the name: a daemon's address, a file of LMCache's own settings, or settings as a=b,c=d; with
            nothing there the linker looks where it does without a replay, in a file and in the environment.
        cost: what lookups and transfers take on the virtual clock.
        prefetch: how long requests wait for it; its sizes mean nothing here.
    """

    name: str
    place: str
    cost: StorageCost = field(default_factory=StorageCost)
    prefetch: PrefetchPolicy = field(default_factory=PrefetchPolicy)

    @property
    def spec(self) -> str:
        """As it is given on the command line."""
        return f"{self.name}:{self.place}" if self.place else self.name

    @property
    def is_daemon(self) -> bool:
        """Whether another process maps the device pools."""
        return self.name == DAEMON

    def options(self, model: str) -> dict[str, Any]:
        """What the linker is opened with; the model's name is this one if none is given.

        Raises ConfigurationError for settings that are no a=b.
        """
        given = {"model": re.sub(r"[^A-Za-z0-9._-]", "-", f"replay-{model}")[:MODEL_CHARACTERS]}
        if "=" in self.place:
            return given | settings_of(self.place)
        if self.place:
            given["daemon" if self.is_daemon else "engine_file"] = self.place
        return given

    def prepare(self, pools: Mapping[str, DevicePool]) -> None:
        """Put the device pools where the peer can reach them, before anything takes a view of them."""
        if self.is_daemon:
            from unified_tree.controllers.adapters.lmcache import share_pools

            share_pools(pools)

    def open(self, pools: Sequence[LinkedPool], model: str) -> PrefixLinker:
        """A linker over these pools. Raises ConfigurationError and LinkError as the linker does."""
        from unified_tree.controllers.adapters.lmcache import open_daemon, open_in_process

        return (open_daemon if self.is_daemon else open_in_process)(pools, **self.options(model))
