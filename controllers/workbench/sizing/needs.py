"""What a composition's boundaries need: of paths by the token, of windows and states by the value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.server.server import SMALLEST_CHUNK_TOKENS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.declare.component import Component

    Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuePool:
    """A pool of windows or states.

    Attributes:
        pages: pages a value takes.
        page_bytes: bytes a page.
        running_pages: what each running request holds beside the values; `step_pages`: what one step's chunk takes.
        window_tokens: of a window; 0 for a state.
    """

    pages: int
    page_bytes: int
    running_pages: int
    step_pages: int
    window_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a boundary takes of each pool.

    Attributes:
        page_tokens: tokens a page.
        path_bytes: bytes a page of each path's pool, by name.
        values: the pools of windows and states, by name; every boundary has one value in each.
        grid_tokens: boundaries are at multiples of it.
        rebuild_tokens: so many tokens run again where windows are rebuilt; None where they cannot be.
        is_exact: whether there are states: then nobody resumes behind the last one, and no path there is worth keeping.
        window_tokens: of the longest window; 0 without one. Windows are kept at a prompt's end, too.
    """

    page_tokens: int
    path_bytes: Mapping[str, int]
    values: Mapping[str, ValuePool]
    grid_tokens: int
    rebuild_tokens: int | None
    is_exact: bool
    window_tokens: int

    @classmethod
    def of(cls, components: Sequence[Component], page: int, chunk_tokens: int = 0) -> Needs:
        """Of the required components with pages of their own.

        Args:
            page: tokens a page.
            chunk_tokens: what one step computes of a prompt, and keeps windows for meanwhile.
        """
        own = [c for c in components if c.shares is None]
        page_bytes = {
            c.name: sum(other.page_bytes for other in components if c.name in {other.name, other.shares}) for c in own
        }
        pools = {}
        windows = [c for c in own if c.required and c.coverage.window_tokens is not None]
        points = [c for c in own if c.required and c.coverage.is_exact]
        for component in windows:
            assert component.coverage.window_tokens is not None
            pages = -(-component.coverage.window_tokens // page)
            pools[component.name] = ValuePool(
                pages=pages,
                page_bytes=page_bytes[component.name],
                running_pages=pages + 1,
                step_pages=-(-chunk_tokens // page),
                window_tokens=component.coverage.window_tokens,
            )
        for component in points:
            pools[component.name] = ValuePool(pages=1, page_bytes=page_bytes[component.name], running_pages=1, step_pages=0)
        rebuilds = [c.rebuild_tokens for c in windows]
        can_rebuild = bool(windows) and not points and None not in rebuilds
        return cls(
            page_tokens=page,
            path_bytes={c.name: page_bytes[c.name] for c in own if c.coverage.is_path},
            values=pools,
            grid_tokens=max([page, *(c.save_grid_tokens for c in points)]),
            rebuild_tokens=sum(tokens or 0 for tokens in rebuilds) + page if can_rebuild else None,
            is_exact=bool(points),
            window_tokens=max((c.coverage.window_tokens or 0 for c in windows), default=0),
        )

    @property
    def is_gated(self) -> bool:
        """Whether boundaries need anything beside paths."""
        return bool(self.values)

    def floor(self, tokens: int) -> int:
        """The last length up to `tokens` where a value can be saved."""
        return tokens // self.grid_tokens * self.grid_tokens

    def is_boundary(self, length: int) -> bool:
        """Whether one can resume at a length, if all is there."""
        return length % self.grid_tokens == 0

    def path_tokens(self, page_counts: Mapping[str, int]) -> int | None:
        """Tokens that fit into all pools of paths; None for no end."""
        counts = [page_counts[name] for name in self.path_bytes if name in page_counts]
        return min(counts) * self.page_tokens if counts else None

    def fit(self, prompt_tokens: Int64s, output_tokens: Int64s, page_counts: Mapping[str, int]) -> NDArray[np.bool_]:
        """Which of these requests fit into such pools at all, each on its own; up to a page of a window. Cost: O(requests)."""
        total = prompt_tokens + output_tokens
        path_tokens = self.path_tokens(page_counts)
        fits = np.ones(total.shape, np.bool_) if path_tokens is None else total <= path_tokens
        for name, pool in self.values.items():
            if name in page_counts:
                held = _window_tokens(prompt_tokens, total, pool.window_tokens) if pool.window_tokens else np.ones_like(total)
                fits &= held <= page_counts[name] * (self.page_tokens if pool.window_tokens else 1)
        return fits

    def room(self, page_counts: Mapping[str, int], running: float | None = None) -> float:
        """Values that fit; beside so many running requests, if these take pages of the same pools."""
        rooms = []
        for name, pool in self.values.items():
            if name in page_counts and pool.pages:  # a chunk of one token needs none before a boundary
                held = 0.0 if running is None else running * pool.running_pages + pool.step_pages
                rooms.append((page_counts[name] - held) / pool.pages)
        return max(0.0, min(rooms)) if rooms else float("inf")


def _window_tokens(prompt_tokens: Int64s, total_tokens: Int64s, window: int) -> Int64s:
    """Tokens of a window that requests hold at most, if their prompts are computed in the smallest chunks."""
    chunk = SMALLEST_CHUNK_TOKENS
    whole = prompt_tokens // chunk * chunk
    at_end = np.minimum(whole, window) + prompt_tokens - whole
    before = np.where(whole > 0, np.minimum(np.maximum(whole - chunk, 0), window) + chunk, 0)
    answering = np.minimum(total_tokens, window + 1)
    most: Int64s = np.maximum(np.maximum(at_end, before), answering)
    return most
