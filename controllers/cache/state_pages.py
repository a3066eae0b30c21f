"""The pages of one lease for a state that is valid at exactly one length (Mamba, linear attention).

The run updates the state in one page, `running`, which starts as a copy of the cached state. To save a state, the engine copies
it into a page of `saves`. Each save point within the prompt has its own page. Behind the prompt only the last save point
matters: each new one on the grid supersedes the one before. Speculative tokens may be rejected, though. So the superseded page
is kept until enough tokens were run beyond the new save point that no rejection can truncate to before it.

A page is published as the state of its own length only. That of a page of `saves` is the length it was provided for, which the
run must not have passed by then. That of the running state is the computed length, see `Lease.state_tokens`. It follows from
numbers that a lease has anyway, so that no step keeps anything up to date for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from unified_tree.controllers.cache.resources import CacheResources


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCopy:
    """Copy a cached state before running: page `source` of the component's pool into the lease's own page `target`."""

    component: str
    source: int
    target: int


class StatePages:
    """The state pages of one lease.

    Args:
        name: of the `Point` component with pages of its own.
        prompt_tokens: where the output begins.

    Attributes:
        is_optional: whether a run may go on without it.
        is_given_up: whether it does, from now on: it has no pages of it any more.
        is_lost: whether the run had no state to begin from, so that the length of none of its states is known.
        running: the running state's page; None after it was published, which ends the run, or was given up.
        source: the cached state's page, to be copied into `running` first; None without one.
        saves: pages to save states in, by length.
    """

    __slots__ = (
        "_device",
        "_draft_tokens",
        "_grid",
        "_prompt_tokens",
        "is_given_up",
        "is_lost",
        "is_optional",
        "name",
        "running",
        "saves",
        "source",
    )

    def __init__(self, resources: CacheResources, name: str, prompt_tokens: int) -> None:
        self._device = resources.device
        self._grid = resources.layout.state_grid_tokens
        self._draft_tokens = resources.draft_tokens
        self._prompt_tokens = prompt_tokens
        self.name = name
        self.running: int | None = None
        self.source: int | None = None
        self.saves: dict[int, int] = {}
        self.is_lost = False
        self.is_optional = name in resources.layout.can_give_up
        self.is_given_up = False

    def start(self, without: Collection[str]) -> None:
        """Allocate the running state's page. Raises OutOfPagesError; but an optional state without a page is given up, as one
        that the run is to do `without`.
        """
        device = self._device
        if self.is_optional and (
            self.name in without or not device.has_room({self.name: 1}) or not device.try_reserve(self.name)
        ):
            self.is_given_up = True
            return
        self.running = device.take_one(self.name)

    def give_up(self) -> None:
        """Free all pages, and have none any more. Idempotent."""
        self.is_given_up = True
        self.source = None
        self.free()

    def begin_from(self, source: int | None, length_tokens: int) -> None:
        """The run begins with a copy of a cached state of so many tokens; without one only a run from the first token on has a
        state that is known.
        """
        self.source = None if self.is_given_up else source
        self.is_lost = source is None and length_tokens > 0

    def copies(self) -> tuple[StateCopy, ...]:
        """The copies to make before running; none if the run begins with an empty state."""
        if self.source is None or self.running is None:
            return ()
        return (StateCopy(component=self.name, source=self.source, target=self.running),)

    def allocate_saves(self, due: Iterable[int]) -> None:
        """Allocate pages for states to be saved at those of these lengths of the prompt that lie on the grid. A pool that is
        short saves fewer.
        """
        for length in due:
            if length % self._grid == 0 and length not in self.saves and self._device.try_reserve(self.name):
                self.saves[length] = self._device.allocate_one(self.name)

    def follow_output(self, length: int, committed: int, computed: int) -> None:
        """Provide a page for the last save point of the output: a new one, or that of the save point before the last."""
        latest = length // self._grid * self._grid
        if not self._is_due(latest, committed, computed):
            return
        earlier = self.of_output(self.saves)
        if len(earlier) < 2 and self._device.try_reserve(self.name):
            self.saves[latest] = self._device.allocate_one(self.name)
        elif earlier:
            self.saves[latest] = self.saves.pop(earlier[0])

    def _is_due(self, length: int, committed: int, computed: int) -> bool:
        """Whether a save point needs a page: it lies in the output, and the run has not passed it."""
        return length > max(self._prompt_tokens, committed) and length >= computed and length not in self.saves

    def grow_at(self, length: int, committed: int, computed: int) -> int:
        """The least length at which the output needs a page that it lacks, or one of its pages may be freed."""
        latest = length // self._grid * self._grid
        if self._is_due(latest, committed, computed):
            return latest
        due = max(latest, committed, self._prompt_tokens) // self._grid * self._grid + self._grid
        kept = self.of_output(self.saves)
        return due if len(kept) < 2 else min(due, kept[1] + self._draft_tokens)

    def of_output(self, lengths: Iterable[int]) -> list[int]:
        """Which of these lengths lie behind the prompt, ascending."""
        return sorted(length for length in lengths if length > self._prompt_tokens)

    def free_superseded(self, certain_tokens: int, published: Iterable[int] = ()) -> None:
        """Free the pages of the output's states before the last one that is certain, among those kept or `published`.

        Args:
            certain_tokens: tokens that were run and cannot be rejected any more.
        """
        kept = self.of_output(self.saves)
        if not kept:
            return
        certain = [length for length in self.of_output((*kept, *published)) if length <= certain_tokens]
        if certain:
            self._free(length for length in kept if length < certain[-1])

    def to_publish(self, states: Mapping[int, int]) -> dict[int, int]:
        """The states to publish: of the output's states only the last. The one before it is kept only in case tokens are
        rejected.
        """
        superseded = self.of_output(states)[:-1]
        return {length: page for length, page in states.items() if length not in superseded}

    def forget(self, states: Mapping[int, int]) -> None:
        """Forget these pages, which belong to the tree now or are duplicates. An optional state whose running page is among
        them is given up.
        """
        given = set(states.values())
        self.saves = {length: page for length, page in self.saves.items() if page not in given}
        if self.running in given:
            self.running, self.is_given_up = None, self.is_optional
        if self.is_given_up:
            self.give_up()

    def cut(self, length_tokens: int) -> None:
        """Free the pages for states behind a length."""
        self._free(length for length in self.saves if length > length_tokens)

    def restore(self, saves: Mapping[int, int]) -> None:
        """Go back to the pages for saved states that there were, none of which was freed since; free all others."""
        added = set(self.saves.values()).difference(saves.values())
        try:
            if added:
                self._device.free(self.name, np.array(sorted(added), np.int64))
            self.saves = dict(saves)
        except BaseException:
            self._forget_freed()
            raise

    def _free(self, lengths: Iterable[int]) -> None:
        freed = {length: self.saves[length] for length in lengths}
        if not freed:
            return
        try:
            self._device.free(self.name, np.array(list(freed.values()), np.int64))
            self.saves = {length: page for length, page in self.saves.items() if length not in freed}
        except BaseException:
            self._forget_freed()
            raise

    def _forget_freed(self) -> None:
        """Something was interrupted: what is free now is not the lease's any more."""
        self.saves = {length: page for length, page in self.saves.items() if self._device.has_allocated(self.name, page)}
        if self.running is not None and not self._device.has_allocated(self.name, self.running):
            self.running = None

    def free(self) -> None:
        """Free all of them."""
        pages = [*self.saves.values(), *([] if self.running is None else [self.running])]
        if not pages:
            return
        try:
            self._device.free(self.name, np.array(pages, np.int64))
            self.saves, self.running = {}, None
        except BaseException:
            self._forget_freed()
            raise
