"""Which row of the database tells of which page of a namespace: rows of greater numbers were written later."""

from __future__ import annotations

from array import array


class WriteOrders:
    """Numbers of rows by page; no more of a page than its last. Cost: 8 bytes a page, and O(1) a call."""

    def __init__(self) -> None:
        self._last = 0
        self._orders = array("q")

    def __getitem__(self, page: int) -> int:
        """Of a page that a key has. Of another it is that of its last key, or 0."""
        return self._orders[page] if page < len(self._orders) else 0

    def put(self, page: int, order: int) -> None:
        """The row of a page, the last one of all."""
        assert order > self._last
        self._last = order
        if page >= len(self._orders):
            self._orders.frombytes(bytes(8 * (page + 1 - len(self._orders))))
        self._orders[page] = order

    def next(self, page: int) -> int:
        """The number of a new row."""
        self.put(page, self._last + 1)
        return self._last
