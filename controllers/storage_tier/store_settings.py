"""The settings of a store behind an engine's host tier, as they stand in the engine's configuration, and the name of a
checkpoint under which its pages are stored there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.storage_tier.policies import PrefetchMode, PrefetchPolicy
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.declare.page_format import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """The store behind the host tier.

    Attributes:
        engine: its name: `file`, `mooncake`, `redis`, `hf3fs`, `simm`, or one of an installed package.
        options: of that engine, `directory` and `capacity_bytes` of `file`.
        weights_version: names the weights; None for a digest of the model's files.
        prefetch: fields of `PrefetchPolicy`; `mode` is a name, the engine's own default if left out.
    """

    engine: str
    options: Mapping[str, Any]
    weights_version: str | None = None
    prefetch: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> StoreSettings:
        """The settings in a mapping; what is none of them is an option. Raises ConfigurationError for one that does not fit."""
        if not isinstance(given, Mapping) or not isinstance(given.get("engine"), str):
            raise ConfigurationError(
                f'store must name an engine, such as {{"engine": "file", "directory": …}}, not {repr_of(given)}'
            )
        if not isinstance(given.get("prefetch") or {}, Mapping):
            raise ConfigurationError(f"store.prefetch must be a mapping, not {repr_of(given['prefetch'])}")
        names = _names(cls)
        store = {"options": {key: value for key, value in given.items() if key not in names}, **given}
        return cls(**{key: store[key] for key in store if key in names})

    def options_for(self, shard: Shard) -> Mapping[str, Any]:
        """The options of the engine for one of several tensor-parallel ranks. They divide a directory of files, and each has a
        file of its own on 3FS.
        """
        if shard.count == 1:
            return self.options
        if self.engine == "file":
            return {"shares": shard.count, **self.options}
        if self.engine == "hf3fs" and "rank" in self.options:
            return {**self.options, "rank": f"{self.options['rank']}-{shard.index}"}
        return self.options

    def prefetch_policy(self, default_mode: str) -> PrefetchPolicy:
        """How prefetches are made. Raises ConfigurationError for a field or a value that does not exist."""
        given = {"mode": default_mode, **(self.prefetch or {})}
        check_names(PrefetchPolicy, given, "store.prefetch")
        try:
            return PrefetchPolicy(**{**given, "mode": PrefetchMode(given["mode"])})
        except (ValueError, TypeError) as error:
            modes = ", ".join(mode.value for mode in PrefetchMode)
            raise ConfigurationError(f"store.prefetch: {error}; the modes are {modes}, all else are numbers") from None


def check_names(settings: type, given: object, where: str) -> None:
    """Raise ConfigurationError unless `given` is a mapping with names of a class of settings."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{where} must be a mapping, not {repr_of(given)}")
    unknown = sorted(set(given) - set(_names(settings)), key=str)
    if unknown:
        raise ConfigurationError(f"{where}: there is no setting {unknown[0]!r}; there are {', '.join(_names(settings))}")


def _names(settings: type) -> list[str]:
    return [field.name for field in fields(settings)]


def weights_version(model_path: str, label: str) -> str:
    """A name of a model's weights: the label, and a digest of the path, or of the names, sizes and ends of local files.

    Two checkpoints of one shape get different names, and a copy on another machine gets the same. Cost: reads 128 KiB a file.
    """
    digest = hashlib.sha256()
    folder = Path(model_path)
    is_local = os.path.isdir(model_path)  # False for what no path can be
    if not is_local:
        digest.update(model_path.encode("utf-8", "surrogatepass"))
    for file in sorted(folder.glob("*")) if is_local else ():
        if file.suffix in (".safetensors", ".bin", ".json", ".gguf") and file.is_file():
            size = file.stat().st_size
            digest.update(f"{file.name} {size}\n".encode("utf-8", "surrogatepass"))
            with file.open("rb") as opened:
                digest.update(opened.read(1 << 16))
                opened.seek(max(0, size - (1 << 16)), os.SEEK_SET)
                digest.update(opened.read(1 << 16))
    return f"{label}-{digest.hexdigest()[:32]}"
