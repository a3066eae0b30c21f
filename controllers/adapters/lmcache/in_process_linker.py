"""A prefix linker over an LMCache engine in this process, whose calls a thread of its own makes one after another.

Prefixes lie in this process's host memory and go with it, but for what the engine's own file of settings adds: a disk, or a
remote store.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.adapters.lmcache.in_process_engine import InProcessEngine
from unified_tree.controllers.adapters.lmcache.lmcache_settings import InProcessSettings
from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool
from unified_tree.controllers.prefix_linker.prefix_linker import Progress, Span, check_span
from unified_tree.controllers.storage.engine_settings import load_settings
from unified_tree.terms.errors import ConfigurationError, LinkError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def open_in_process(
    pools: Sequence[LinkedPool], *, config_file: str | FilePath | None = None, **settings: Any
) -> InProcessLinker:
    """A linker with the settings of `InProcessSettings`, from here, a file, or the environment (`load_settings`).

    Raises as `InProcessLinker`, and ConfigurationError for settings.
    """
    return InProcessLinker(pools, load_settings(InProcessSettings, "lmcache_in_process", settings, file=config_file))


class InProcessLinker:
    """A PrefixLinker over an engine of its own.

    Args:
        pools: the device pools, all of one page size.
        settings: of the engine.

    Raises ConfigurationError for windows and states, for chunks that do not fit the pages, or without the package.
    """

    def __init__(self, pools: Sequence[LinkedPool], settings: InProcessSettings) -> None:
        beyond = [pool.name for pool in pools if not pool.coverage.is_path]
        if beyond:
            raise ConfigurationError(
                f"lmcache: an engine in this process keeps the pages of every token, so not {', '.join(beyond)}; a daemon that "
                "was started with --separate-object-groups carries windows and states"
            )
        self._pools = {pool.name: pool for pool in pools}
        self._page_tokens = pools[0].page_tokens
        self._name = f"unified-tree-{secrets.token_hex(8)}"
        self._engine = InProcessEngine(pools, settings)
        self._lookups: dict[str, _Lookup] = {}
        self._transfers: dict[str, Future[bool]] = {}
        self._is_closed = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lmcache-in-process")

    @property
    def chunk_tokens(self) -> int:
        """See PrefixLinker.chunk_tokens."""
        return self._engine.chunk_tokens

    @property
    def is_healthy(self) -> bool:
        """See PrefixLinker.is_healthy."""
        return not self._is_closed and self._engine.is_healthy

    def lookup(self, request: str, tokens: NDArray[np.int64], salt: str) -> None:
        """See PrefixLinker.lookup."""
        self._check_open()
        assert request not in self._lookups, f"{request!r} was used before"
        ids = tokens[: tokens.size // self._engine.chunk_tokens * self._engine.chunk_tokens].tolist()
        name = f"{self._name}-{request}"
        self._lookups[request] = _Lookup(name, self._thread.submit(self._engine.lookup, name, ids, salt))

    def found(self, request: str) -> int | None:
        """See PrefixLinker.found."""
        self._check_open()
        asked = self._lookups[request].asked
        if not asked.done():
            return None
        return asked.result() if asked.exception() is None else 0

    def retrieve(self, request: str, span: Span) -> None:
        """See PrefixLinker.retrieve."""
        self._check_open()
        check_span(span, self._engine.chunk_tokens, self._page_tokens, self._pools)
        name = self._lookups[request].name
        self._transfers[request] = self._after_kernels(lambda: self._engine.retrieve(name, span))

    def store(self, name: str, span: Span) -> None:
        """See PrefixLinker.store."""
        self._check_open()
        check_span(span, self._engine.chunk_tokens, self._page_tokens, self._pools)
        assert span.begin % self._engine.chunk_tokens == 0 and name not in self._transfers

        def write() -> bool:
            self._engine.store(f"{self._name}-{name}", span)
            return True

        self._transfers[name] = self._after_kernels(write)

    def progress(self, name: str) -> Progress:
        """See PrefixLinker.progress."""
        self._check_open()
        transfer = self._transfers[name]
        if not transfer.done():
            return Progress.RUNNING
        return Progress.DONE if transfer.exception() is None and transfer.result() else Progress.FAILED

    def release(self, name: str) -> None:
        """See PrefixLinker.release."""
        transfer = self._transfers.get(name)
        if transfer is not None and not transfer.done():
            raise LinkError(f"lmcache: the transfer of {name!r} runs, so it cannot be released")
        self._transfers.pop(name, None)
        lookup = self._lookups.pop(name, None)
        if lookup is not None and not self._is_closed:
            self._thread.submit(self._engine.unlock, lookup.name)

    def close(self) -> None:
        """See PrefixLinker.close; waits for what runs, which only this process could keep from ending."""
        if self._is_closed:
            return
        for request in list(self._lookups):
            if request not in self._transfers:
                self.release(request)
        self._is_closed = True
        self._thread.shutdown(wait=True)
        self._engine.close()

    def _after_kernels(self, work: Callable[[], bool]) -> Future[bool]:
        """Run it in the thread, after what this thread has launched on the device until now."""
        tensor = next(iter(self._pools.values())).tensors[0]
        if tensor.device.type != "cuda":
            return self._thread.submit(work)
        event = import_module("torch").cuda.Event()
        event.record()

        def later() -> bool:
            event.synchronize()
            return work()

        return self._thread.submit(later)

    def _check_open(self) -> None:
        if self._is_closed:
            raise LinkError("the lmcache linker was closed")


@dataclass(frozen=True, slots=True)
class _Lookup:
    name: str
    asked: Future[int]
