"""Random transfers through an engine, with every page's content known at every moment."""

from __future__ import annotations

import random
from contextlib import nullcontext, suppress

from unified_tree.controllers.testing.cells import Ids
from unified_tree.controllers.testing.checks import expect, expect_equal
from unified_tree.controllers.testing.transfer_rig import BACKUP, LAYERS, LOAD, PAGES, TransferRig, ids
from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer
from unified_tree.nodes.effect import Copy, EffectKind
from unified_tree.terms.errors import TransferError


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
