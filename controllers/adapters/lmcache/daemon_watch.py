"""Tells a daemon that has ended from one that does not answer.

To a request both look the same. But the kernel closes the connections of a process that has ended, after its memory is freed;
only then is it certain that the daemon writes to no page any more.
"""

from __future__ import annotations

import threading
import time
from importlib import import_module


class DaemonWatch:
    """An idle connection whose break shows that the daemon has ended. Thread-safe.

    Args:
        address: "host:port".
    """

    def __init__(self, address: str) -> None:
        self._zmq = import_module("zmq")
        self._lock = threading.Lock()
        self._losses = 0
        self._is_connected = False
        self._is_closed = False
        self._socket = self._zmq.Context.instance().socket(self._zmq.DEALER)
        self._socket.setsockopt(self._zmq.LINGER, 0)
        events = self._zmq.EVENT_HANDSHAKE_SUCCEEDED | self._zmq.EVENT_DISCONNECTED
        self._monitor = self._socket.get_monitor_socket(events)
        self._socket.connect(f"tcp://{address}")

    @property
    def losses(self) -> int:
        """How often the connection has broken. Cost: microseconds."""
        with self._lock:
            self._read()
            return self._losses

    def wait(self, timeout_s: float) -> bool:
        """Whether the daemon is connected by then. The end of one that was not would go unnoticed. Blocks."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._read()
                if self._is_connected or time.monotonic() > deadline:
                    return self._is_connected
            time.sleep(0.002)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._is_closed = True
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(0)

    def _read(self) -> None:
        parse = import_module("zmq.utils.monitor").recv_monitor_message
        while not self._is_closed and self._monitor.poll(0):
            self._is_connected = parse(self._monitor)["event"] == self._zmq.EVENT_HANDSHAKE_SUCCEEDED
            self._losses += not self._is_connected
