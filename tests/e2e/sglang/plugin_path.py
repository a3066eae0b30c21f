"""The folders that the engine's processes import from: the stand-ins, and a checkout of unified_tree with its entry points."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

STANDINS = Path(__file__).parent / "standins"


def joined(work: Path, source: Path | None) -> str:
    """A PYTHONPATH. Folders on it that end in `.dist-info` tell SGLang of plug-ins, as installed packages do.

    The source is a checkout, or a folder that pip has installed into with `--target`.
    """
    folders = [STANDINS] if source is None else [STANDINS, source.resolve()]
    if source is not None and (source / "pyproject.toml").exists():
        folders.append(_entry_points(work, source))
    return os.pathsep.join(str(folder) for folder in folders)


def _entry_points(work: Path, source: Path) -> Path:
    """A folder that stands for an installation of a checkout: it holds the entry points of its pyproject.toml."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    info = work / "entry-points" / f"unified_tree-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups: dict[str, dict[str, str]] = project.get("entry-points", {})
    lines = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in each.items()) for group, each in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return info.parent.resolve()
