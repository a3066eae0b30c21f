"""What a tape tells of a step: sums, and whose values went."""

from __future__ import annotations

from unified_tree.controllers.inspector.tape import EVENT_FIELDS, MAX_EVENTS, MAX_OWNERS, Tape

EVICTED = ("evicted", 0, "full", "shop")


def test_calls_of_one_kind_in_one_step_are_one_event() -> None:
    tape = Tape(lambda: 7.0)
    tape.next_step()
    tape.add(EVICTED, (2, 64, 4, 400, 1), {"code": 2})
    tape.add(EVICTED, (3, 32, 2, 200, 0), {"code": 1, "shop": 2})
    tape.next_step()
    tape.add(EVICTED, (1, 16, 1, 100, 0), {"code": 1})
    first, second = (dict(zip(EVENT_FIELDS, event, strict=True)) for event in tape.take(9))
    assert (first["at_s"], first["kind"], first["for"]) == (7.0, "evicted", "shop")
    assert (first["calls"], first["values"], first["tokens"], first["pages"], first["bytes"]) == (2, 5, 96, 6, 600)
    assert first["needed"] == 1 and first["owners"] == [("code", 3), ("shop", 2)]
    assert (second["calls"], second["owners"]) == (1, [("code", 1)])
    assert tape.take(9) == []


def test_of_many_owners_the_rest_is_one() -> None:
    tape = Tape(lambda: 0.0)
    count = MAX_OWNERS + 3
    tape.add(EVICTED, (0, 0, 0, 0, 0), {f"tenant {i}": i + 1 for i in range(count)})
    [event] = tape.take(9)
    owners = dict(zip(EVENT_FIELDS, event, strict=True))["owners"]
    assert [namespace for namespace, _ in owners] == [*(f"tenant {i}" for i in range(count - 1, 2, -1)), None]
    assert sum(number for _, number in owners) == count * (count + 1) // 2


def test_what_is_too_much_is_counted() -> None:
    tape = Tape(lambda: 0.0)
    for _ in range(MAX_EVENTS + 5):
        tape.next_step()
        tape.add(EVICTED, (1, 0, 0, 0, 0))
    assert [len(tape.take(100)) for _ in range(4)] == [100, 100, MAX_EVENTS - 200, 0]
    assert tape.left_out == 5
