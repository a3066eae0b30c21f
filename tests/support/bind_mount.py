"""A real FUSE mount: a directory shown at another place by a daemon, which can be frozen and killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

import pytest
from waiting import PATIENCE_S


def why_not() -> str | None:
    """Why nothing can be mounted here; None if it can."""
    if shutil.which("bindfs") is None or shutil.which("fusermount") is None:
        return "there is no bindfs; on Debian apt-get install bindfs"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is not there, or not for us"
    folder = Path(tempfile.mkdtemp())
    try:
        BindMount(folder).end()
    except AssertionError as error:
        return str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None


_REASON: list[str | None] = []


def skip_unless_it_runs() -> None:
    """Skip the test that asks; tried once."""
    if not _REASON:
        _REASON.append(why_not())
    if _REASON[0] is not None:
        pytest.skip(f"no FUSE mount: {_REASON[0]}")


class BindMount:
    """`folder/back` at `folder/point`; a context manager that unmounts it, whatever became of the daemon.

    Attributes:
        back: what is shown.
        point: where.
    """

    def __init__(self, folder: Path) -> None:
        self.back, self.point = folder / "back", folder / "point"
        self.back.mkdir(exist_ok=True)
        self.point.mkdir(exist_ok=True)
        self.start()

    def start(self) -> None:
        """Mount it."""
        self.daemon = subprocess.Popen(
            ["bindfs", "-f", "--no-allow-other", str(self.back), str(self.point)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + PATIENCE_S
        while not os.path.ismount(self.point):
            if self.daemon.poll() is not None or time.monotonic() > deadline:
                self.daemon.kill()
                said = self.daemon.communicate()[1].decode()
                raise AssertionError(f"bindfs does not mount: {said.strip()}")
            time.sleep(0.01)

    def pause(self) -> None:
        self.daemon.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.daemon.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the daemon: every call on the mount fails then."""
        self.daemon.kill()
        self.daemon.wait(PATIENCE_S)
        assert self.daemon.stderr is not None
        self.daemon.stderr.close()

    def unmount(self) -> None:
        """Take the mount away, used or not."""
        subprocess.run(["fusermount", "-u", "-z", str(self.point)], check=False, capture_output=True, timeout=PATIENCE_S)

    def end(self) -> None:
        self.kill()
        self.unmount()

    def __enter__(self) -> BindMount:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()
