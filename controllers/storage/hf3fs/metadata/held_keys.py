"""Which key holds which page, in order of use, without a structure that must ever be rebuilt as a whole.

By page, in flat arrays: the key, and the pages used just before and just after it. By key, in a dictionary for each first
byte, the page. A dictionary is rebuilt when it has grown or changed enough, all of it at once; keys are uniformly distributed,
so each of these has one 256th of all and is rebuilt at another moment. An OrderedDict of two million keys stood still for one
to two seconds each time, and the garbage collector went through it; dictionaries of bytes and integers it leaves out.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

from unified_tree.controllers.storage.hf3fs.metadata_wire import NOWHERE
from unified_tree.controllers.storage.storage_engine import KEY_BYTES

_SHARDS = 256
_END = 0
"""Stands in the order before the oldest and behind the youngest page; page p is at p + 1."""
_NO_KEY = bytes(KEY_BYTES)


class HeldKeys:
    """Keys of 32 bytes and their pages, no two keys with the same. Cost: every method O(1) a key or page, unless it says more.

    Args:
        held: keys and pages, the least recently used first.
        room: pages from 0 on that will be held; `grow` makes more.
    """

    def __init__(self, held: Iterable[tuple[bytes, int]] = (), room: int = 0) -> None:
        self._shards: list[dict[bytes, int]] = [{} for _ in range(_SHARDS)]
        self._keys = bytearray(KEY_BYTES * room)
        self._older, self._newer = array("q", bytes(8 * (room + 1))), array("q", bytes(8 * (room + 1)))
        self._count = 0
        for key, page in held:
            self.add(key, page)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: bytes) -> bool:
        return key in self._shards[key[0]]

    @property
    def room(self) -> int:
        """Pages that can be held, those from 0 on."""
        return len(self._newer) - 1

    def grow(self) -> None:
        """Room for one page more."""
        self._keys += _NO_KEY
        self._older.append(0)
        self._newer.append(0)

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """The page of each key, or NOWHERE."""
        shards = self._shards
        return [shards[key[0]].get(key, NOWHERE) for key in keys]

    def use(self, pages: Iterable[int]) -> None:
        """These pages, which are held, are used now, one after the other."""
        older, newer = self._older, self._newer
        for page in pages:
            at, youngest = page + 1, older[_END]
            if at != youngest:
                before, behind = older[at], newer[at]
                newer[before], older[behind] = behind, before
                newer[youngest], older[at] = at, youngest
                newer[at], older[_END] = _END, at

    def add(self, key: bytes, page: int) -> None:
        """A key that holds no page holds this one, which no key holds, from now on."""
        self._shards[key[0]][key] = page
        self._keys[KEY_BYTES * page : KEY_BYTES * (page + 1)] = key
        self._count += 1
        at, youngest = page + 1, self._older[_END]
        self._newer[youngest], self._older[at] = at, youngest
        self._newer[at], self._older[_END] = _END, at

    def remove(self, key: bytes) -> int:
        """The page that a key held until now; NOWHERE if it held none."""
        page = self._shards[key[0]].pop(key, NOWHERE)
        if page >= 0:
            before, behind = self._older[page + 1], self._newer[page + 1]
            self._newer[before], self._older[behind] = behind, before
            self._count -= 1
        return page

    def oldest(self) -> tuple[bytes, int]:
        """The least recently used key and its page; there must be one."""
        assert self._count
        page = self._newer[_END] - 1
        return self._key(page), page

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Keys and their pages, the least recently used first, while nothing changes. Cost: O(keys)."""
        at = self._newer[_END]
        while at != _END:
            yield self._key(at - 1), at - 1
            at = self._newer[at]

    def _key(self, page: int) -> bytes:
        return bytes(self._keys[KEY_BYTES * page : KEY_BYTES * (page + 1)])
