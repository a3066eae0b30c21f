"""Tells a daemon that has ended from one that does not answer.

To a request both look the same. But the kernel closes the connections of a process that has ended, after its memory is freed;
only then is it certain that the daemon writes to no page any more.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any


class DaemonWatch:
    """An idle connection whose break shows that the daemon has ended. Thread-safe.

    Args:
        address: "host:port".
    """

    def __init__(self, address: str) -> None:
        self._zmq = import_module("zmq")
        self._lock = threading.Lock()
        self._losses = 0
        self._is_closed = False
        self._socket = self._zmq.Context.instance().socket(self._zmq.DEALER)
        self._socket.setsockopt(self._zmq.LINGER, 0)
        self._monitor = self._socket.get_monitor_socket(self._zmq.EVENT_DISCONNECTED)
        self._socket.connect(f"tcp://{address}")

    @property
    def losses(self) -> int:
        """How often the connection has broken. Cost: microseconds."""
        with self._lock:
            while not self._is_closed and self._monitor.poll(0):
                self._parsed(self._monitor)
                self._losses += 1
            return self._losses

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._is_closed = True
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(0)

    def _parsed(self, monitor: Any) -> None:
        import_module("zmq.utils.monitor").recv_monitor_message(monitor)
