"""A daemon of LMCache's that ended while a link to it closed blocked the I/O thread of every link of the process.

LMCache's client closes the reader of its connection's events before the connection; an event in between waited for ever.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import lmcache_server
import pytest

from unified_tree.controllers.adapters.lmcache import DaemonLinker, open_daemon
from unified_tree.controllers.testing.linked_tensors import LinkedTensors

lmcache_server.skip_unless_it_runs()
pytestmark = lmcache_server.QUIET


def opened(server: lmcache_server.Lmcache, tensors: LinkedTensors) -> DaemonLinker:
    return open_daemon(tensors.linked, daemon=server.address, model="ends", answer_timeout_s=20.0)


def test_the_next_link_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    zmq = import_module("zmq")
    close, tensors = zmq.Socket.close, LinkedTensors(4, share=True)

    def close_late(socket: Any, linger: int | None = None) -> None:
        """A connection closes only when the daemon has ended and the kernel has said so."""
        if socket.type == zmq.DEALER and server.is_running:
            server.kill()
            lmcache_server.until(lambda: linker._watch.losses, 20)
        close(socket, linger)

    with lmcache_server.Lmcache() as server:
        linker = opened(server, tensors)
        monkeypatch.setattr(zmq.Socket, "close", close_late)
        linker.close()
        monkeypatch.undo()
        assert not server.is_running
    with lmcache_server.Lmcache() as server:
        opened(server, tensors).close()
