"""Which blocks a step's requests save, and where they come into the tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unified_tree.controllers.adapters.vllm.messages import PageCopies

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.adapters.vllm.engine_request import ScheduledRequest, TrackedRequest
    from unified_tree.controllers.adapters.vllm.host_index import HostIndex
    from unified_tree.declare.keys import Key


@dataclass(slots=True, kw_only=True)
class Piece:
    """What a save adds to the tree at one length: the last blocks before it, by component, and the host pages they go to."""

    length: int
    blocks: dict[str, list[int]]
    pages: dict[str, NDArray[np.int64]]


@dataclass(slots=True, kw_only=True)
class Save:
    """A save in flight.

    Attributes:
        tracked: whose.
        pieces: by ascending length.
        epoch: of the index when it began.
    """

    tracked: TrackedRequest
    pieces: list[Piece]
    epoch: int

    def copies(self, index: HostIndex) -> tuple[PageCopies, ...]:
        """The same for the workers, by group."""
        copies = []
        for group in index.groups:
            parts = [piece for piece in self.pieces if group.name in piece.blocks]
            if parts:
                blocks = tuple(block for piece in parts for block in piece.blocks[group.name])
                pages = tuple(page for piece in parts for page in piece.pages[group.name].tolist())
                copies.append(PageCopies(group=group.index, blocks=blocks, pages=pages))
        return tuple(copies)


class SavePlanner:
    """Plans saves: the paths as far as they are computed, windows and states at the lengths worth resuming from.

    Those are the lengths for which the engine has states, where the model has any; else the end of what is computed, the last
    length from which the same prompt can resume (its last token is always computed), and where it branched off from the tree.

    Attributes:
        dropped: saves for which there was no room.
    """

    def __init__(self, index: HostIndex) -> None:
        self.dropped = 0
        self._index = index
        self._page_size = index.tree.page_size
        self._paths = [group for group in index.groups if group.coverage.is_path]
        self._states = [group for group in index.groups if group.coverage.is_exact]
        self._windows = [group for group in index.groups if not group.coverage.is_path and not group.coverage.is_exact]

    def plan(self, tracked: TrackedRequest, step: ScheduledRequest) -> Save | None:
        """The save of a request in one step, with its host pages; None if there is nothing to save, or no room."""
        end = step.end_tokens // self._page_size * self._page_size
        states = self._states_by_length(step, end) if step.states else {}
        if not tracked.may_save or (end <= tracked.path_tokens and not states):
            return None
        key = tracked.key(end)
        if not tracked.open_saves:
            self._look_up(tracked, key, end)
        lengths = self._lengths(tracked, key, end, states)
        pieces, path, window = [], tracked.path_tokens, tracked.window_tokens
        table = step.block_table()
        for length in sorted({*lengths, max(end, path)}):
            blocks = {group.name: list(table[group.index][path // self._page_size : length // self._page_size])
                      for group in self._paths if length > path}  # fmt: skip
            path = max(path, length)
            if length in lengths and self._add_windows(blocks, table, length, window):
                window = length
                blocks |= {name: [block] for name, block in states.get(length, {}).items()}
            if blocks:
                pieces.append(Piece(length=length, blocks=blocks, pages={}))
        if not pieces or not self._allocate(pieces):
            if not tracked.open_saves:
                tracked.hold(None)
            return None
        tracked.path_tokens, tracked.window_tokens = path, window
        tracked.open_saves += 1
        return Save(tracked=tracked, pieces=pieces, epoch=self._index.epoch)

    def _look_up(self, tracked: TrackedRequest, key: Key, end: int) -> None:
        """What the tree has of the request by now, which it keeps while the saves are in flight."""
        reach = self._index.path_end(key, min(end, key.length))
        tracked.path_tokens = reach.length
        tracked.hold(self._index.lock_path(reach) if reach.length else None)
        known = min(max(tracked.window_tokens, 0), key.length)
        if self._index.longest(key, known, touch=False).length != known:
            tracked.window_tokens = 0

    def _states_by_length(self, step: ScheduledRequest, end: int) -> dict[int, dict[str, int]]:
        """The lengths for which every group of states has one."""
        found: dict[int, dict[str, int]] = {}
        names = {group.index: group.name for group in self._states}
        for group, block, length in step.states:
            if group in names and block and length % self._page_size == 0 and 0 < length <= end:
                found.setdefault(length, {})[names[group]] = block
        return {length: blocks for length, blocks in found.items() if len(blocks) == len(names)}

    def _lengths(self, tracked: TrackedRequest, key: Key, end: int, states: dict[int, dict[str, int]]) -> set[int]:
        """Where windows and states are saved."""
        if self._states:
            wanted = set(states)
        else:
            again = (tracked.prompt_tokens - 1) // self._page_size * self._page_size
            points = {again, *tracked.save_points, end} if self._windows else {end}
            wanted = {point for point in points if max(tracked.path_tokens, tracked.window_tokens) < point <= end}
        return {length for length in wanted if not self._is_known(key, length)}

    def _is_known(self, key: Key, length: int) -> bool:
        return length <= key.length and self._index.longest(key, length, touch=False).length == length

    def _add_windows(self, blocks: dict[str, list[int]], table: Sequence[Sequence[int]], length: int, window: int) -> bool:
        """Add the windows before a length to a piece; False if the engine has freed some of them."""
        found = {}
        for group in self._windows:
            first = group.coverage.first_page(length, self._page_size)
            if window < length:
                first = max(first, window // self._page_size)
            found[group.name] = list(table[group.index][first : length // self._page_size])
            if not all(found[group.name]) or not found[group.name]:
                return False
        blocks |= found
        return True

    def _allocate(self, pieces: list[Piece]) -> bool:
        """Host pages for all pieces, or for none."""
        needs: dict[str, int] = {}
        for name, blocks in _all_blocks(pieces):
            needs[name] = needs.get(name, 0) + len(blocks)
        pages = self._index.allocate(needs)
        if pages is None:
            self.dropped += 1
            return False
        used = dict.fromkeys(needs, 0)
        for piece in pieces:
            for name, blocks in piece.blocks.items():
                piece.pages[name] = pages[name][used[name] : used[name] + len(blocks)]
                used[name] += len(blocks)
        return True


def _all_blocks(pieces: list[Piece]) -> Iterator[tuple[str, list[int]]]:
    for piece in pieces:
        yield from piece.blocks.items()
