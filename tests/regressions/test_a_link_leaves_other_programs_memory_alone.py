"""`open_daemon` removed segments of shared memory whose process it could not see: with a /dev/shm shared between containers
these were live memory of other programs."""

from __future__ import annotations

import os
from pathlib import Path

import lmcache_server
import pytest
from ports import free_port

from unified_tree.controllers.adapters.lmcache import open_daemon, remove_leftovers
from unified_tree.controllers.testing.linked_tensors import LinkedTensors
from unified_tree.terms.errors import LinkError

lmcache_server.skip_unless_it_runs()
pytestmark = lmcache_server.QUIET


def test_a_segment_of_a_process_that_is_not_there() -> None:
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
