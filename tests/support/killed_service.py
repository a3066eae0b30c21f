"""What a metadata service leaves on disk when it is killed, without a process that is killed."""

from __future__ import annotations

from pathlib import Path

DATABASE, LOG = "metadata", "metadata-wal"
Files = dict[str, bytes]


def left_behind(path: Path) -> Files:
    """The files of a state directory as a kill at this moment leaves them."""
    return {name: (path / name).read_bytes() for name in (DATABASE, LOG)}


def laid_out(files: Files, path: Path) -> Path:
    """A new directory with these files."""
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path
