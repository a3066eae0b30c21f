"""Links to daemons of LMCache."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import lmcache_server
import pytest
from ports import free_port

from unified_tree.controllers.adapters.lmcache import DaemonLinker, open_daemon, remove_leftovers
from unified_tree.controllers.testing.linked_tensors import LinkedTensors
from unified_tree.terms.errors import LinkError

lmcache_server.skip_unless_it_runs()


pytestmark = lmcache_server.QUIET


def opened(server: lmcache_server.Lmcache, tensors: LinkedTensors) -> DaemonLinker:
    return open_daemon(tensors.linked, daemon=server.address, model="ends", answer_timeout_s=20.0)


def test_a_daemon_may_end_while_a_link_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon of LMCache's that ended while a link to it closed blocked the I/O thread of every link of the process.
    LMCache's client closes the reader of its connection's events before the connection; an event in between waited for
    ever.
    """
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


def test_a_link_leaves_other_programs_memory_alone() -> None:
    """`open_daemon` removed segments of shared memory whose process it could not see: with a /dev/shm shared between
    containers these were live memory of other programs.
    """
    nobody = int(Path("/proc/sys/kernel/pid_max").read_text()) - 1
    while Path(f"/proc/{nobody}").exists():
        nobody -= 1
    segment = Path(f"/dev/shm/lmcache_kv_{nobody}_0")
    segment.write_bytes(b"live memory of a container")
    os.utime(segment, (1, 1))
    try:
        with pytest.raises(LinkError, match="no answer"):
            open_daemon(
                LinkedTensors(2).linked,
                daemon=f"127.0.0.1:{free_port()}",
                model="tests",
                answer_timeout_s=0.1,
            )
        assert segment.read_bytes() == b"live memory of a container"
        assert segment.name not in remove_leftovers(), "nor when asked: nothing shows that it is ours"
        assert segment.exists()
    finally:
        segment.unlink(missing_ok=True)
