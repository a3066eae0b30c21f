"""`Recency` beside a naive model; beside a tree that evicts by recency it is in test_reuse.py."""

from __future__ import annotations

from random import Random

import pytest

from unified_tree.recency import Recency


class Naive:
    """What is left of each visit that nobody answered, the oldest first; ends are evicted token by token."""

    def __init__(self, size: int, room: int) -> None:
        self.size, self.room, self.entered = size, room, 0
        self.tokens: dict[int, int] = {}
        self.left: dict[int, int] = {}

    def enter(self, tokens: int) -> None:
        self.left.pop(self.entered - self.size, None)
        self.tokens[self.entered] = self.left[self.entered] = tokens
        self.entered += 1
        self.evict()

    def grew(self, serial: int, tokens: int) -> None:
        if self.left.get(serial) == self.tokens[serial]:  # what has lost its end does not grow
            self.tokens[serial] = self.left[serial] = tokens
            self.evict()

    def evict(self) -> None:
        for serial in list(self.left):
            over = sum(self.left.values()) - self.room
            self.left[serial] -= min(self.left[serial], max(0, over))
            if over > 0 and self.left[serial] == 0:
                del self.left[serial]


@pytest.mark.parametrize("size", [1 << 9, 20], ids=["all remembered", "few remembered"])
@pytest.mark.parametrize("room", [0, 1, 40, 400, 4_000, 100_000])
def test_it_holds_what_is_left_of_a_list_of_visits(room: int, size: int) -> None:
    for seed in range(10):
        draw = Random(seed)
        recency, naive, waiting = Recency(size), Naive(size, room), list[int]()
        recency.has_room_for(room)
        for serial in range(300):
            tokens = draw.choice((1, 7, 30, 90))
            recency.enter(tokens)
            naive.enter(tokens)
            waiting.append(serial)
            for _ in range(draw.randrange(3)):
                grown = draw.choice(waiting[-3:])
                tokens = naive.tokens[grown] + draw.choice((0, 1, 7, 30))
                recency.grew(grown, tokens)
                naive.grew(grown, tokens)
            if draw.random() < 0.1:
                naive.room = max(0, naive.room + draw.randrange(-30, 31))
                recency.has_room_for(naive.room)
                naive.evict()
            while waiting and draw.random() < 0.45:
                serial = waiting.pop(draw.randrange(len(waiting)) if draw.random() < 0.5 else -1)
                assert recency.answered(serial) == naive.left.pop(serial, 0), (seed, serial)


def test_before_it_is_known_for_how_much_there_is_room_it_holds_all() -> None:
    recency = Recency(8)
    recency.enter(5)
    recency.enter(7)
    before = recency.is_bounded
    assert recency.answered(0) == 5
    recency.has_room_for(6)
    assert (before, recency.is_bounded) == (False, True)
    assert recency.answered(1) == 6
