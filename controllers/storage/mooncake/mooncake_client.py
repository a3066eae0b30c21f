"""A safe wrapper of Mooncake's client: it is called only between a successful setup and its close.

The client aborts the process when it is called before or after. It reads its time limits from the environment, and waits
without limit if there are none; they are set before its first import, unless they are set already.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

from unified_tree.controllers.storage.mooncake.mooncake_settings import MooncakeSettings
from unified_tree.controllers.storage.server_address import check_listens
from unified_tree.terms.errors import ConfigurationError, StorageError

NO_ROOM = -200
BAD_ARGUMENT = -600
NOT_READY = -703
NOT_FOUND = -704
ALREADY_THERE = -705
LEASE_EXPIRED = -707
RPC_FAILED = -900
RPC_TIMED_OUT = -901
MASTER_AWAY = frozenset({RPC_FAILED, RPC_TIMED_OUT})


class MooncakeClient:
    """A client that is set up with the master. The caller must not call anything after `close`.

    Raises ConfigurationError if the package is missing, StorageError if the master refuses this client.
    """

    def __init__(self, settings: MooncakeSettings) -> None:
        for name, value in settings.client_environment.items():
            os.environ.setdefault(name, value)
        store = _store_type()
        check_listens("mooncake", "master", settings.master, settings.rpc_timeout_ms / 1000)
        self._store = store()
        code = self._store.setup(
            settings.local_hostname,
            settings.metadata_server,
            settings.segment_bytes,
            settings.local_buffer_bytes,
            settings.protocol,
            settings.devices,
            settings.master,
        )
        if code:
            raise StorageError(f"mooncake: the master at {settings.master} does not take this client, error {code}")

    def is_reachable(self) -> bool:
        """What the last heartbeat said, at most some seconds old. Cost: microseconds, no call to the master."""
        return bool(self._store.health_check() == 0)

    def register(self, address: int, size_bytes: int) -> None:
        """Make memory known. Raises StorageError."""
        code = self._store.register_buffer(address, size_bytes)
        if code:
            raise StorageError(f"mooncake: {size_bytes} bytes at {address:#x} cannot be registered, error {code}")

    def unregister(self, address: int) -> None:
        """Forget memory; that which is not known is forgotten already."""
        self._store.unregister_buffer(address)

    def exist(self, keys: Sequence[str]) -> list[int]:
        """1, 0, or an error code for each. Takes a lease on what is there."""
        return list(self._store.batch_is_exist(keys))

    def put_from(self, keys: Sequence[str], addresses: Sequence[int], size_bytes: int) -> list[int]:
        """0 or an error code for each value of this size; 0 for a key that is there already, too."""
        return list(self._store.batch_put_from(keys, addresses, [size_bytes] * len(keys)))

    def get_into(self, keys: Sequence[str], addresses: Sequence[int], size_bytes: int) -> list[int]:
        """Bytes read or an error code for each."""
        return list(self._store.batch_get_into(keys, addresses, [size_bytes] * len(keys)))

    def size_bytes(self, key: str) -> int:
        """Of a value, or an error code."""
        return int(self._store.get_size(key))

    def remove(self, keys: Sequence[str]) -> list[int]:
        """0 or an error code for each. Leases do not protect a value from this."""
        return list(self._store.batch_remove(keys, True))

    def remove_matching(self, pattern: str) -> int:
        """How many values went, or an error code. Leases do not protect them. Cost: the master looks at all its keys."""
        return int(self._store.remove_by_regex(pattern, True))

    def close(self) -> None:
        """Leave the store; about a second if the master is away."""
        self._store.close()


def _store_type() -> Any:
    try:
        return importlib.import_module("mooncake.store").MooncakeDistributedStore
    except ImportError as error:
        raise ConfigurationError(
            f"mooncake: the client cannot be imported ({error}); pip install 'unified-tree[mooncake]', "
            "and on Debian apt-get install libibverbs1"
        ) from error
