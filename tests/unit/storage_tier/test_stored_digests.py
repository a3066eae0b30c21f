"""What is remembered of a store: the beginning of a prefix that was seen lately, no more than the set holds."""

from __future__ import annotations

import threading

import pytest

from unified_tree.controllers.storage_tier.stored_digests import StoredDigests


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def digests(*numbers: int) -> list[bytes]:
    return [bytes([number]) * 32 for number in numbers]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_pages_from_the_first_on_count(clock: Clock) -> None:
    stored = StoredDigests(10, 5, clock)
    stored.add(digests(1, 2, 3))
    assert stored.leading(digests(1, 2, 3)).page_count == 3
    assert stored.leading(digests(1, 2, 3, 4, 5)).page_count == 3
    assert stored.leading(digests(1, 9, 3)).page_count == 1
    assert stored.leading(digests(9, 2, 3)).page_count == 0
    assert stored.leading([]).page_count == 0


def test_what_was_forgotten_in_the_middle_ends_it_though_more_is_known_behind(clock: Clock) -> None:
    stored = StoredDigests(10, 5, clock)
    stored.add(digests(1, 2, 3, 4))
    stored.discard(digests(2, 7))
    assert stored.leading(digests(1, 2, 3, 4)).page_count == 1
    stored.add(digests(2))
    assert stored.leading(digests(1, 2, 3, 4)).page_count == 4


def test_the_oldest_go_first_and_adding_again_makes_young(clock: Clock) -> None:
    stored = StoredDigests(3, 5, clock)
    stored.add(digests(1, 2, 3))
    stored.add(digests(1))
    stored.add(digests(4))
    assert len(stored) == 3
    assert [stored.leading(digests(number)).page_count for number in (1, 2, 3, 4)] == [1, 0, 1, 1]
    stored.add(digests(*range(10, 20)))
    assert len(stored) == 3


def test_an_entry_is_believed_for_a_while_of_its_own(clock: Clock) -> None:
    stored = StoredDigests(10, 5, clock)
    stored.add(digests(1))
    clock.now = 3
    stored.add(digests(2))
    clock.now = 5
    assert stored.leading(digests(1, 2)).page_count == 2
    clock.now = 5.5
    assert stored.leading(digests(1, 2)).page_count == 0
    assert stored.leading(digests(2)).page_count == 1
    clock.now = 8.5
    assert stored.leading(digests(2)).page_count == 0


def test_threads_may_use_it_at_once(clock: Clock) -> None:
    stored = StoredDigests(50, 5, clock)
    failures = []

    def work(offset: int) -> None:
        try:
            for turn in range(300):
                some = digests(*((offset + turn + i) % 200 for i in range(20)))
                stored.add(some)
                stored.leading(some)
                stored.discard(some[:5])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in (0, 50, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(stored) <= 50


def test_what_was_written_and_forgotten_unread_is_counted(clock: Clock) -> None:
    stored = StoredDigests(3, 5, clock)
    stored.add(digests(1, 2, 3))
    stored.add(digests(2), written=False)
    stored.add(digests(4, 5, 6))
    assert stored.unread_count == 2
    stored.add(digests(9), written=False)
    stored.discard(digests(5, 9))
    assert stored.unread_count == 4, "4 gave way, 5 was gone; 9 was another's"
