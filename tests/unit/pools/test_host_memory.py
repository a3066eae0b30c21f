"""What memory may still be taken, by made-up trees of the kernel's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from unified_tree import ConfigurationError
from unified_tree.controllers.pools import check_host_memory, host_memory_available

MIB = 1 << 20


def tree(root: Path, files: dict[str, str], *, available_mib: int = 1000) -> Path:
    """A root folder with `proc/meminfo` and these files."""
    files = {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {available_mib * 1024} kB\n"} | files
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def group(folder: str, limit: str, used_mib: int, *, file_mib: int = 0, high: str = "max") -> dict[str, str]:
    """The files of one version 2 group."""
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.high": f"{high}\n",
        f"{folder}/memory.current": f"{used_mib * MIB}\n",
        f"{folder}/memory.stat": f"anon 5\ninactive_file {file_mib * MIB}\nactive_file 7\n",
    }


def old_group(folder: str, limit: int, used_mib: int, *, file_mib: int = 0) -> dict[str, str]:
    """The files of one version 1 group."""
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{used_mib * MIB}\n",
        f"{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {file_mib * MIB}\n",
    }


VERSION_1 = "7:cpu,cpuacct:/x\n4:memory:/a/b\n1:name=systemd:/c:d\n0::/\n"
GROUPS: dict[str, tuple[str, dict[str, str], int]] = {
    "no limit in the group": ("0::/a\n", group("sys/fs/cgroup/a", "max", 5), 1000),
    "the soft limit counts too": ("0::/a\n", group("sys/fs/cgroup/a", str(100 * MIB), 30, high=str(50 * MIB)), 20),
    "version 1 among other controllers": (
        VERSION_1,
        old_group("sys/fs/cgroup/memory", 1 << 63, 500)
        | old_group("sys/fs/cgroup/memory/a", 200 * MIB, 50, file_mib=20)
        | old_group("sys/fs/cgroup/memory/a/b", 400 * MIB, 40),
        170,
    ),
    "a container sees its group as the mount": ("4:memory:/docker/0123\n", old_group("sys/fs/cgroup/memory", 60 * MIB, 10), 50),
    "both versions at once": ("0::/a\n", group("sys/fs/cgroup/unified/a", str(9 * MIB), 2), 7),
    "a group beside the namespace does not lead out of the mount": (
        "0::/../../outside\n",
        group("sys/outside", str(MIB), 0) | group("sys/fs/cgroup", "max", 0),
        1000,
    ),
    "over the limit is nothing left": ("0::/a\n", group("sys/fs/cgroup/a", str(10 * MIB), 30), 0),
}
"""The groups of a process, their files, and the MiB that it may take."""


def test_the_machine_alone(tmp_path: Path) -> None:
    assert host_memory_available(tree(tmp_path, {})) == 1000 * MIB


@pytest.mark.parametrize(("own", "files", "left_mib"), GROUPS.values(), ids=GROUPS)
def test_what_groups_leave(tmp_path: Path, own: str, files: dict[str, str], left_mib: int) -> None:
    assert host_memory_available(tree(tmp_path, {"proc/self/cgroup": own, **files})) == left_mib * MIB


@pytest.mark.parametrize("limited", ["sys/fs/cgroup", "sys/fs/cgroup/a", "sys/fs/cgroup/a/b"])
def test_every_ancestor_counts(tmp_path: Path, limited: str) -> None:
    files = {"proc/self/cgroup": "0::/a/b\n"}
    for folder in ("sys/fs/cgroup", "sys/fs/cgroup/a", "sys/fs/cgroup/a/b"):
        files |= group(folder, str(100 * MIB) if folder == limited else "max", 30, file_mib=10)
    assert host_memory_available(tree(tmp_path, files)) == 80 * MIB


@pytest.mark.parametrize("broken", ["", "rubbish", "-\n"])
def test_unreadable_files_set_no_limit(tmp_path: Path, broken: str) -> None:
    files = {"proc/self/cgroup": "0::/a\n", **group("sys/fs/cgroup/a", str(10 * MIB), 3)}
    assert host_memory_available(tree(tmp_path, files | {"sys/fs/cgroup/a/memory.max": broken})) == 1000 * MIB
    (tmp_path / "sys/fs/cgroup/a/memory.stat").unlink()
    assert host_memory_available(tree(tmp_path, {"sys/fs/cgroup/a/memory.max": str(10 * MIB)})) == 7 * MIB


def test_a_system_without_these_files_has_all_its_memory(tmp_path: Path) -> None:
    assert host_memory_available(tmp_path) >= host_memory_available() > 0


def test_the_check_names_what_is_needed_and_what_there_is(tmp_path: Path) -> None:
    root = tree(tmp_path, {}, available_mib=10)
    check_host_memory(9 * MIB, MIB, component="full", root=root)
    with pytest.raises(
        ConfigurationError, match=f"full: {9 * MIB + 1} bytes .* {MIB} to be left over, {10 * MIB} are available"
    ):
        check_host_memory(9 * MIB + 1, MIB, component="full", root=root)
