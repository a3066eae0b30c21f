"""This library as a contestant: UnifiedTree and PageAllocator as a scheduler would call them."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from benches.subject import WINDOW_TOKENS, Capacity, Request, Tokens
from unified_tree import Boundary, Component, Key, Path, Point, Trailing, UnifiedTree
from unified_tree.controllers import PageAllocator

TRACK_INTERVAL_TOKENS = 256
"""How often SGLang saves a state while it decodes, by default (`mamba_track_interval`)."""
SETS: dict[str, tuple[Component, ...]] = {
    "full": (Component(name="full", coverage=Path()),),
    "full_swa": (Component(name="full", coverage=Path()), Component(name="swa", coverage=Trailing(WINDOW_TOKENS))),
    "full_mamba": (Component(name="full", coverage=Path()), Component(name="mamba", coverage=Point())),
    "full_mamba_256": (
        Component(name="full", coverage=Path()),
        Component(name="mamba", coverage=Point(), save_grid_tokens=TRACK_INTERVAL_TOKENS),
    ),
}


class TreeSubject:
    """UnifiedTree with one PageAllocator a pool."""

    def open(self, components: str, page_size: int, capacity: Capacity | None) -> None:
        """See Subject."""
        self.page_size = page_size
        counts = page_counts(components, page_size, capacity)
        self.tree = UnifiedTree(SETS[components], page_size, page_counts=counts)
        self.pools = {c.name: PageAllocator(c.name, counts.get(c.name)) for c in SETS[components]}
        self.window = "swa" in self.pools
        self.state = "mamba" in self.pools

    def insert(self, tokens: Tokens, known_tokens: int) -> tuple[int, int]:
        """See Subject. Of a window the caller brings what the next token needs."""
        end = len(tokens) // self.page_size
        new = end - known_tokens // self.page_size
        pages = {"full": self.pools["full"].allocate(new)}
        if self.window:
            pages["swa"] = self.pools["swa"].allocate(min(new, -(-WINDOW_TOKENS // self.page_size)))
        states = None
        if self.state:
            states = {"mamba": {end * self.page_size: int(self.pools["mamba"].allocate(1)[0])}}
        start = perf_counter_ns()
        result = self.tree.insert(Key(tokens), pages, states)
        spent = perf_counter_ns() - start
        self._free(result.duplicates)
        return spent, result.matched_length

    def match(self, tokens: Tokens, *, with_pages: bool) -> tuple[int, int]:
        """See Subject."""
        tree = self.tree
        if with_pages:
            start = perf_counter_ns()
            match = tree.match_prefix(Key(tokens))
            tree.pages(match.device, "full")
        else:
            start = perf_counter_ns()
            match = tree.match_prefix(Key(tokens))
        return perf_counter_ns() - start, match.device.length

    def find(self, tokens: Tokens) -> Boundary:
        """See Subject."""
        return self.tree.match_prefix(Key(tokens)).device

    def hold(self, handle: Any) -> None:
        """See Subject."""
        self.tree.lock(handle)

    def lock_unlock(self, handle: Any) -> int:
        """See Subject."""
        tree = self.tree
        start = perf_counter_ns()
        receipt = tree.lock(handle)
        tree.unlock(receipt)
        return perf_counter_ns() - start

    def evict(self, pool: str, token_count: int) -> tuple[int, int]:
        """See Subject."""
        unit = 1 if pool == "mamba" else self.page_size
        needs = {pool: -(-token_count // unit)}
        start = perf_counter_ns()
        result = self.tree.evict(needs)
        spent = perf_counter_ns() - start
        self._free(result.freed)
        return spent, result.freed[pool].size * unit if pool in result.freed else 0

    def begin(self, prompt: Tokens) -> Request:
        """See Subject."""
        tree = self.tree
        t0 = perf_counter_ns()
        boundary = tree.match_prefix(Key(prompt), limit=len(prompt) - 1).device
        t1 = perf_counter_ns()
        receipt = tree.lock(boundary)
        t2 = perf_counter_ns()
        for name in self.pools:
            tree.pages(boundary, name)
        t3 = perf_counter_ns()
        return Request(
            cached_tokens=boundary.length, held=receipt, parts_ns={"match": t1 - t0, "lock": t2 - t1, "pages": t3 - t2}
        )

    def finish(self, request: Request, tokens: Tokens) -> None:
        """See Subject. As many window pages as full ones are allocated; the window's go into the tree, the rest back."""
        tree, pools, size = self.tree, self.pools, self.page_size
        held = request.cached_tokens // size
        t0 = perf_counter_ns()
        new = -(-len(tokens) // size) - held
        whole = len(tokens) // size
        needs = {name: (1 if name == "mamba" else new) - pool.free_pages for name, pool in pools.items()}
        needs = {name: count for name, count in needs.items() if count > 0}
        if needs:
            for name, ids in tree.evict(needs).freed.items():
                pools[name].free(ids)
        t1 = perf_counter_ns()
        fresh = {name: pool.allocate(1 if name == "mamba" else new) for name, pool in pools.items()}
        t2 = perf_counter_ns()
        pages = {"full": fresh["full"][: whole - held]}
        states = None
        if self.window:
            first = max(0, whole - held - -(-WINDOW_TOKENS // size))
            pages["swa"] = fresh["swa"][first : whole - held]
            pools["swa"].free(fresh["swa"][:first])
        if self.state:
            states = {"mamba": {whole * size: int(fresh["mamba"][0])}}
        result = tree.insert(Key(tokens), pages, states)
        for name, ids in result.duplicates.items():
            pools[name].free(ids)
        for name in pages:
            pools[name].free(fresh[name][whole - held :])
        t3 = perf_counter_ns()
        tree.unlock(request.held)
        t4 = perf_counter_ns()
        request.parts_ns |= {"evict": t1 - t0, "allocate": t2 - t1, "insert": t3 - t2, "unlock": t4 - t3}

    def _free(self, pages: dict[str, Any]) -> None:
        for name, ids in pages.items():
            self.pools[name].free(ids)


def page_counts(components: str, page_size: int, capacity: Capacity | None) -> dict[str, int]:
    """Pages by component; none given means without bound."""
    if capacity is None:
        return {}
    sizes = {"full": capacity.full_tokens // page_size, "swa": capacity.window_tokens // page_size, "mamba": capacity.states}
    return {component.name: sizes[component.name] for component in SETS[components]}
