"""SiMM as its public API describes it, in this process: for there is none that could run here. Never compared with a real one.

A server keeps values first in, first out, and can be killed, frozen, restarted, slow and dishonest. A module stands for the
client's `simm.kv`: its calls check what the real ones would corrupt memory over.
"""

from __future__ import annotations

import ctypes
import socket
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any

LARGEST_BYTES = 67_088_384


class Aborted(BaseException):
    """Here the real client would have ended the process."""


class State(Enum):
    UP = "up"
    KILLED = "killed"
    FROZEN = "frozen"


@dataclass(frozen=True)
class MrExt:
    address: int
    size_bytes: int


class SimmServer:
    """A manager that listens on loopback, and the memory of its data servers."""

    def __init__(self, capacity_bytes: int = 64 << 20) -> None:
        self.capacity_bytes = capacity_bytes
        self.values: OrderedDict[str, bytes] = OrderedDict()
        self.lock = threading.Lock()
        self._goes = threading.Event()
        self.state = State.UP
        self.says_yes = False
        """Whether `mexists` claims everything."""
        self.put_code = 0
        """In place of storing."""
        self.calls: list[tuple[str, int]] = []
        self._port = 0
        self.listen()

    def listen(self) -> None:
        """Be there, at the same address every time."""
        self._socket = socket.create_server(("127.0.0.1", self._port))
        self._port = self._socket.getsockname()[1]

    def hang_up(self) -> None:
        """Nothing listens any more."""
        self._socket.close()

    def __enter__(self) -> SimmServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.hang_up()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def state(self) -> State:
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        if state is State.FROZEN:
            self._goes.clear()
        else:
            self._goes.set()

    def answers_within(self, seconds: float) -> bool:
        """Whether it is not frozen, or no longer than this."""
        return self._goes.wait(seconds)

    def kill(self) -> None:
        self.state = State.KILLED
        self.values.clear()

    def restart(self) -> None:
        self.state = State.UP

    def store(self, key: str, value: bytes) -> None:
        self.values.pop(key, None)
        self.values[key] = value
        while sum(map(len, self.values.values())) > self.capacity_bytes:
            self.values.popitem(last=False)


class SimmModule:
    """`simm.kv` of a process whose manager is `server`; None if nothing listens there."""

    def __init__(self, server: SimmServer | None, unknown_flags: Sequence[str] = ()) -> None:
        self.server = server
        self.flags: dict[str, str] = {}
        self.unknown_flags = unknown_flags
        self.regions: list[MrExt] = []
        self.refuses_memory = False
        module = self

        class BoundStore(_Store):
            def __init__(self) -> None:
                super().__init__(module)

        self.Store = BoundStore
        self.BlockView = _BlockView

    def set_flag(self, name: str, value: str) -> bool:
        if name in self.unknown_flags:
            return False
        self.flags[name] = value
        return True

    def register_mr(self, tensor: Any) -> MrExt | None:
        if self.refuses_memory:
            return None
        region = MrExt(tensor.data_ptr(), tensor.numel() * tensor.element_size())
        self.regions.append(region)
        return region

    def deregister_mr(self, region: MrExt) -> bool:
        self.regions.remove(region)
        return True


@dataclass(frozen=True)
class _BlockView:
    address: int
    size_bytes: int
    region: MrExt

    @classmethod
    def from_buffer(cls, address: int, size_bytes: int, region: MrExt) -> _BlockView:
        return cls(address, size_bytes, region)


class _Store:
    def __init__(self, module: SimmModule) -> None:
        self._module = module
        if module.server is None or "cm_primary_node_ip" not in module.flags:
            raise Aborted("no manager")
        self._server = module.server

    def mexists(self, keys: list[str]) -> list[bool]:
        if self._trouble("mexists", keys):
            return [False] * len(keys)
        with self._server.lock:
            return [self._server.says_yes or key in self._server.values for key in keys]

    def mput(self, keys: list[str], views: list[_BlockView]) -> list[int]:
        wrong = self._trouble("mput", keys) or self._bad(keys, views) or self._server.put_code
        if wrong:
            return [wrong] * len(keys)
        with self._server.lock:
            for key, view in zip(keys, views, strict=True):
                self._server.store(key, ctypes.string_at(view.address, view.size_bytes))
        return [0] * len(keys)

    def mget(self, keys: list[str], views: list[_BlockView]) -> list[int]:
        wrong = self._trouble("mget", keys) or self._bad(keys, views)
        if wrong:
            return [wrong] * len(keys)
        codes = []
        with self._server.lock:
            for key, view in zip(keys, views, strict=True):
                value = self._server.values.get(key)
                if value is None or len(value) > view.size_bytes:
                    codes.append(-2101)
                else:
                    ctypes.memmove(view.address, value, len(value))
                    codes.append(len(value))
        return codes

    def delete(self, key: str) -> int:
        wrong = self._trouble("delete", [key])
        if wrong:
            return wrong
        with self._server.lock:
            return 0 if self._server.values.pop(key, None) is not None else -2101

    def _trouble(self, call: str, keys: Sequence[str]) -> int:
        self._server.calls.append((call, len(keys)))
        if not self._server.answers_within(int(self._module.flags.get("clnt_sync_req_timeout_ms", "1000")) / 1000):
            return -2300
        return -2301 if self._server.state is State.KILLED else 0

    def _bad(self, keys: Sequence[str], views: Sequence[_BlockView]) -> int:
        for key, view in zip(keys, views, strict=True):
            assert view.region in self._module.regions, "memory that is not registered"
            assert view.region.address <= view.address, "before the region"
            assert view.address + view.size_bytes <= view.region.address + view.region.size_bytes, "beyond the region"
            if not 1 <= len(key.encode()) <= 256 or not 1 <= view.size_bytes <= LARGEST_BYTES:
                return -1000
        return 0
