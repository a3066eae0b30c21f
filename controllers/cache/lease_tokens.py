"""The tokens that a lease knows, which of them are in the tree and locked there, and where it saves states on the way.

Each place where a window or a state is kept gets its own insert, in ascending order, and the end gets the last one. So each is
a boundary (a length one can resume from) that can be backed up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from unified_tree.declare.coverage import NO_LENGTH
from unified_tree.declare.keys import PACKED_BYTES, Key, as_bytes
from unified_tree.declare.owners import owned, require_room, unmarked
from unified_tree.inserts.inserting import insert
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from unified_tree.controllers.cache.page_tables import PageTables
    from unified_tree.controllers.cache.resources import CacheResources
    from unified_tree.controllers.cache.state_pages import StatePages
    from unified_tree.locks.locks import Receipt
    from unified_tree.terms.results import Boundary, InsertResult


UNSAVED: Final = "not saved where it was due"
WITHOUT_PAGE: Final = "no state page was free"


class Publication(NamedTuple):
    """A commit that was checked against its lease, and so cannot be refused any more.

    Attributes:
        length: how many tokens are computed; end: where their whole pages end.
        piece: those of them that were given, as a key's tail; None if they are known.
        states: pages by length, ascending.
        without: components that the pages do not hold.
        resumable: whether windows are kept at the end.
    """

    length: int
    end: int
    piece: Key | None
    states: dict[int, int]
    without: tuple[str, ...]
    resumable: bool


class LeaseLocks:
    """The receipts of one lease.

    Attributes:
        windows_at: the length at which windows and state are locked, or were last.
    """

    __slots__ = ("_given_up", "_path", "_resources", "_windows", "windows_at")

    def __init__(self, resources: CacheResources) -> None:
        self._resources = resources
        self._path: Receipt | None = None
        self._windows: Receipt | None = None
        self._given_up: tuple[int, ...] = ()  # components, by index, of which nothing is locked any more
        self.windows_at = 0

    @property
    def has_windows(self) -> bool:
        """Whether windows or a state are locked."""
        return self._windows is not None

    def state_page(self, component: int) -> bytes:
        """The page of the state that is locked, of a component by index; none if none is."""
        return b"" if self._windows is None else self._windows.state_page(component)

    def hold_windows_at(self, length: int) -> bool:
        """Whether windows at a length are locked."""
        return self._windows is not None and self.windows_at == length

    def lock(self, boundary: Boundary, wanted: tuple[int, ...]) -> Boundary:
        """Lock what a run from a boundary reads: the paths, and the windows and states that are wanted, by index.

        Returns the boundary by a name that is valid while it is locked. Raises StaleBoundaryError.
        """
        wanted = self._kept(wanted)
        boundary = self.lock_paths(boundary)
        if boundary.length and wanted:
            self._windows = self._resources.locks.lock(boundary, Tier.DEVICE, wanted)
            self.windows_at = boundary.length
        return boundary

    def lock_paths(self, boundary: Boundary) -> Boundary:
        """Lock the paths up to a boundary in place of those locked so far. Returns and raises as `lock`."""
        locks, wanted = self._resources.locks, self._kept(self._resources.layout.optional_paths)
        if self._path is None:
            self._path = locks.lock(boundary, Tier.DEVICE, wanted)
        else:
            locks.move(self._path, boundary, wanted)
        return self._path.boundary

    def give_up(self, without: Iterable[str]) -> None:
        """Lock nothing of these optional components from now on. Idempotent. Cost: as the locks."""
        index, locks = self._resources.state.layout.index, self._resources.locks
        self._given_up = tuple({*self._given_up, *[index[name] for name in without]})
        for receipt in (self._path, self._windows):
            if receipt is not None and not receipt.is_released:
                locks.leave_out(receipt, self._given_up)

    def _kept(self, components: tuple[int, ...]) -> tuple[int, ...]:
        """Those of these components, by index, that were not given up."""
        if not self._given_up:
            return components
        return tuple([i for i in components if i not in self._given_up])

    def lock_windows(self, boundary: Boundary) -> None:
        """Lock the windows at a boundary in place of those locked so far; those that are spare stay so. A shorter boundary
        changes nothing: a state that is published late must not move the lock back.
        """
        if boundary.length < self.windows_at:
            return
        locks, wanted = self._resources.locks, self._kept(self._resources.layout.window_indices)
        if self._windows is None:
            self._windows = locks.lock(boundary, Tier.DEVICE, wanted, keeps=False)
        else:
            locks.move(self._windows, boundary, wanted)
        self.windows_at = boundary.length

    def release_windows(self) -> None:
        """Release windows and state. Idempotent, likewise."""
        if self._windows is not None:
            if not self._windows.is_released:  # or it was interrupted here
                self._windows.release()
            self._windows = None

    def release(self) -> None:
        """Release everything. Idempotent, wherever it was interrupted before."""
        if self._path is not None:
            if not self._path.is_released:
                self._path.release()
            self._path = None
        self.release_windows()


class PublishedTokens:
    """The published tokens of one lease.

    Args:
        tokens, tables, states, locks: the lease's.
        boundary: where it resumes.
        prompt_tokens: where its prompt ends.
        priority: of what it publishes.

    Attributes:
        committed: how many tokens were published.
        boundary: their end in the tree.
        save_at: lengths at which a state is to be saved and a window kept, ascending.
        saved: those of them whose window or state was published.
        branches: those of them up to which other prompts share its path.
        arriving: how many tokens arrive from another server, and windows for their end alone. So none is published before all
            have arrived, and none of a shorter length.
    """

    __slots__ = (
        "_ends",
        "_locks",
        "_priority",
        "_prompt_tokens",
        "_resources",
        "_resumed",
        "_spare_end",
        "_states",
        "_tables",
        "_tokens",
        "arriving",
        "boundary",
        "branches",
        "committed",
        "save_at",
        "saved",
    )

    def __init__(
        self,
        resources: CacheResources,
        tokens: LeaseTokens,
        tables: PageTables,
        states: StatePages | None,
        locks: LeaseLocks,
        boundary: Boundary,
        *,
        prompt_tokens: int,
        priority: int,
    ) -> None:
        self._resources = resources
        self._tokens = tokens
        self._tables = tables
        self._states = states
        self._locks = locks
        self._prompt_tokens = prompt_tokens
        self._priority = priority
        self.boundary = boundary
        self.committed = boundary.length
        self.save_at: tuple[int, ...] = ()
        self.saved: set[int] = set()
        self.branches: tuple[int, ...] = ()
        self.arriving = 0
        self._resumed = boundary
        self._spare_end = 0  # where it was published last, if the windows there are spare
        self._ends: list[Boundary] = []

    @property
    def windows_kept_from(self) -> int:
        """The first length in `save_at` that still needs its windows; a page before the end, where a repeat of it resumes."""
        if len(self.saved) == len(self.save_at):
            return NO_LENGTH
        first = min((at for at in self.save_at if at not in self.saved), default=NO_LENGTH)
        return first if first != self._prompt_tokens else first - self._resources.layout.page_size

    def publish(self, publication: Publication) -> dict[int, str]:
        """Publish up to its end: an insert for each length that becomes a boundary, and for the end.

        Returns the save points that it passed without a state, and why.
        """
        end, states, resumable = publication.end, publication.states, publication.resumable
        layout = self._resources.layout
        passed = self._unsaved(states, end) if self._states is not None and self.save_at else {}
        remaining = self._states.to_publish(states) if self._states is not None and states else {}
        for stop in self._stops(remaining, end, resumable):
            due = {length: remaining.pop(length) for length in list(remaining) if length <= stop} if remaining else {}
            is_kept = resumable or stop in self.save_at
            has_windows = not self.arriving or (
                publication.length >= self.arriving and stop >= layout.floor_to_page(self.arriving)
            )
            self._publish_up_to(stop, due, publication.without, is_kept=is_kept, has_windows=has_windows)
        if resumable and end == self._spare_end:
            self._keep_spare_end()
        if publication.without:
            self._tables.leave_out(publication.without, end)
        if self._states is not None:
            self._states.free_superseded(end, states)
        return passed

    def _unsaved(self, states: Mapping[int, int], end: int) -> dict[int, str]:
        """The save points up to `end` that a commit passes without a state, and why. Each is counted."""
        assert self._states is not None
        if self._states.is_optional:
            return {}
        passed: dict[int, str] = {}
        for length in self.save_at:
            if self.committed < length <= end and length not in states:
                has_page = length in self._states.saves
                passed[length] = UNSAVED if has_page else WITHOUT_PAGE
                self._resources.counters.count_drop(f"state {UNSAVED}" if has_page else "no page for a state where it was due")
        return passed

    def _stops(self, states: Mapping[int, int], end: int, resumable: bool) -> list[int]:
        """The lengths of the inserts: where windows are kept, where there are states, and the end."""
        stops = set(states)
        if self._resources.layout.windows:
            last = self._tables.windows_end
            stops.update([length for length in self.save_at if length <= min(end, last) and length not in self.saved])
            is_kept = end == self._spare_end or self._locks.hold_windows_at(end)
            if resumable and end == self.committed <= last and not is_kept:
                stops.add(end)
        if end > self.committed:
            stops.add(end)
            layout, has_host = self._resources.layout, self._resources.controller is not None
            repeat = end - layout.page_size
            if resumable and end == self._prompt_tokens and has_host and layout.windows and repeat >= self.committed:
                stops.add(repeat)  # a boundary of its own is copied to host, too
        stops.discard(0)
        return sorted(stops)

    def _publish_up_to(
        self, stop: int, due: dict[int, int], without: Sequence[str], *, is_kept: bool, has_windows: bool
    ) -> None:
        """Publish up to a stop. Windows, if any, are kept there, or else, within the prompt, spare: a prompt may branch
        off there.
        """
        parts, at = self._resources, self.boundary
        has_windows = has_windows and bool(parts.layout.windows)
        ends_spare = has_windows and not is_kept and self.committed < stop <= self._prompt_tokens
        keep_windows = has_windows and (is_kept or ends_spare)
        if keep_windows and (unknown := self._tables.not_rebuilt(stop)):
            without = [*without, *unknown]
        pages = self._tables.to_insert(self.committed, stop, without, keep_windows=keep_windows)
        by_component = {} if self._states is None or not due else {self._states.name: due}
        key = self._tokens.key(stop, at.length if at.length <= stop else 0)  # the boundary is locked: what is new is enough
        result: InsertResult | None = None
        try:
            result = insert(
                parts.state,
                key,
                pages,
                by_component,
                at,
                without,
                self._priority,
                repeatable=stop == self._prompt_tokens,
                keeps_spare=True,
                ends_spare=ends_spare,
            )
            parts.counters.duplicate_pages += self._hand_over(result, stop, due, keep_windows)
        except BaseException:
            if result is not None:  # the tree has the pages: the lease must not have them, too
                self._hand_over(result, stop, due, keep_windows, again=True)
            raise
        boundary = self.boundary if stop >= self.committed else result.boundary
        if stop == self.committed:
            self._spare_end = stop if ends_spare else 0
        if due and stop == self._prompt_tokens:
            self._spare_state(result)
        if parts.controller is not None and not ends_spare:
            parts.controller.committed(boundary)
            if parts.controller.writes_late and parts.tree.transfers.is_boundary(boundary):
                self._note_end(boundary)

    def _hand_over(
        self, result: InsertResult, stop: int, due: dict[int, int], keep_windows: bool, *, again: bool = False
    ) -> int:
        """The tree has taken the pages up to a length, but for those that it had. Returns how many were freed for that.

        Idempotent, wherever it was interrupted before, if it is made `again`.
        """
        parts, freed = self._resources, 0
        keep_windows = keep_windows and any(name in result.canonical for name, _ in parts.layout.windows)
        if self._states is not None and due:
            self._states.forget(due)
        self._tables.put_canonical(result, stop, keep_windows=keep_windows)
        if result.duplicates or result.replaced:
            freed = parts.device.free_unused(result, again=again)
        if self.save_at:
            self.saved.update([length for length in self.save_at if length == stop or length in due])
        boundary = result.boundary
        if stop >= self.committed:
            self.committed = stop
            self.boundary = boundary = self._locks.lock_paths(boundary)
        if keep_windows:
            self._locks.lock_windows(boundary)
        return freed

    def _keep_spare_end(self) -> None:
        """The windows at the end of what was published are spare no more."""
        parts = self._resources
        self._spare_end = 0
        node, _ = parts.locks.find(self.boundary)
        if node is not None:
            parts.locks.keep(node, parts.layout.window_indices)
        if parts.controller is not None:
            parts.controller.committed(self.boundary)
            if parts.controller.writes_late and parts.tree.transfers.is_boundary(self.boundary):
                self._note_end(self.boundary)

    def _spare_state(self, result: InsertResult) -> None:
        """The state at the prompt's end is spare where a repeat's, a step of the grid earlier, is kept, too: a prompt that goes
        on from the end loses no more than that step without it.
        """
        parts, point = self._resources, self._resources.layout.point
        if point is None or point in result.duplicates or not self._is_spare(self._prompt_tokens):
            return
        node = parts.state.nodes.get(result.boundary.node)
        value = None if node is None else node.device[parts.state.layout.index[point]]
        if value is not None:
            parts.state.set_spare(value, True)

    def _is_spare(self, length: int) -> bool:
        """Whether the state at a length is that of the prompt's end, and the one for a repeat is kept, too."""
        layout = self._resources.layout
        return layout.point is not None and length == self._prompt_tokens and length - layout.state_grid_tokens in self.saved

    def _note_end(self, boundary: Boundary) -> None:
        """Only where something is saved, and the last of them, a prompt resumes later; behind a spare state hardly one does."""
        ends = self._ends
        if ends and (ends[-1].length not in self.save_at or self._is_spare(ends[-1].length)):
            ends.pop()
        ends.append(boundary)

    def leave(self) -> None:
        """The lease ends, and holds nothing any more: what it published may be copied to host when that is due."""
        controller, ends = self._resources.controller, self._ends
        if controller is None or not controller.writes_late:
            return
        if not ends:
            controller.left(self._resumed)
            return
        if controller.is_shared(self._resumed):  # else it is superseded
            controller.left(self._resumed)
        end, inner = ends[-1], ends[:-1]
        before = inner.pop() if inner and inner[-1].length not in self.branches else None
        controller.left(end, tuple(inner), before)


class LeaseTokens:
    """A key that grows: adding to it costs what is added. No id of it is negative: those of the prompt were checked, or matched
    what the tree has, and those added to it were checked.

    Attributes:
        prompt: its key, as the tree has it; namespace, bigram: of that.
        length: how many elements are known.
        mark: of a key of namespaces that share; see `declare.owners`. `owner`: the request's own namespace.
    """

    __slots__ = ("_output", "_width", "bigram", "length", "mark", "namespace", "owner", "prompt")

    def __init__(self, prompt: Key) -> None:
        self.namespace = prompt.namespace
        self.bigram = prompt.bigram
        self.length = prompt.length
        self.mark = prompt.mark
        self.owner = prompt.namespace if prompt.mark is None else prompt.mark.namespace
        self.prompt = prompt
        self._width = prompt.width_bytes
        self._output = bytearray()  # the elements behind the prompt's

    def key(self, end: int, begin: int = 0) -> Key:
        """The first `end` elements, or their tail from `begin` on. Cost: one copy of them; none of the prompt's first ones."""
        prompt, width, data = self.prompt, self._width, b""
        whole: int = prompt.length
        if end <= whole and not begin:
            return prompt.prefix(end)
        is_checked = True
        if begin < whole:
            data = bytes(prompt.data[begin * width : min(end, whole) * width])
            is_checked = isinstance(prompt.data, bytes)  # else its caller may have changed it
        if end > whole:
            data += self._output[max(0, begin - whole) * width : (end - whole) * width]
        return self._tail(data, begin, is_checked)

    def piece(self, tokens: Any, begin: int) -> Key:
        """A tail of given tokens, from `begin` on; of a packed prompt their bytes. Cost: one copy, of a marked key two.

        Raises InvalidKeyError, also for an id that leaves no room for a mark.
        """
        if self._width == PACKED_BYTES:
            return self._tail(bytes(tokens), begin, is_checked=True)
        data, mark = Key(tokens, bigram=True).data if self.bigram else as_bytes(tokens), self.mark
        if mark is not None:
            require_room(data)
            cut = max(0, mark.fork - begin) * self._width
            data = bytes(data[:cut]) + owned(data[cut:], mark.owner)
        return self._tail(data, begin, is_checked=False)

    def plain(self) -> Key:
        """The key of all elements as its request gave them. Cost: one copy, none of a prompt alone that is not marked."""
        key = self.key(self.length)
        return key if self.mark is None else unmarked(key, self.owner)

    def _tail(self, data: bytes | memoryview, begin: int, is_checked: bool) -> Key:
        key = Key.from_elements(
            data, self.namespace, bigram=self.bigram, begin=begin, is_checked=is_checked, width_bytes=self._width
        )
        key.mark = self.mark
        return key

    def agree(self, piece: Key) -> bool:
        """Whether the elements of a tail are those that are known, as far as they are. Cost: one comparison of them."""
        data, width, begin = piece.data, self._width, piece.begin
        assert isinstance(data, bytes), "a piece is copied when it is made"
        whole, end = self.prompt.length, min(piece.length, self.length)
        middle = min(max(begin, whole), end)
        prompt = memoryview(self.prompt.data)[begin * width : middle * width]
        output = memoryview(self._output)[(middle - whole) * width : (end - whole) * width] if middle < end else b""
        return data.startswith(prompt) and data.startswith(output, max(0, middle - begin) * width)

    def first_difference(self, piece: Key) -> int:
        """The first element of a tail that differs from the known one; of a tail that does not agree. Cost: O(elements)."""
        width, begin, end = self._width, piece.begin, min(piece.length, self.length)
        known, given = (bytes(data[: (end - begin) * width]) for data in (self.key(end, begin).data, piece.data))
        at = next(at for at in range(0, len(known), width) if known[at : at + width] != given[at : at + width])
        return begin + at // width

    def extend(self, piece: Key) -> None:
        """Add what a tail, which agrees, has behind the known elements."""
        if piece.length > self.length:
            self._output += memoryview(piece.data)[(self.length - piece.begin) * self._width :]
            self.length = piece.length

    def cut(self, length: int) -> None:
        """Forget the elements behind the prompt from `length` on."""
        length = max(length, self.prompt.length)
        if length < self.length:
            del self._output[(length - self.prompt.length) * self._width :]
            self.length = length
