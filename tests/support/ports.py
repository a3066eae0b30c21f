"""Ports for servers that tests start.

Below those that the kernel hands to whoever asks for any, since one of these may be taken, by some connection, before the
server binds it; and each worker of a test run has ports of its own.
"""

from __future__ import annotations

import os
import socket
from itertools import count

FIRST, PORTS, WORKERS = 12_000, 2000, 10
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % WORKERS
_turns = count(os.getpid())


def free_port(bus: int = 0) -> int:
    """A port of 127.0.0.1 that nobody listens on, other than the ones before; nor on the one `bus` above it."""
    for turn in _turns:
        port = FIRST + _worker * PORTS + turn % PORTS
        if _is_free(port) and _is_free(port + bus):
            return port
    raise AssertionError  # turns never end


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
