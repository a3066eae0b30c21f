"""A prefix linker whose answers come when a test says so; until then it may write to pages at any moment, and does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.prefix_linker import MemoryLinker, PrefixLinker, Progress, Span
from unified_tree.controllers.testing.linked_tensors import PAGE, LinkedTensors
from unified_tree.errors import LinkError


class HeldLinker:
    """A PrefixLinker before a MemoryLinker.

    Attributes:
        holds_lookups, holds_transfers: what is asked from now on waits for `let_go`.
        fails: transfers that are let go fail, half written.
        is_healthy: whether the peer is there.
    """

    def __init__(self, inner: MemoryLinker, tensors: LinkedTensors) -> None:
        self.inner = inner
        self.tensors = tensors
        self.holds_lookups = self.holds_transfers = self.fails = False
        self.is_healthy = True
        self.lookups: set[str] = set()
        self.running: dict[str, tuple[str, Span]] = {}
        self.failed: set[str] = set()

    @property
    def chunk_tokens(self) -> int:
        return self.inner.chunk_tokens

    @property
    def busy_pages(self) -> NDArray[np.int64]:
        """Pages that may be written at any moment."""
        spans = [self._own(span) for kind, span in self.running.values() if kind == "retrieve"]
        return np.unique(np.concatenate([*spans, np.empty(0, np.int64)]))

    @property
    def read_pages(self) -> NDArray[np.int64]:
        """Pages that are being read."""
        spans = [span.pages["full"] for kind, span in self.running.values() if kind == "store"]
        return np.unique(np.concatenate([*spans, np.empty(0, np.int64)]))

    def lookup(self, request: str, tokens: NDArray[np.int64], salt: str) -> None:
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
            self.tensors.spoil(self.busy_pages)
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

    def let_go(self) -> None:
        """All that was held ends now."""
        self.lookups.clear()
        for name, (kind, span) in list(self.running.items()):
            del self.running[name]
            if self.fails:
                self.failed.add(name)
                if kind == "retrieve":
                    self.tensors.spoil(self._own(span)[:1])
            elif kind == "retrieve":
                self.inner.retrieve(name, span)
            else:
                self.inner.store(name, span)

    def _begin(self, kind: str, name: str, span: Span) -> None:
        self.running[name] = (kind, span)
        if not self.holds_transfers:
            self.let_go()

    def _own(self, span: Span) -> NDArray[np.int64]:
        return span.pages["full"][(span.begin - span.first_token(self.chunk_tokens)) // PAGE :]


def conforms(linker: HeldLinker) -> PrefixLinker:
    """For the type checker."""
    return linker
