"""What every transfer engine promises. Where nothing is moved only the bookkeeping is looked at."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress

import numpy as np
import pytest
from cells import Ids
from engine_rigs import LAYERS, NAMES, PAGES, Rig, ids, rig, transfer

from unified_tree.controllers.transfer_engines import Completion, Transfer
from unified_tree.effect import Copy, EffectKind
from unified_tree.errors import PageError, TransferError

BACKUP, LOAD = EffectKind.BACKUP, EffectKind.LOAD


@pytest.fixture(params=NAMES)
def one(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = rig(request.param)
    yield made
    made.engine.close()


def outcomes(one: Rig) -> dict[int, str | None]:
    one.engine.drain()
    completions = one.engine.poll()
    assert one.engine.poll() == []
    assert len({completion.ticket for completion in completions}) == len(completions)
    return {completion.ticket: completion.error for completion in completions}


def test_pages_go_out_and_come_back(one: Rig) -> None:
    before = {name: cells.device.copy() for name, cells in one.cells.items()}
    one.engine.submit([transfer(1, BACKUP, full=([0, 1, 2, 3, 4], [9, 3, 5, 7, 1]), mamba=([6], [2]))])
    assert outcomes(one) == {1: None}
    one.engine.submit([transfer(2, LOAD, full=([9, 3, 5, 7, 1], [10, 11, 12, 13, 14]), mamba=([2], [8]))])
    assert outcomes(one) == {2: None}
    if one.moves_bytes:
        assert (one.cells["full"].device[:, 10:15] == before["full"][:, :5]).all()
        assert (one.cells["mamba"].device[:, 8] == before["mamba"][:, 6]).all()
        for name, moved in (("full", range(10, 15)), ("mamba", range(8, 9))):
            rest = np.setdiff1d(np.arange(PAGES), moved)
            assert (one.cells[name].device[:, rest] == before[name][:, rest]).all(), "nothing else was touched"


def test_completions_come_once_and_in_the_order_of_submission(one: Rig) -> None:
    one.engine.submit([transfer(9, BACKUP, full=([0], [0])), transfer(2, LOAD, full=([1], [1]))])
    one.engine.submit([transfer(5, LOAD, mamba=([2], [2])), transfer(4, BACKUP, mamba=([3], [3])), transfer(3, BACKUP)])
    one.engine.cancel(4)
    tickets: list[int] = []
    for _ in range(1000):
        tickets += [completion.ticket for completion in one.engine.poll()]
        one.pass_time()
        if len(tickets) == 5:
            break
    else:
        one.engine.drain()
        tickets += [completion.ticket for completion in one.engine.poll()]
    assert [ticket for ticket in tickets if ticket in {9, 4, 3}] == [9, 4, 3]
    assert [ticket for ticket in tickets if ticket in {2, 5}] == [2, 5]
    assert one.engine.poll() == []


def test_a_transfer_without_pages_ends(one: Rig) -> None:
    one.engine.submit([transfer(1, LOAD), transfer(2, BACKUP, full=([], [])), transfer(3, LOAD, full=([], []))])
    one.engine.wait_layer(1, 40)
    one.engine.wait_layer(3, 40)
    assert outcomes(one) == {1: None, 2: None, 3: None}
    one.engine.submit([])
    assert outcomes(one) == {}


def test_a_used_ticket_is_refused_and_nothing_is_taken(one: Rig) -> None:
    one.engine.submit([transfer(1, LOAD, full=([0], [0]))])
    with pytest.raises(TransferError, match="transfer 1: this ticket was used before"):
        one.engine.submit([transfer(2, LOAD, full=([1], [1])), transfer(1, BACKUP)])
    with pytest.raises(TransferError, match="transfer 3: this ticket was used before"):
        one.engine.submit([transfer(3, LOAD), transfer(3, LOAD)])
    assert outcomes(one) == {1: None}
    with pytest.raises(TransferError, match="used before"):
        one.engine.submit([transfer(1, LOAD)])
    one.engine.submit([transfer(2, LOAD), transfer(3, LOAD)])
    assert outcomes(one) == {2: None, 3: None}


def test_a_component_that_is_not_moved_is_refused(one: Rig) -> None:
    if one.moves_bytes:
        with pytest.raises(TransferError, match="transfer 2: no mover for 'swa'"):
            one.engine.submit([transfer(1, LOAD, full=([0], [0])), transfer(2, LOAD, swa=([0], [0]))])
        assert outcomes(one) == {}


def test_copies_that_are_none_are_refused(one: Rig) -> None:
    def submit(*copies: Copy) -> None:
        one.engine.submit([transfer(1, LOAD, full=([0], [0])), Transfer(ticket=2, kind=LOAD, copies=copies)])

    copy = Copy(component="full", source=ids(1), target=ids(1))
    with pytest.raises(PageError, match="full: 1 source pages for 2 targets"):
        submit(Copy(component="full", source=ids(1), target=ids(1, 2)))
    with pytest.raises(PageError, match="full: target must be a one-dimensional int64 array"):
        submit(Copy(component="full", source=ids(1), target=np.array([1.0])))
    with pytest.raises(TransferError, match="transfer 2: a component is named twice among full, full"):
        submit(copy, copy)
    assert outcomes(one) == {}


def test_a_gate_opens_when_all_layers_up_to_it_have_landed(one: Rig) -> None:
    one.engine.submit([transfer(1, LOAD, full=([0, 1], [2, 3]), mamba=([4], [5]))])
    for layer_id in (0, 1, 2, 3, 5, 7, 10, 11, 60, 0, 3):
        one.gate(1, layer_id)
        if one.moves_bytes:
            for name, source, target in (("full", [0, 1], [2, 3]), ("mamba", [4], [5])):
                cells = one.cells[name]
                here = [index for index, kept in enumerate(LAYERS[name]) if kept <= layer_id]
                assert (cells.device[np.ix_(here, target)] == cells.host[np.ix_(here, source)]).all()
    assert outcomes(one) == {1: None}
    one.gate(1, 11)  # a gate stays open


def test_a_gate_that_cannot_open_raises(one: Rig) -> None:
    with pytest.raises(TransferError, match="transfer 7 is not known"):
        one.engine.wait_layer(7, 0)
    with pytest.raises(TransferError, match="transfer 7 is not known"):
        one.engine.wait(7)
    one.engine.submit([transfer(1, BACKUP, full=([0], [0])), transfer(2, LOAD, full=([0], [1]))])
    one.engine.cancel(2)
    with pytest.raises(TransferError, match="transfer 1 is a backup"):
        one.engine.wait_layer(1, 0)
    for _ in range(2):
        with pytest.raises(TransferError, match="transfer 2: layer 3 will not come: cancelled"):
            one.engine.wait_layer(2, 3)
        assert outcomes(one) in ({1: None, 2: "cancelled"}, {}), "before it was polled, and after"


def test_waiting_means_that_poll_has_it(one: Rig) -> None:
    one.engine.submit([transfer(1, BACKUP, full=([0], [0])), transfer(2, LOAD, full=([0], [1])), transfer(3, LOAD)])
    one.engine.wait(3)
    tickets = [completion.ticket for completion in one.engine.poll()]
    assert [ticket for ticket in tickets if ticket != 1] == [2, 3]
    one.engine.wait(2)
    one.engine.wait(1)
    one.engine.drain()
    assert sorted(tickets + [completion.ticket for completion in one.engine.poll()]) == [1, 2, 3]


def test_a_cancelled_transfer_has_one_completion(one: Rig) -> None:
    one.engine.cancel(1)  # never submitted: left alone
    one.engine.submit([transfer(1, LOAD, full=([0], [1])), transfer(2, LOAD, full=([0], [2])), transfer(3, BACKUP)])
    for ticket in (2, 2, 3):
        one.engine.cancel(ticket)
    result = outcomes(one)
    assert (result[1], result[2]) == (None, "cancelled")
    for ticket in (1, 2, 3):
        one.engine.cancel(ticket)  # ended: left alone
    assert outcomes(one) == {}
    one.engine.wait_layer(1, 11)


def test_bad_pages_take_no_other_transfer_along(one: Rig) -> None:
    if not one.moves_bytes:
        return
    for direction in (BACKUP, LOAD):
        first = 10 * (direction is LOAD)
        one.engine.submit(
            [
                transfer(first + 1, direction, full=([0], [1])),
                transfer(first + 2, direction, full=([2], [PAGES]), mamba=([1], [2])),
                transfer(first + 3, direction, full=([3], [4])),
            ]
        )
        result = outcomes(one)
        assert result.pop(first + 2), "failed"
        assert result == {first + 1: None, first + 3: None}
    assert (one.cells["full"].device[:, [1, 4]] == one.cells["full"].host[:, [0, 3]]).all()
    with pytest.raises(TransferError, match=r"transfer 12: layer 3 will not come: .*PageError"):
        one.engine.wait_layer(12, 3)
    one.engine.wait_layer(13, 11)


def test_closing_ends_what_is_open(one: Rig) -> None:
    one.engine.submit([transfer(t, (BACKUP, LOAD)[t % 2], full=([t], [t])) for t in range(8)])
    one.engine.close()
    before = {name: (cells.device.copy(), cells.host.copy()) for name, cells in one.cells.items()}
    one.engine.close()
    completions = one.engine.poll()
    assert sorted(completion.ticket for completion in completions) == list(range(8))
    assert all(completion.error in {None, "the engine was closed"} for completion in completions)
    assert any(completion.error for completion in completions)
    for completion in completions:
        if completion.error and completion.ticket % 2:
            with pytest.raises(TransferError, match="will not come: the engine was closed"):
                one.engine.wait_layer(completion.ticket, 3)
        one.engine.wait(completion.ticket)
    one.engine.drain()
    with pytest.raises(TransferError, match="this engine was closed"):
        one.engine.submit([transfer(99, LOAD)])
    for _ in range(20):
        one.pass_time()
        assert one.engine.poll() == []
    for name, (device, host) in before.items():
        assert (one.cells[name].device == device).all()
        assert (one.cells[name].host == host).all()


class Traffic:
    """Random transfers between pages that are free, in use, or being written; what is written by whom is known throughout.

    A side is named by the direction of the transfers that write it.
    """

    def __init__(self, one: Rig, rng: random.Random, *, faults: bool):
        self.one, self.rng, self.faults = one, rng, faults
        self.free = {(name, side): list(range(PAGES)) for name in LAYERS for side in EffectKind}
        self.values = {(name, side): self.array(name, side).copy() for name in LAYERS for side in EffectKind}
        self.reads = {(name, side): [0] * PAGES for name in LAYERS for side in EffectKind}
        self.open: dict[int, Transfer] = {}
        self.ended: list[int] = []
        self.cancelled: set[int] = set()
        self.ticket = 0

    def array(self, name: str, written_by: EffectKind) -> Ids:
        """The pages that transfers of a direction write."""
        array: Ids = self.one.cells[name].host if written_by is BACKUP else self.one.cells[name].device
        return array

    def submit(self) -> None:
        batch = []
        for _ in range(self.rng.randrange(1, 4)):
            direction = self.rng.choice(list(EffectKind))
            other = BACKUP if direction is LOAD else LOAD
            copies = []
            for name in LAYERS:
                free = [page for page in self.free[name, direction] if not self.reads[name, direction][page]]
                count = self.rng.randrange(min(5, len(free)) + 1)
                source = self.rng.choices(self.free[name, other], k=count) if self.free[name, other] else []
                target = self.rng.sample(free, k=len(source))
                for page in target:
                    self.free[name, direction].remove(page)
                for page in source:
                    self.reads[name, other][page] += 1
                copies.append(Copy(component=name, source=ids(*source), target=ids(*target)))
            self.ticket += 1
            self.open[self.ticket] = Transfer(ticket=self.ticket, kind=direction, copies=tuple(copies))
            batch.append(self.open[self.ticket])
        self.one.engine.submit(batch)

    def apply(self, completion: Completion) -> None:
        """A completion came: its bytes are there, or its pages are the caller's again and are written at once."""
        done = self.open.pop(completion.ticket)
        self.ended.append(completion.ticket)
        assert completion.error is None or self.faults or completion.ticket in self.cancelled
        assert not any(other < completion.ticket and self.open[other].kind is done.kind for other in self.open)
        for copy in done.copies:
            other = BACKUP if done.kind is LOAD else LOAD
            values = self.values[copy.component, done.kind]
            if completion.error is None:
                values[:, copy.target] = self.values[copy.component, other][:, copy.source]
            else:
                values[:, copy.target] = [[self.rng.randrange(1 << 40) for _ in copy.target] for _ in values]
                self.one.cells[copy.component].put(device=done.kind is LOAD, pages=copy.target, values=values[:, copy.target])
            self.free[copy.component, done.kind] += copy.target.tolist()
            for page in copy.source.tolist():
                self.reads[copy.component, other][page] -= 1

    def check(self) -> None:
        """All pages that nobody writes hold what they should."""
        for (name, side), pages in self.free.items():
            assert (self.array(name, side)[:, pages] == self.values[name, side][:, pages]).all(), (name, side)


def break_copies(one: Rig, rng: random.Random) -> None:
    """Let one copy in ten raise, from now on."""

    def watch(*_: object) -> None:
        if rng.random() < 0.1:
            raise OSError("a copy that fails")

    for cells in one.cells.values():
        cells.watch = watch


@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", [name for name in NAMES if name != "null"])
def test_random_traffic(name: str, seed: int, faults: bool, record_property: Callable[[str, object], None]) -> None:
    rng = random.Random(f"{name} {seed}")
    one = rig(name, chunk_blocks=rng.choice([1, 4, 100]))
    if faults:
        break_copies(one, random.Random(seed))
    traffic = Traffic(one, rng, faults=faults)
    for _ in range(200):
        match rng.randrange(8):
            case 0 | 1 | 2:
                traffic.submit()
            case 3 if traffic.open:
                ticket = rng.choice(list(traffic.open))
                traffic.cancelled.add(ticket)
                one.engine.cancel(ticket)
            case 4 if traffic.open:
                one.engine.wait(rng.choice(list(traffic.open)))
            case 5:
                loads = [t for t in traffic.open if traffic.open[t].kind is LOAD and t not in traffic.cancelled]
                if loads:
                    with nullcontext() if not traffic.faults else suppress(TransferError):
                        one.gate(rng.choice(loads), rng.randrange(13))
            case _:
                one.pass_time()
        for completion in one.engine.poll():
            traffic.apply(completion)
        traffic.check()
    one.engine.drain()
    for completion in one.engine.poll():
        traffic.apply(completion)
    traffic.check()
    assert sorted(traffic.ended) == list(range(1, traffic.ticket + 1))
    assert not traffic.open
    one.engine.close()
    record_property("operations", 200)
