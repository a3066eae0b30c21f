"""The pages of one component that a request holds."""

from __future__ import annotations

import numpy as np

from unified_tree.controllers.cache.page_tables import PageTable


def test_a_table_whose_first_pages_are_not_held_grows_behind_them() -> None:
    """So a window's does that is rebuilt, and no page of which is cached."""
    table = PageTable(3)
    table.start(700, 700)
    table.put(700, np.array([5, 6, 7]))
    assert [table.page(index) for index in (699, 700, 702, 703)] == [-1, 5, 7, -1]
    table.cover(5000)
    table.put(703, np.arange(2000))
    assert table.slice(698, 704).tolist() == [-1, -1, 5, 6, 7, 0]
    assert table.private().tolist() == [5, 6, 7, *range(2000)]


def test_a_table_keeps_its_numbers_in_a_row_and_takes_them_back() -> None:
    table, row = PageTable(4), np.zeros(3, np.int64)
    table.put(0, np.arange(10, 16))
    table.start(0, 2)
    table.move_to(np.full(8, -1), row.data)
    assert table.private_before(3).tolist() == [12]
    table.drop_front(3)
    assert row.tolist() == [3, 3, 6]
    table.append(16)
    assert table.private_first() == 13 and table.private_from_index(5).tolist() == [15, 16]
    for _ in range(2):
        table.drop_front(4)
        table.drop_back(5)
    assert row.tolist() == [4, 4, 5]
    table.move_to(np.full(5, -1), None)
    row[:] = 0
    assert (table.first_held, table.private_from, table.size) == (4, 4, 5) and table.private().tolist() == [14]
