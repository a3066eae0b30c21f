"""The contract of transfer engines. Of an engine that moves nothing only the bookkeeping is checked."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.testing.checks import LIMIT_S, Check, expect, expect_equal, refusal, run_checks
from unified_tree.controllers.testing.transfer_rig import (
    BACKUP,
    LAYERS,
    LOAD,
    PAGES,
    HeldCopies,
    Ids,
    TransferRig,
    ids,
    transfer,
)
from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer
from unified_tree.nodes.effect import Copy, EffectKind
from unified_tree.terms.errors import PageError, TransferError

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_mover import PageMover
    from unified_tree.controllers.transfer_engines.transfer import TransferEngine


OpenTransferEngine = Callable[[Mapping[str, "PageMover"]], "TransferEngine"]
"""Opens a transfer engine over movers by component."""
SEEDS = 4
TRAFFIC_STEPS = 200
MOST_HELD = 8
"""Copies that may pass while a transfer behind them is cancelled."""


def check_transfer_engine(
    open_engine: OpenTransferEngine,
    *,
    moves_bytes: bool = True,
    ends_in_submit: bool = False,
    limit_s: float = LIMIT_S,
) -> None:
    """Check that a transfer engine keeps the contract of `TransferEngine`.

    Args:
        open_engine: opens one over movers by component; see `PageMover`. Those of the checks are numpy arrays.
        moves_bytes: False of an engine that moves nothing.
        ends_in_submit: whether transfers have ended when `submit` returns.
        limit_s: seconds that a clause may take.

    Raises AssertionError that names every clause that is broken. An engine with memory of its own is checked with
    `transfer_engine_checks` and a TransferRig.

    >>> from unified_tree.controllers.transfer_engines import CpuEngine
    >>> check_transfer_engine(CpuEngine)
    """
    options = {"moves_bytes": moves_bytes, "ends_in_submit": ends_in_submit}
    run_checks(transfer_engine_checks(), lambda: TransferRig.over_cells(open_engine, **options), limit_s)


def transfer_engine_checks() -> list[Check]:
    """The single checks: each is called with a new TransferRig, and closes its engine."""
    clauses = (
        pages_go_out_and_come_back,
        completions_come_once_and_in_the_order_of_submission,
        a_transfer_without_pages_ends,
        a_used_ticket_is_refused_and_nothing_is_taken,
        a_component_that_is_not_moved_is_refused,
        copies_that_are_none_are_refused,
        a_gate_opens_when_all_layers_up_to_it_have_landed,
        a_gate_that_cannot_open_raises,
        waiting_means_that_poll_has_it,
        a_cancelled_transfer_has_one_completion,
        bad_pages_take_no_other_transfer_along,
        closing_ends_what_is_open,
    )
    traffic = [
        Check(random_traffic, f"random_traffic_{'with' if faults else 'without'}_faults_{seed}", seed=seed, faults=faults)
        for faults in (False, True)
        for seed in range(SEEDS)
    ]
    return [Check(_closing(clause), clause.__name__) for clause in clauses] + traffic


def _closing(clause: Callable[[TransferRig], None]) -> Callable[[TransferRig], None]:
    def check(rig: TransferRig) -> None:
        try:
            clause(rig)
        finally:
            rig.engine.close()

    check.__doc__ = clause.__doc__
    return check


def pages_go_out_and_come_back(rig: TransferRig) -> None:
    """A backup and a load move what they name, and nothing else."""
    before = {name: cells.device.copy() for name, cells in rig.cells.items()}
    rig.engine.submit([transfer(1, BACKUP, full=([0, 1, 2, 3, 4], [9, 3, 5, 7, 1]), mamba=([6], [2]))])
    expect_equal(rig.outcomes(), {1: None}, "the outcome of a backup")
    rig.engine.submit([transfer(2, LOAD, full=([9, 3, 5, 7, 1], [10, 11, 12, 13, 14]), mamba=([2], [8]))])
    expect_equal(rig.outcomes(), {2: None}, "the outcome of a load")
    if not rig.moves_bytes:
        return
    expect((rig.cells["full"].device[:, 10:15] == before["full"][:, :5]).all(), "other bytes came back than went out")
    expect((rig.cells["mamba"].device[:, 8] == before["mamba"][:, 6]).all(), "other bytes came back than went out")
    for name, moved in (("full", range(10, 15)), ("mamba", range(8, 9))):
        rest = np.setdiff1d(np.arange(PAGES), moved)
        expect((rig.cells[name].device[:, rest] == before[name][:, rest]).all(), f"{name}: a page was written that none named")


def completions_come_once_and_in_the_order_of_submission(rig: TransferRig) -> None:
    """Every transfer has one completion; those of one direction come in the order of submission."""
    rig.engine.submit([transfer(9, BACKUP, full=([0], [0])), transfer(2, LOAD, full=([1], [1]))])
    rig.engine.submit([transfer(5, LOAD, mamba=([2], [2])), transfer(4, BACKUP, mamba=([3], [3])), transfer(3, BACKUP)])
    rig.engine.cancel(4)
    tickets: list[int] = []
    for _ in range(1000):
        tickets += [completion.ticket for completion in rig.engine.poll()]
        rig.pass_time()
        if len(tickets) == 5:
            break
    else:
        rig.engine.drain()
        tickets += [completion.ticket for completion in rig.engine.poll()]
    expect_equal([ticket for ticket in tickets if ticket in {9, 4, 3}], [9, 4, 3], "completed backups")
    expect_equal([ticket for ticket in tickets if ticket in {2, 5}], [2, 5], "completed loads")
    expect_equal(rig.engine.poll(), [], "poll, when all had their completion")


def a_transfer_without_pages_ends(rig: TransferRig) -> None:
    """A transfer may have no copies, or copies of no pages; its gates are open."""
    rig.engine.submit([transfer(1, LOAD), transfer(2, BACKUP, full=([], [])), transfer(3, LOAD, full=([], []))])
    rig.engine.wait_layer(1, 40)
    rig.engine.wait_layer(3, 40)
    expect_equal(rig.outcomes(), {1: None, 2: None, 3: None}, "the outcomes of transfers without pages")
    rig.engine.submit([])
    expect_equal(rig.outcomes(), {}, "the outcomes of no transfers")


def a_used_ticket_is_refused_and_nothing_is_taken(rig: TransferRig) -> None:
    """`submit` raises TransferError for a ticket used before, and takes none of its transfers."""
    again = "submit of a ticket that was used"
    rig.engine.submit([transfer(1, LOAD, full=([0], [0]))])
    with refusal(TransferError, "transfer 1: this ticket was used before", again):
        rig.engine.submit([transfer(2, LOAD, full=([1], [1])), transfer(1, BACKUP)])
    with refusal(TransferError, "transfer 3: this ticket was used before", f"{again} in the same call"):
        rig.engine.submit([transfer(3, LOAD), transfer(3, LOAD)])
    expect_equal(rig.outcomes(), {1: None}, "outcomes, when two calls were refused")
    with refusal(TransferError, "used before", f"{again} and has ended"):
        rig.engine.submit([transfer(1, LOAD)])
    rig.engine.submit([transfer(2, LOAD), transfer(3, LOAD)])
    expect_equal(rig.outcomes(), {2: None, 3: None}, "outcomes of tickets that were refused beside a used one")


def a_component_that_is_not_moved_is_refused(rig: TransferRig) -> None:
    """`submit` raises TransferError for a component without a mover, and takes none of its transfers."""
    if rig.moves_bytes:
        with refusal(TransferError, "transfer 2: no mover for 'swa'", "submit of an unknown component"):
            rig.engine.submit([transfer(1, LOAD, full=([0], [0])), transfer(2, LOAD, swa=([0], [0]))])
        expect_equal(rig.outcomes(), {}, "outcomes, when the call was refused")


def copies_that_are_none_are_refused(rig: TransferRig) -> None:
    """`submit` raises what `Transfer.check` raises, and takes none of its transfers."""

    def submit(*copies: Copy) -> None:
        rig.engine.submit([transfer(1, LOAD, full=([0], [0])), Transfer(ticket=2, kind=LOAD, copies=copies)])

    copy = Copy(component="full", source=ids(1), target=ids(1))
    with refusal(PageError, "full: 1 source pages for 2 targets", "a copy of one page to two"):
        submit(Copy(component="full", source=ids(1), target=ids(1, 2)))
    with refusal(PageError, "full: target must be a one-dimensional int64 array", "a copy to a page that is no integer"):
        submit(Copy(component="full", source=ids(1), target=np.array([1.0])))
    with refusal(TransferError, "transfer 2: a component is named twice among full, full", "two copies of a component"):
        submit(copy, copy)
    expect_equal(rig.outcomes(), {}, "outcomes, when all calls were refused")


def a_gate_opens_when_all_layers_up_to_it_have_landed(rig: TransferRig) -> None:
    """`wait_layer` returns when the layers up to this one are there; any number of times, in any order, and after the end."""
    rig.engine.submit([transfer(1, LOAD, full=([0, 1], [2, 3]), mamba=([4], [5]))])
    for layer_id in (0, 1, 2, 3, 5, 7, 10, 11, 60, 0, 3):
        rig.gate(1, layer_id)
        if rig.moves_bytes:
            for name, source, target in (("full", [0, 1], [2, 3]), ("mamba", [4], [5])):
                cells = rig.cells[name]
                here = [index for index, kept in enumerate(LAYERS[name]) if kept <= layer_id]
                landed = (cells.device[np.ix_(here, target)] == cells.host[np.ix_(here, source)]).all()
                expect(landed, f"wait_layer({layer_id}) returned, but {name} has not all layers up to it")
    expect_equal(rig.outcomes(), {1: None}, "the outcome of the load")
    rig.gate(1, 11)


def a_gate_that_cannot_open_raises(rig: TransferRig) -> None:
    """`wait_layer` raises TransferError for an unknown ticket, a backup and a cancelled load; `wait` for an unknown ticket."""
    with refusal(TransferError, "transfer 7 is not known", "wait_layer of a ticket never submitted"):
        rig.engine.wait_layer(7, 0)
    with refusal(TransferError, "transfer 7 is not known", "wait for a ticket never submitted"):
        rig.engine.wait(7)
    held = HeldCopies(rig)
    rig.engine.submit(
        [transfer(1, BACKUP, full=([0], [0])), transfer(3, LOAD, full=([0], [2])), transfer(2, LOAD, full=([0], [1]))]
    )
    held.during(lambda: rig.engine.cancel(2), MOST_HELD)
    with refusal(TransferError, "transfer 1 is a backup", "wait_layer of a backup"):
        rig.engine.wait_layer(1, 0)
    for wanted in ({1: None, 3: None, 2: rig.cancelled}, {}):
        if not rig.ends_in_submit:
            with refusal(TransferError, "transfer 2: layer 3 will not come: cancelled", "wait_layer of a cancelled load"):
                rig.engine.wait_layer(2, 3)
        expect_equal(rig.outcomes(), wanted, "outcomes of a backup and a cancelled load")


def waiting_means_that_poll_has_it(rig: TransferRig) -> None:
    """After `wait` the next `poll` has that completion, unless an earlier one gave it."""
    rig.engine.submit([transfer(1, BACKUP, full=([0], [0])), transfer(2, LOAD, full=([0], [1])), transfer(3, LOAD)])
    rig.engine.wait(3)
    tickets = [completion.ticket for completion in rig.engine.poll()]
    expect_equal([ticket for ticket in tickets if ticket != 1], [2, 3], "loads in poll after wait for the later one")
    for ticket in (2, 1):
        rig.engine.wait(ticket)
    rig.engine.drain()
    tickets += [completion.ticket for completion in rig.engine.poll()]
    expect_equal(sorted(tickets), [1, 2, 3], "all completions")


def a_cancelled_transfer_has_one_completion(rig: TransferRig) -> None:
    """`cancel` ends an open transfer with an error, once; what is not known or has ended is left alone."""
    rig.engine.cancel(1)
    held = HeldCopies(rig)
    rig.engine.submit([transfer(1, LOAD, full=([0], [1])), transfer(2, LOAD, full=([0], [2])), transfer(3, BACKUP)])

    def cancel() -> None:
        for ticket in (2, 2, 3):
            rig.engine.cancel(ticket)

    held.during(cancel, MOST_HELD)
    result = rig.outcomes()
    expect_equal((result.get(1, "missing"), result.get(2)), (None, rig.cancelled), "a load, and one that was cancelled")
    for ticket in (1, 2, 3):
        rig.engine.cancel(ticket)
    expect_equal(rig.outcomes(), {}, "outcomes after cancelling what had ended")
    rig.engine.wait_layer(1, 11)


def bad_pages_take_no_other_transfer_along(rig: TransferRig) -> None:
    """A mover that raises fails the transfer with the bad pages, and no other of the same call."""
    if not rig.moves_bytes:
        return
    for kind in (BACKUP, LOAD):
        first = 10 * (kind is LOAD)
        rig.engine.submit(
            [
                transfer(first + 1, kind, full=([0], [1])),
                transfer(first + 2, kind, full=([2], [PAGES]), mamba=([1], [2])),
                transfer(first + 3, kind, full=([3], [4])),
            ]
        )
        result = rig.outcomes()
        expect(result.pop(first + 2, None), f"a {kind.name.lower()} to a page that does not exist did not fail")
        expect_equal(result, {first + 1: None, first + 3: None}, "the transfers beside it")
    cells = rig.cells["full"]
    expect((cells.device[:, [1, 4]] == cells.host[:, [0, 3]]).all(), "a transfer beside a bad one moved the wrong bytes")
    with refusal(TransferError, r"transfer 12: layer 3 will not come: .*PageError", "the gate of the bad load"):
        rig.engine.wait_layer(12, 3)
    rig.engine.wait_layer(13, 11)


def closing_ends_what_is_open(rig: TransferRig) -> None:
    """`close` cancels every transfer; after it nothing moves, `poll` gives the completions, `submit` raises. Idempotent."""
    count, held = 1000, HeldCopies(rig)
    rig.engine.submit([transfer(t, (BACKUP, LOAD)[t % 2], full=([t % 8], [t % 8])) for t in range(count)])
    held.during(rig.engine.close, count // 2)
    before = {name: (cells.device.copy(), cells.host.copy()) for name, cells in rig.cells.items()}
    rig.engine.close()
    completions = rig.engine.poll()
    expect_equal(sorted(completion.ticket for completion in completions), list(range(count)), "completions after close")
    errors = {completion.error for completion in completions}
    expect(errors <= {None, "the engine was closed"}, f"the errors of what close ended: {errors}")
    expect(errors != {None} or not held.holds, "close waited for all that was open, instead of cancelling it")
    for completion in completions:
        if completion.error and completion.ticket % 2:
            with refusal(TransferError, "will not come: the engine was closed", "the gate of a load that close ended"):
                rig.engine.wait_layer(completion.ticket, 3)
        rig.engine.wait(completion.ticket)
    rig.engine.drain()
    with refusal(TransferError, "this engine was closed", "submit after close"):
        rig.engine.submit([transfer(count, LOAD)])
    for _ in range(20):
        rig.pass_time()
        expect_equal(rig.engine.poll(), [], "poll after close, when all had their completion")
    for name, (device, host) in before.items():
        same = (rig.cells[name].device == device).all() and (rig.cells[name].host == host).all()
        expect(same, f"{name}: a page was written after close")


def random_traffic(rig: TransferRig, seed: int, faults: bool) -> None:
    """Whatever comes, in whatever order: a transfer that says it is done has moved its bytes, and every page is known."""
    if not rig.moves_bytes:
        return
    if faults:
        break_copies(rig, random.Random(seed))
    Traffic(rig, random.Random(f"traffic {seed}"), faults=faults).run(TRAFFIC_STEPS)
    rig.engine.close()


class Traffic:
    """Random transfers between pages that are free, in use, or being written; what is written by whom is known throughout.

    A side is named by the kind of the transfers that write it.
    """

    def __init__(self, rig: TransferRig, rng: random.Random, *, faults: bool) -> None:
        self.rig, self.rng, self.faults = rig, rng, faults
        self.free = {(name, side): list(range(PAGES)) for name in LAYERS for side in EffectKind}
        self.values = {(name, side): self.array(name, side).copy() for name in LAYERS for side in EffectKind}
        self.reads = {(name, side): [0] * PAGES for name in LAYERS for side in EffectKind}
        self.open: dict[int, Transfer] = {}
        self.ended: list[int] = []
        self.cancelled: set[int] = set()
        self.ticket = 0

    def array(self, name: str, written_by: EffectKind) -> Ids:
        """The pages that transfers of a kind write."""
        array: Ids = self.rig.cells[name].host if written_by is BACKUP else self.rig.cells[name].device
        return array

    def run(self, steps: int) -> None:
        """So many random steps, and then all that is open ends."""
        engine, rng = self.rig.engine, self.rng
        for _ in range(steps):
            match rng.randrange(8):
                case 0 | 1 | 2:
                    self.submit()
                case 3 if self.open:
                    ticket = rng.choice(list(self.open))
                    self.cancelled.add(ticket)
                    engine.cancel(ticket)
                case 4 if self.open:
                    engine.wait(rng.choice(list(self.open)))
                case 5:
                    self.gate()
                case _:
                    self.rig.pass_time()
            self.apply_all()
        engine.drain()
        self.apply_all()
        expect_equal(
            sorted(self.ended), list(range(1, self.ticket + 1)), "the transfers that have ended after drain, each once"
        )

    def submit(self) -> None:
        """Some transfers in one call."""
        batch = []
        for _ in range(self.rng.randrange(1, 4)):
            kind = self.rng.choice(list(EffectKind))
            copies = tuple(self.copy(name, kind) for name in LAYERS)
            self.ticket += 1
            self.open[self.ticket] = Transfer(ticket=self.ticket, kind=kind, copies=copies)
            batch.append(self.open[self.ticket])
        self.rig.engine.submit(batch)

    def copy(self, name: str, kind: EffectKind) -> Copy:
        """Pages that nobody uses are to be written, from pages that nobody writes."""
        other = BACKUP if kind is LOAD else LOAD
        free = [page for page in self.free[name, kind] if not self.reads[name, kind][page]]
        count = self.rng.randrange(min(5, len(free)) + 1)
        source = self.rng.choices(self.free[name, other], k=count) if self.free[name, other] else []
        target = self.rng.sample(free, k=len(source))
        for page in target:
            self.free[name, kind].remove(page)
        for page in source:
            self.reads[name, other][page] += 1
        return Copy(component=name, source=ids(*source), target=ids(*target))

    def gate(self) -> None:
        """Wait for a layer of a load."""
        loads = [t for t in self.open if self.open[t].kind is LOAD and t not in self.cancelled]
        if loads:
            with suppress(TransferError) if self.faults else nullcontext():
                self.rig.gate(self.rng.choice(loads), self.rng.randrange(13))

    def apply_all(self) -> None:
        """Apply what has ended, and look at every page that nobody writes."""
        for completion in self.rig.engine.poll():
            self.apply(completion)
        for (name, side), pages in self.free.items():
            same = (self.array(name, side)[:, pages] == self.values[name, side][:, pages]).all()
            expect(same, f"{name}: a page on the side that a {side.name.lower()} writes is not what was copied there last")

    def apply(self, completion: Completion) -> None:
        """A completion came: its bytes are there, or its pages are the caller's again and are written at once."""
        ticket, error = completion.ticket, completion.error
        expect(ticket in self.open, f"a completion of transfer {ticket}, which is not open")
        done = self.open.pop(ticket)
        self.ended.append(ticket)
        expect(error is None or self.faults or ticket in self.cancelled, f"transfer {ticket} failed without a fault: {error}")
        earlier = [other for other in self.open if other < ticket and self.open[other].kind is done.kind]
        expect(not earlier, f"transfer {ticket} completed before {earlier}, submitted earlier in the same direction")
        other = BACKUP if done.kind is LOAD else LOAD
        for copy in done.copies:
            values = self.values[copy.component, done.kind]
            if error is None:
                values[:, copy.target] = self.values[copy.component, other][:, copy.source]
            else:
                values[:, copy.target] = [[self.rng.randrange(1 << 40) for _ in copy.target] for _ in values]
                cells = self.rig.cells[copy.component]
                cells.put(device=done.kind is LOAD, pages=copy.target, values=values[:, copy.target])
            self.free[copy.component, done.kind] += copy.target.tolist()
            for page in copy.source.tolist():
                self.reads[copy.component, other][page] -= 1


def break_copies(rig: TransferRig, rng: random.Random) -> None:
    """Let one copy in ten raise, from now on."""

    def watch(*_: object) -> None:
        if rng.random() < 0.1:
            raise OSError("a copy that fails")

    for cells in rig.cells.values():
        cells.watch = watch
