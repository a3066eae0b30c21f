"""A prefix linker whose answers come when a test says so; until then it may write to pages at any moment, and does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from unified_tree import Point
from unified_tree.controllers.prefix_linker import LinkedPool, MemoryLinker, PrefixLinker, Progress, Span
from unified_tree.terms.errors import LinkError

Ids = NDArray[np.int64]


class HeldLinker:
    """A PrefixLinker before a MemoryLinker.

    Args:
        inner: has the prefixes.
        pools: the same that it was given.
        spoil: writes garbage to device pages of a pool.

    Attributes:
        holds_lookups, holds_transfers: what is asked from now on waits for `finish`.
        fails: transfers that finish fail, after writing garbage.
        is_healthy: whether the peer is there.
    """

    def __init__(self, inner: MemoryLinker, pools: Sequence[LinkedPool], spoil: Callable[[str, Ids], None]) -> None:
        self.inner = inner
        self.holds_lookups = self.holds_transfers = self.fails = False
        self.is_healthy = True
        self.lookups: set[str] = set()
        self.running: dict[str, tuple[str, Span]] = {}
        self.failed: set[str] = set()
        self._pools = pools
        self._spoil = spoil

    @property
    def chunk_tokens(self) -> int:
        return self.inner.chunk_tokens

    @property
    def busy_pages(self) -> Ids:
        """Pages of `full` that may be written at any moment."""
        return _union(
            ids for kind, span in self.running.values() if kind == "retrieve" for name, ids in self._own(span) if name == "full"
        )

    @property
    def read_pages(self) -> Ids:
        """Pages of `full` that are being read."""
        return _union(span.pages["full"] for kind, span in self.running.values() if kind == "store")

    def lookup(self, request: str, tokens: Ids, salt: str) -> None:
        self.inner.lookup(request, tokens, salt)
        if self.holds_lookups:
            self.lookups.add(request)

    def found(self, request: str) -> int | None:
        if not self.is_healthy:
            return 0
        return None if request in self.lookups else self.inner.found(request)

    def retrieve(self, request: str, span: Span) -> None:
        self._begin("retrieve", request, span)

    def store(self, name: str, span: Span) -> None:
        self._begin("store", name, span)

    def progress(self, name: str) -> Progress:
        if name in self.running:
            self.spoil_running()
            return Progress.RUNNING
        return Progress.FAILED if name in self.failed else self.inner.progress(name)

    def release(self, name: str) -> None:
        if name in self.running:
            raise LinkError(f"{name} runs")
        self.lookups.discard(name)
        self.failed.discard(name)
        self.inner.release(name)

    def close(self) -> None:
        if self.running:
            raise LinkError(f"running: {sorted(self.running)}")
        self.inner.close()

    def finish(self) -> None:
        """All that was held ends now."""
        self.lookups.clear()
        for name, (kind, span) in list(self.running.items()):
            if self.fails:
                self.failed.add(name)
                self._write_garbage(kind, span)
            elif kind == "retrieve":
                self.inner.retrieve(name, span)
            else:
                self.inner.store(name, span)
            del self.running[name]

    def spoil_running(self) -> None:
        """Retrieves under way write something."""
        for kind, span in self.running.values():
            self._write_garbage(kind, span)

    def _begin(self, kind: str, name: str, span: Span) -> None:
        self.running[name] = (kind, span)
        if not self.holds_transfers:
            self.finish()

    def _write_garbage(self, kind: str, span: Span) -> None:
        if kind == "retrieve":
            for name, ids in self._own(span):
                self._spoil(name, ids)

    def _own(self, span: Span) -> Iterator[tuple[str, Ids]]:
        """What a retrieve may write of each pool: not the pages before its beginning."""
        for pool in self._pools:
            first, _ = pool.page_range(span.first_token(self.chunk_tokens), span.end)
            before = 0 if isinstance(pool.coverage, Point) else max(0, span.begin // pool.page_tokens - first)
            yield pool.name, span.pages[pool.name][before:]


def _union(ids: Iterator[Ids]) -> Ids:
    return np.unique(np.concatenate([np.empty(0, np.int64), *ids]))


def conforms(linker: HeldLinker) -> PrefixLinker:
    """For the type checker."""
    return linker
