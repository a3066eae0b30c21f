"""The ZeroMQ context of LMCache's client: the process's own, with connections whose events end before their reader does.

LMCache's client closes the socket that reads a connection's events, then the connection. If the daemon ends in between, the
context's I/O thread waits for ever for a reader of that event, and no link of the process moves a byte any more. Rejected: a
context for each link, which would have a thread that waits for ever, and the process could not end.
"""

from __future__ import annotations

from typing import Any


def client_context(zmq: Any, linger_ms: int) -> Any:
    """A context beside the process's own, without an I/O thread of its own.

    Args:
        zmq: the package.
        linger_ms: how long a closed connection tries to send what it has not sent.
    """

    class Connection(zmq.Socket):  # type: ignore[misc]
        read_from: Any = None

        def get_monitor_socket(self, events: int | None = None, addr: str | None = None) -> Any:
            reader = super().get_monitor_socket(events, addr)
            reader.read_from = self
            return reader

        def close(self, linger: int | None = None) -> None:
            if self.read_from is not None and not self.read_from.closed:
                self.read_from.disable_monitor()
            super().close(linger)

    class ClientContext(zmq.Context):  # type: ignore[misc]
        _socket_class = Connection

    context = ClientContext(zmq.Context.instance())
    context.setsockopt(zmq.LINGER, linger_ms)
    return context
