"""The same in Python as the C modules beside this file, for where those were not compiled: keys and edges compared by slices,
flags of many page ids looked up and set with numpy, and tuples.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from unified_tree.inputs.arguments import INT64, INT64_BYTES, any_negative

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int64] | bytes

Item = TypeVar("Item")
STRETCH_BYTES: Final = 1 << 18
"""What is compared at once of bytes that differ somewhere."""
NO: Final = 0
YES: Final = 1
BEYOND: Final = -1

FEW: Final = 16
ONE: Final = Struct("=q")
UNPACK: Final = [Struct(f"={count}q").unpack for count in range(FEW + 1)]


def agreement(data: bytes | memoryview, edge: bytes | memoryview, position: int, stop: int, page: int) -> int:
    """How many bytes of `edge`, in whole pages, agree with a key's data from a position up to `stop`.

    Args:
        page: bytes a page.

    Cost: each byte is compared once, or twice in the stretch that differs; an edge that is no `bytes` is copied first.
    """
    ours, theirs = memoryview(data), edge if isinstance(edge, bytes) else bytes(edge)
    size = min(len(theirs), min(stop, len(ours)) - position) // page * page
    if size <= 0:
        return 0
    if size == len(theirs) <= STRETCH_BYTES and theirs.startswith(ours[position : position + size]):
        return size
    if not theirs.startswith(ours[position : position + page]):
        return 0
    low, high, stretch, differs = 1, size // page, max(1, STRETCH_BYTES // page), False
    while low < high:
        middle = low + ((high - low + 1) // 2 if differs else min(high - low, stretch))
        if theirs.startswith(ours[position + low * page : position + middle * page], low * page):
            low = middle
        else:
            high = middle - 1
            differs = True
    return low * page


def page_code(length: int, data: bytes | memoryview, position: int, page_bytes: int) -> int:
    """A hash of a length and the page behind it, which stands in a key's data at a position. Cost: O(page)."""
    return hash(bytes(data[position : position + page_bytes])) ^ length


def untracked(items: tuple[Item, ...], /) -> tuple[Item, ...]:
    """A tuple that is kept for long. Cost: O(items)."""
    return items


def with_item(items: tuple[Item, ...], index: int, item: Item, /) -> tuple[Item, ...]:
    """A copy with another item at an index; IndexError if there is none. Cost: O(items)."""
    if not 0 <= index < len(items):
        raise IndexError("with_item(items, index, item): there is no such item")
    return (*items[:index], item, *items[index + 1 :])


class NumpyFlags:
    """The flags of one set of ids, and memory to find an id that is given twice.

    A few ids are handled one by one, because an array operation costs as much as about twenty of them. Consecutive ids, which a
    young pool allocates, are handled as one slice. Results of other operations are searched as bytes, which is much cheaper
    than a reduction.
    """

    def __init__(self) -> None:
        self._flags = bytearray()
        self._array: NDArray[np.bool_] = np.empty(0, np.bool_)  # the same memory, many ids at a time
        self._order: NDArray[np.int32] = np.empty(0, np.int32)  # the last number given to each id,
        self._numbers: NDArray[np.int32] = self._order  # and the numbers from 0 up,
        self._number_bytes = b""  # also as bytes, for one comparison of memory is cheaper than one of arrays

    def are(self, ids: Ids, flags: bytearray, flag: bool) -> int:
        """Whether the flags of these ids are all 0 or all 1, and no id comes twice.

        Args:
            ids: an int64 array, or the bytes of one.
            flags: a byte an id, each 0 or 1.

        Returns YES or NO, or BEYOND if an id has no flag; where an id has none and another's is wrong, either. Cost: O(ids).
        """
        data = ids if isinstance(ids, bytes) else ids.tobytes()
        count = len(data) // INT64_BYTES
        if count <= FEW:
            return _few_are(UNPACK[count](data), flags, flag)
        if any_negative(data):
            return NO
        first = _run_start(data)
        if first >= 0:
            if first + count > len(flags):
                return BEYOND
            return NO if flags.find(not flag, first, first + count) >= 0 else YES
        numbers = np.frombuffer(data, INT64)
        try:
            found: NDArray[np.bool_] = self._of(flags).take(numbers)
        except IndexError:
            return BEYOND
        return NO if found.tobytes().find(not flag) >= 0 or self._has_twice(numbers, count) else YES

    def turn(self, ids: Ids, flags: bytearray, flag: bool) -> int:
        """Set the flags of these ids, if all are the other and no id comes twice; returns as `are`. Cost: O(ids)."""
        found = self.are(ids, flags, not flag)
        if found == YES:
            self.put(ids, flags, flag)
        return found

    def put(self, ids: Ids, flags: bytearray, flag: bool) -> None:
        """Set the flags of these ids. Raises IndexError for an id that has none. Cost: O(ids)."""
        data = ids if isinstance(ids, bytes) else ids.tobytes()
        count = len(data) // INT64_BYTES
        if count <= FEW:
            for page in UNPACK[count](data):
                flags[page] = flag
            return
        first = _run_start(data)
        if first < 0:
            self._of(flags)[np.frombuffer(data, INT64)] = flag
        elif first + count > len(flags):
            raise IndexError(f"id {first + count - 1} has no flag")
        else:
            flags[first : first + count] = (b"\1" if flag else b"\0") * count

    def _of(self, flags: bytearray) -> NDArray[np.bool_]:
        if self._flags is not flags:
            self._flags, self._array = flags, np.frombuffer(flags, np.bool_)
        return self._array

    def _has_twice(self, ids: NDArray[np.int64], count: int) -> bool:
        """Whether an id occurs twice: scatter the positions by id, and compare what is read back."""
        if len(self._order) < len(self._flags):
            self._order = np.zeros(len(self._flags), np.int32)
        if len(self._numbers) < count:
            self._numbers = np.arange(2 * count, dtype=np.int32)
            self._number_bytes = self._numbers.tobytes()
        self._order[ids] = self._numbers[:count]
        found: NDArray[np.int32] = self._order.take(ids)
        return not self._number_bytes.startswith(found.tobytes())


def _few_are(ids: tuple[int, ...], flags: bytearray, flag: bool) -> int:
    for page in ids:
        if page < 0:
            return NO
        if page >= len(flags):
            return BEYOND
        if flags[page] != flag:
            return NO
    return YES if len(ids) < 2 or len(set(ids)) == len(ids) else NO


def _run_start(data: bytes) -> int:
    """The first of the integers if they are consecutive, else -1. Cost: O(1) for most arrays that are not consecutive."""
    size = len(data) - INT64_BYTES
    first: int = ONE.unpack_from(data)[0]
    if ONE.unpack_from(data, size)[0] - first != size // INT64_BYTES:
        return -1
    run = np.arange(first, first + size // INT64_BYTES + 1, dtype=INT64)
    return first if data == run.tobytes() else -1
