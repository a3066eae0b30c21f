"""The tree against a naive dictionary of prefixes, under random operations with locks held and copies in flight.

A default run makes at most 1,600 operations that Hypothesis searches, 750 of long lives and 180 on unequal shapes for each set
of kinds, the same every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from bad_pages import spoil
from broken_policy import broken_policies
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kept_arrays import KeptArrays, buffers, reuse
from kinds import SETS
from new_coverage import new_kinds  # noqa: F401  a fixture
from numpy.typing import NDArray
from state_machines import search, walk
from tree_model import DEVICE, HOST, Pin, Text, TreeModel
from tree_shapes import SHAPES, SIZES

from unified_tree import (
    POLICIES,
    Boundary,
    Component,
    Effect,
    EffectError,
    Path,
    Point,
    PolicyFactory,
    Receipt,
    ReceiptError,
    StaleBoundaryError,
    Tier,
    TreeSettings,
    UnifiedTree,
    UnifiedTreeError,
)

PAGE_COUNT = 16
DEFAULTS = TreeSettings()
SEEDS = st.integers(0, 1 << 20)
"""Hypothesis chooses which operations come, and leaves out those that do not matter for a failure; a seed decides what
exactly each one does, since what Hypothesis draws by itself is mostly too small to share a prefix or fill a pool."""


def refuses(call: Callable[[], object]) -> bool:
    """Whether a call raises the library's own error."""
    try:
        call()
    except UnifiedTreeError:
        return True
    return False


@dataclass(eq=False)
class Named:
    """A boundary that something holds, under the name it had then.

    Attributes:
        retired: it was invalidated since, so that nothing finds it any more.
    """

    boundary: Boundary
    text: Text
    retired: bool = False


@dataclass(eq=False, kw_only=True)
class Hold(Named):
    """A receipt that is out, and what it pins; whole while none of its components was released.

    Attributes:
        nameable: it pins a path up to the boundary. One on host does not where the path is on device alone; what is left
            of one may be an optional path that ends above.
    """

    receipt: Receipt
    pins: set[Pin]
    nameable: bool
    whole: bool = True


class TreeMachine(RuleBasedStateMachine):
    """One tree, its model, and all the receipts and effects that are out."""

    kinds: list[Component]
    shape_name = "bushy"
    operations = 0

    @initialize(seed=SEEDS)
    def start(self, seed: int) -> None:
        rng = Random(seed)
        self.page_size = rng.choice([1, 2, 2, 2, 3])
        self.shape = SHAPES[self.shape_name](self.page_size, SIZES[self.shape_name])
        self.page_counts = self.draw_page_counts(rng)
        owners = {c.name for c in self.kinds if c.shares is None}
        device = {name: count for name, count in self.page_counts[DEVICE].items() if name in owners}
        policy: str | PolicyFactory = rng.choice(list(POLICIES))
        if rng.random() < 0.25:
            policy = broken_policies(seed, [])
        self.tree = UnifiedTree(
            self.kinds,
            self.page_size,
            policy=policy,
            page_counts=device,
            host_page_counts=self.page_counts[HOST] if rng.random() < 0.5 else None,
            settings=replace(
                DEFAULTS,
                **{
                    name: rng.choice([0, 0, 1, 1, 2, 3, 7, default] if name == "ghost_bytes" else [1, 1, 2, 3, 7, default])
                    for name, default in asdict(DEFAULTS).items()
                },
            ),
        )
        self.model = TreeModel(self.kinds, self.page_size, self.page_counts)
        self.kept = KeptArrays()
        self.texts: list[Text] = []
        self.receipts: list[Hold] = []
        self.flying: list[tuple[Effect, Named]] = []
        self.boundaries: list[tuple[Boundary, Text, int]] = []
        self.deleted_nodes = 0
        for tokens in self.shape.first:
            self.insert_text(rng, Text(tokens))

    def draw_page_counts(self, rng: Random) -> dict[Tier, dict[str, int]]:
        """Pools of a usual size, or each of its own, from one page up."""
        uneven = rng.random() < 0.4
        return {
            tier: {
                c.name: (rng.choice([1, 2, 3, 5, 8, 16]) if uneven else PAGE_COUNT) + self.shape.extra_pages for c in self.kinds
            }
            for tier in (DEVICE, HOST)
        }

    def text(self, rng: Random) -> Text:
        """A text that shares a prefix with others, cut somewhere."""
        if self.texts and rng.random() < 0.4:
            old = rng.choice(self.texts)
            return old if rng.random() < 0.5 else old.cut(rng.randrange(old.length + 1))
        namespace, bigram = rng.choice([("", False)] * 4 + [("tenant", False), ("", True)])
        return Text(self.shape.draw(rng), namespace, bigram)

    def make_room(self, tier: Tier, needs: dict[str, int]) -> bool:
        """Evict until the free lists suffice; whether they do."""
        short = {name: count - len(self.model.free[tier][name]) for name, count in needs.items()}
        result = self.tree.evict({name: count for name, count in short.items() if count > 0}, tier)
        self.deleted_nodes += result.deleted_nodes
        self.model.evicted(tier, result)
        return all(len(self.model.free[tier][name]) >= count for name, count in needs.items())

    @rule(seed=SEEDS)
    def insert(self, seed: int) -> None:
        """Insert as a scheduler would: lock what is there, evict for the rest, give the pages."""
        rng = Random(seed)
        self.insert_text(rng, self.text(rng))

    def insert_text(self, rng: Random, text: Text) -> None:
        whole = text.length // self.page_size
        receipt = self.tree.lock(self.tree.match_prefix(text.key()).device)
        self.model.pins.append(set(self.model.needs(text, receipt.boundary.length, DEVICE)))
        begin = max(0, receipt.boundary.length // self.page_size - rng.choice([0, 0, 1, 9]))
        lengths = sorted({rng.randrange(1, whole + 1), rng.choice([whole, rng.randrange(1, whole + 1)])}) if whole else []
        needs = self.insert_needs(rng, whole, begin, lengths)
        if self.make_room(DEVICE, needs):
            self.give_pages(rng, text, lengths, needs, receipt.boundary)
        receipt.release()
        self.model.pins.pop()

    def insert_needs(self, rng: Random, whole: int, begin: int, lengths: list[int]) -> dict[str, int]:
        """How many pages of each kind an insert brings: of a path from page `begin` on, of a window some, a state a length."""
        needs: dict[str, int] = {}
        for component in self.model.owners:
            match component.coverage:
                case Path():
                    needs[component.name] = whole - begin
                case Point():
                    needs[component.name] = len(lengths)
                case window:
                    pages = window.boundary_pages(self.page_size)
                    needs[component.name] = min(whole, rng.choice([pages] * 3 + [0, 1, 2, 3, 4]))
        return needs

    @rule(seed=SEEDS)
    def insert_more(self, seed: int) -> None:
        """Inserts come twice as often as all else."""
        self.insert(seed)

    def give_pages(self, rng: Random, text: Text, lengths: list[int], needs: dict[str, int], locked: Boundary) -> None:
        ids = {name: self.model.take(DEVICE, name, count) for name, count in needs.items()}
        points = [c.name for c in self.model.owners if isinstance(c.coverage, Point)]
        pages = {name: ids[name] for name in ids if name not in points}
        states = {
            name: {at * self.page_size: int(page) for at, page in zip(lengths, ids[name], strict=True)} for name in points
        }
        fixed = [c.name for c in self.model.sharers if c.required and isinstance(c.coverage, Path)]
        without = [c.name for c in self.model.sharers if c.name not in fixed and rng.random() < 0.3]
        hints = [None, self.tree.match_prefix(text.key(), touch=False).device, *(found for found, *_ in self.boundaries[-5:])]
        hints += [hold.boundary for hold in self.receipts]
        hint, priority = rng.choice(hints), rng.randrange(3)
        given = buffers(pages)
        key, tokens = text.lend()
        if locked.length and rng.random() < 0.4:
            hint, key = locked, key.tail(rng.choice([locked.length, rng.randrange(locked.length + 1)]))
        result = self.tree.insert(key, given, states, after=hint, without=without, priority=priority)
        for what, arrays in (("canonical", result.canonical), ("duplicates", result.duplicates), ("replaced", result.replaced)):
            self.kept.keep_all(what, arrays)
        reuse({**given, "tokens": tokens})
        if text.length < self.page_size:
            self.model.give(DEVICE, ids)
            return
        self.model.inserted(text, pages, states, without, result)
        self.model.check_canonical(text, result)
        end = text.length // self.page_size * self.page_size
        assert result.boundary.length == end
        self.boundaries.append((result.boundary, text.cut(end), self.deleted_nodes))
        self.texts.append(text)

    @rule(seed=SEEDS)
    def settle(self, seed: int) -> None:
        """Finish what was put off, or some of it; a tree that puts nothing off has nothing to settle."""
        limit = Random(seed).choice([None, 0, 1, 3])
        settle = getattr(self.tree, "settle", None)
        if settle is not None:
            done = settle(limit)
            assert done >= 0 and (limit is None or done <= limit)
            assert limit is not None or settle(None) == 0

    @rule(seed=SEEDS)
    def match(self, seed: int) -> None:
        """Match, and compare every length and page."""
        rng = Random(seed)
        text = self.text(rng)
        limit = rng.choice([text.length, text.length - 1, rng.randrange(text.length + 1)])
        key, tokens = text.lend()
        match = self.tree.match_prefix(key, limit=limit)
        reuse({"tokens": tokens})
        self.model.check_match(text, limit, match)
        for component in self.kinds:
            boundaries = [match.device, match.rebuild] if isinstance(component.coverage, Path) else [match.device]
            for boundary in boundaries:
                ids = self.tree.pages(boundary, component.name)
                self.kept.keep(f"pages of {component.name}", ids)
                self.model.check_pages(text, boundary.length, component, ids.tolist())
        for component in self.kinds:
            self.model.check_pages_ahead(
                text,
                match.reachable.length,
                component,
                self.tree.transfers.pages_with_loads(match.reachable, component.name).tolist(),
            )
        self.boundaries.append((match.device, text.cut(match.device.length), self.deleted_nodes))
        self.boundaries.append((match.reachable, text.cut(match.reachable.length), self.deleted_nodes))

    @precondition(lambda self: self.boundaries and len(self.receipts) < 3)
    @rule(seed=SEEDS)
    def lock(self, seed: int) -> None:
        """Lock a boundary found a while ago. It may have become stale, and must be if it is not covered any more."""
        rng = Random(seed)
        boundary, text, deleted_before = rng.choice(self.boundaries[-8:])
        tier = rng.choice([DEVICE, DEVICE, HOST])
        length, host = boundary.length, tier is HOST
        may = self.model.longest(text, length, host=host, sure=False) == length
        must = self.model.longest(text, length, host=host, sure=True) == length and deleted_before == self.deleted_nodes
        pins = set(self.model.needs(text, length, tier))
        try:
            receipt = self.tree.lock(boundary, tier)
        except StaleBoundaryError:
            assert not must
            self.boundaries.remove((boundary, text, deleted_before))
            return
        assert may
        nameable = not host or self.tree.transfers.host_path_end(text.key(), limit=length).length == length
        self.receipts.append(Hold(boundary, text, receipt=receipt, pins=pins, nameable=nameable))
        self.model.pins.append(pins)

    @precondition(lambda self: self.receipts)
    @rule(seed=SEEDS)
    def unlock(self, seed: int) -> None:
        """Release a receipt, or one component of it."""
        rng = Random(seed)
        hold = rng.choice(self.receipts)
        receipt, pins = hold.receipt, hold.pins
        names = sorted({pin.component for pin in pins})
        if len(names) > 1 and rng.random() < 0.5:
            name = rng.choice(names)
            paths = {c.name for c in self.model.components if isinstance(c.coverage, Path)}
            if name in paths and not paths.issuperset(names):
                with pytest.raises(ReceiptError, match="a path goes last"):
                    receipt.release(name)
                return
            receipt.release(name)
            hold.whole = False
            pins -= {pin for pin in pins if pin.component == name}
            hold.nameable &= self.pins_end(hold, paths)
            with pytest.raises(ReceiptError):
                receipt.release(name)
            return
        self.tree.unlock(receipt)
        with pytest.raises(ReceiptError):
            receipt.release()
        self.receipts.remove(hold)
        self.model.pins = [other for other in self.model.pins if other is not pins]

    def pins_end(self, hold: Hold, paths: set[str]) -> bool:
        """Whether a path is still pinned up to the boundary."""
        tier, place = hold.receipt.tier, hold.text.place(hold.boundary.length)
        held = self.model.held[tier]
        return any(name in held and Pin(tier, name, held[name].get(place, -1)) in hold.pins for name in paths)

    @precondition(lambda self: self.receipts and self.boundaries)
    @rule(seed=SEEDS)
    def move(self, seed: int) -> None:
        """A receipt moves to another boundary, which may have become stale; then it stays where it was."""
        rng = Random(seed)
        hold = rng.choice(self.receipts)
        if hold.receipt.tier is HOST:
            with pytest.raises(ReceiptError):
                hold.receipt.move(hold.boundary)
        if hold.receipt.tier is HOST or not hold.whole:
            return
        boundary, text, deleted_before = rng.choice(self.boundaries[-8:])
        may = self.model.longest(text, boundary.length, host=False, sure=False) == boundary.length
        must = self.model.longest(text, boundary.length, host=False, sure=True) == boundary.length
        pins = set(self.model.needs(text, boundary.length, DEVICE))
        try:
            hold.receipt.move(boundary)
        except StaleBoundaryError:
            assert not (must and deleted_before == self.deleted_nodes)
            self.boundaries.remove((boundary, text, deleted_before))
            return
        assert may
        self.model.pins = [pins if other is hold.pins else other for other in self.model.pins]
        hold.boundary, hold.text, hold.pins, hold.nameable, hold.retired = boundary, text, pins, True, False

    @precondition(lambda self: self.receipts)
    @rule(seed=SEEDS)
    def name_again(self, seed: int) -> None:
        """What is held can be locked once more by the name it was locked by, whatever became of the nodes since."""
        hold = Random(seed).choice(self.receipts)
        if hold.retired or not hold.nameable:
            return
        self.tree.transfers.backup_needs(hold.boundary)
        if hold.whole and hold.receipt.tier is DEVICE:
            self.tree.lock(hold.boundary).release()
            self.tree.lock(hold.receipt.boundary).release()

    def check_names(self) -> None:
        """What is locked, backed up or loaded has the pages and the tokens of the boundary that was named. A name that
        nothing keeps valid may be stale, but names nothing else."""
        for hold in self.receipts:
            if not hold.retired and (hold.nameable or not refuses(partial(self.tree.key_of, hold.boundary))):
                self.check_name(hold, sure=hold.whole and hold.receipt.tier is DEVICE)
        self.flying = [(effect, named) for effect, named in self.flying if effect in {f.effect for f in self.model.flights}]
        for _, named in self.flying:
            if not named.retired:
                self.check_name(named, sure=False)
                self.tree.transfers.load_needs(named.boundary)

    def check_name(self, named: Named, *, sure: bool) -> None:
        boundary, text = named.boundary, named.text
        assert self.tree.key_of(boundary).data == (text.key().data if boundary.length else b"")
        for component in self.kinds:
            ids = self.tree.pages(boundary, component.name)
            self.tree.pages(boundary, component.name, HOST)
            if sure:
                self.model.check_pages(text, boundary.length, component, ids.tolist())

    @rule(seed=SEEDS)
    def evict(self, seed: int) -> None:
        """Evict: windows and states as many as are asked for; so of a path where no lock and no copy is concerned."""
        rng = Random(seed)
        tier = rng.choice([DEVICE, DEVICE, HOST])
        component = rng.choice(self.kinds if tier is HOST else self.model.owners)
        count = rng.randrange(1, 10)
        free_to_go = self.tree.pool(component.name, tier).evictable_pages
        result = self.tree.evict({component.name: count}, tier, cut_pages=rng.choice((None, None, 1, 3)))
        freed = result.freed[component.name].size if component.name in result.freed else 0
        if not isinstance(component.coverage, Path) or not (self.model.pinned() or any(self.model.held[HOST].values())):
            assert freed >= min(count, free_to_go)
        self.deleted_nodes += result.deleted_nodes
        self.model.evicted(tier, result)

    @precondition(lambda self: self.texts and len(self.model.flights) < 3)
    @rule(seed=SEEDS)
    def copy(self, seed: int) -> None:
        """Begin a backup or a load of what a text reaches."""
        rng = Random(seed)
        tree, model = self.tree, self.model
        for text in rng.choices(self.texts, k=6):
            text = text.cut(rng.choice([text.length, rng.randrange(text.length + 1)]))
            tier = rng.choice([HOST, DEVICE])
            match = tree.match_prefix(text.key())
            boundary = rng.choice([match.device, match.reachable]) if tier is HOST else match.reachable
            count_needs = tree.transfers.backup_needs if tier is HOST else tree.transfers.load_needs
            if count_needs(boundary):
                break
        guards = [tree.lock(boundary, HOST), tree.transfers.lock_present(boundary)]
        pins = {pin for at in (HOST, DEVICE) for pin in model.needs(text, boundary.length, at)}
        model.pins.append(pins)
        self.make_room(tier, count_needs(boundary))
        for guard in guards:
            guard.release()
        model.pins.pop()
        needs = count_needs(boundary)
        if any(count > len(model.free[tier][name]) for name, count in needs.items()):
            return
        taken: dict[str, NDArray[np.int64]] = {}
        given: dict[str, NDArray[np.int64]] = {}

        def supply(asked: dict[str, int]) -> dict[str, NDArray[np.int64]]:
            assert asked == needs
            taken.update({name: model.take(tier, name, count) for name, count in asked.items()})
            if rng.random() < 0.1:
                model.give(tier, taken)
                raise RecursionError
            given.update(buffers(taken))
            return given

        try:
            effect = (tree.transfers.backup if tier is HOST else tree.transfers.load)(boundary, supply)
        except RecursionError:
            return
        for part in effect.copies:
            self.kept.keep(f"source of {part.component}", part.source)
            self.kept.keep(f"target of {part.component}", part.target)
        reuse(given)
        self.flying.append((effect, Named(boundary, text.cut(boundary.length))))
        model.took_off(effect, taken, pins)

    @precondition(lambda self: self.model.flights)
    @rule(seed=SEEDS)
    def end(self, seed: int) -> None:
        """Acknowledge or abort an effect, once."""
        rng = Random(seed)
        effect = rng.choice(self.model.flights).effect
        flying = {flight.effect for flight in self.model.flights}
        if not flying.isdisjoint(effect.after):
            with pytest.raises(EffectError, match="stands on one"):
                self.tree.transfers.acknowledge(effect)
        if rng.random() < 0.8 and flying.isdisjoint(effect.after):
            self.model.landed(effect, self.tree.transfers.acknowledge(effect))
        else:
            self.model.aborted(effect, self.tree.transfers.abort(effect))
        with pytest.raises(EffectError):
            self.tree.transfers.acknowledge(effect)

    @rule(seed=SEEDS)
    def graft(self, seed: int) -> None:
        """Host pages come from elsewhere: some of a path's that the host has, windows and states or not."""
        rng = Random(seed)
        text = self.text(rng)
        whole = text.length // self.page_size
        reach = self.tree.transfers.host_path_end(text.key())
        assert reach.length == self.model.host_path_end(text)
        if whole == 0:
            return
        assert self.tree.key_of(reach).data == text.cut(reach.length).key().data or not reach.length
        begin = max(0, reach.length // self.page_size - rng.choice([0, 0, 1, 9]))
        needs: dict[str, int] = {}
        for component in self.kinds:
            match component.coverage:
                case Path():
                    needs[component.name] = whole - begin if component.required else rng.choice([0, whole - begin])
                case Point():
                    needs[component.name] = rng.choice([0, 1, 1])
                case window:
                    needed = window.pages_needed(whole * self.page_size, self.page_size)
                    needs[component.name] = rng.choice([needed] * 3 + [0, min(1, needed)])
        receipt = self.tree.lock(reach, HOST, [c.name for c in self.kinds if isinstance(c.coverage, Path)])
        self.model.pins.append({pin for pin in self.model.needs(text, reach.length, HOST) if self.model.is_path(pin.component)})
        if self.make_room(HOST, needs):
            ids = {name: self.model.take(HOST, name, count) for name, count in needs.items() if count}
            given = buffers(ids)
            key, tokens = text.lend()
            result = self.tree.transfers.graft(key, given)
            self.kept.keep_all("unused", result.unused)
            reuse({**given, "tokens": tokens})
            assert result.boundary.length == whole * self.page_size
            self.model.grafted(text, ids, result.unused)
        receipt.release()
        self.model.pins.pop()

    @rule(seed=SEEDS)
    def misuse(self, seed: int) -> None:
        """Pages that are none are refused, and nothing has changed."""
        rng = Random(seed)
        text = self.text(rng)
        whole = text.length // self.page_size
        if whole == 0:
            return
        tier = rng.choice([DEVICE, DEVICE, HOST])
        if tier is DEVICE:
            reach = self.tree.match_prefix(text.key(), touch=False).device.length
            begin = max(0, reach // self.page_size - rng.choice([0, 0, 1, 9]))
            needs = self.insert_needs(rng, whole, begin, [rng.randrange(1, whole + 1)])
        else:
            begin = max(0, self.tree.transfers.host_path_end(text.key()).length // self.page_size - rng.choice([0, 0, 1, 9]))
            needs = {c.name: whole - begin if self.model.is_path(c.name) else 1 for c in self.kinds}
        pages = self.spoilt_pages(rng, text, tier, needs)
        if pages is None:
            return
        points = {c.name for c in self.model.owners if isinstance(c.coverage, Point)}
        states = {
            name: dict.fromkeys([whole * self.page_size], ids.tolist()[0]) for name, ids in pages.items() if name in points
        }
        paged = {name: ids for name, ids in pages.items() if name not in points}
        refused = (
            partial(self.tree.insert, text.key(), paged, states)
            if tier is DEVICE
            else partial(self.tree.transfers.graft, text.key(), pages)
        )
        before = self.tree.dump()
        assert refuses(refused), f"{tier.name} took {pages} for {text}"
        assert self.tree.dump() == before

    def spoilt_pages(self, rng: Random, text: Text, tier: Tier, needs: dict[str, int]) -> dict[str, NDArray[Any]] | None:
        """Free pages, of which one component's cannot be what they say; None where there are too few."""
        free = self.model.free[tier]
        names = [name for name, count in needs.items() if count]
        if not names or any(count > len(free[name]) for name, count in needs.items()):
            return None
        pages = {name: np.array(free[name][len(free[name]) - count :], np.int64) for name, count in needs.items()}
        name = rng.choice(names)
        own = {text.place(at) for at in range(self.page_size, text.length + 1, self.page_size)}
        taken = [page for place, page in self.model.held[tier][name].items() if place not in own]
        bound = self.page_counts[DEVICE][name] if tier is DEVICE else None
        return {**pages, name: spoil(rng, pages[name], taken, bound)}

    @precondition(lambda self: self.texts)
    @rule(seed=SEEDS)
    def misuse_copy(self, seed: int) -> None:
        """A copy whose target pages are none, or are too few or too many, is not begun."""
        rng = Random(seed)
        text = rng.choice(self.texts)
        tier = rng.choice([HOST, DEVICE])
        boundary = self.tree.match_prefix(text.key(), touch=False).reachable
        needs = (self.tree.transfers.backup_needs if tier is HOST else self.tree.transfers.load_needs)(boundary)
        pages = self.spoilt_pages(rng, text, tier, needs)
        if pages is None:
            return
        if rng.random() < 0.4:
            free = self.model.free[tier]
            counts = {name: count + rng.choice([-1, 1]) for name, count in needs.items()}
            pages = {name: np.array(free[name][:count], np.int64) for name, count in counts.items()}
            if all(ids.size == needs[name] for name, ids in pages.items()):
                return
        given: Any = rng.choice([pages, lambda _: pages])
        copy = self.tree.transfers.backup if tier is HOST else self.tree.transfers.load
        assert refuses(partial(copy, boundary, given)), f"{tier.name} took {pages} where it needs {needs}"

    @rule(seed=SEEDS)
    def invalidate(self, seed: int) -> None:
        """Seldom: all of a namespace, or everything, is forgotten, maybe twice in a row; some of it is taken apart."""
        rng = Random(seed)
        if rng.random() < 0.2:
            namespace = rng.choice([None, "", "tenant"])
            self.forget(namespace)
            if rng.random() < 0.6:
                self.reclaim(rng.randrange(3))
                if rng.random() < 0.5 and self.texts:
                    self.insert_text(rng, self.text(rng))
                self.forget(rng.choice([namespace, namespace, None, "tenant"]))
        self.reclaim(rng.randrange(4))

    def forget(self, namespace: str | None) -> None:
        self.tree.invalidate(namespace)
        self.model.invalidated(namespace)
        for named in (*self.receipts, *(named for _, named in self.flying)):
            named.retired |= namespace in {None, named.text.namespace}
        self.deleted_nodes += 1  # a boundary found before may be stale, though what it named is there again

    def reclaim(self, limit: int) -> int:
        """Take apart at most so many nodes; how many that were."""
        result = self.tree.reclaim(limit)
        assert result.deleted_nodes <= limit
        self.deleted_nodes += result.deleted_nodes
        self.model.evicted(DEVICE, result)
        return result.deleted_nodes

    @invariant()
    def sound(self) -> None:
        """No law is broken, the books agree, and no page has two owners or none."""
        type(self).operations += 1
        self.kept.check()
        self.check_names()
        assert (broken := self.tree.check()) == [], f"{broken}\n{self.tree.dump()}"
        used = {
            (tier, name): self.tree.pool(name, tier).used_pages for tier, pools in self.model.held.items() for name in pools
        }
        self.model.check_balance(used)

    def may(self, name: str) -> bool:
        """Whether an operation of a walk can come now."""
        match name:
            case "unlock" | "name_again":
                return bool(self.receipts)
            case "move":
                return bool(self.receipts and self.boundaries)
            case "end":
                return bool(self.model.flights)
            case "copy":
                return bool(self.texts) and len(self.model.flights) < 3
            case "misuse_copy":
                return bool(self.texts)
            case "lock":
                return bool(self.boundaries) and len(self.receipts) < 3
        return True

    def teardown(self) -> None:
        """Everything released, every page comes home."""
        if not hasattr(self, "tree"):
            return
        for flight in list(self.model.flights):
            self.model.aborted(flight.effect, self.tree.transfers.abort(flight.effect))
        for hold in self.receipts:
            if not hold.receipt.is_released:
                hold.receipt.release()
        self.model.pins.clear()
        for _ in range(2 * self.tree.node_count + 8):  # some calls may only look around
            self.reclaim(3)
        assert self.model.retired_pages() == 0, f"reclaim does not reach all that was invalidated:\n{self.tree.dump()}"
        for tier in (HOST, DEVICE, HOST):
            needs = {name: self.page_counts[tier][name] for name in self.model.held[tier]}
            self.model.evicted(tier, self.tree.evict(needs, tier))
        assert self.tree.node_count == 0, self.tree.dump()
        for tier, pools in self.model.free.items():
            assert {name: len(free) for name, free in pools.items()} == {name: self.page_counts[tier][name] for name in pools}


OPERATIONS = (
    "insert",
    "insert",
    "match",
    "match",
    "lock",
    "unlock",
    "move",
    "name_again",
    "evict",
    "copy",
    "copy",
    "end",
    "graft",
    "invalidate",
    "settle",
    "misuse",
    "misuse_copy",
)


@pytest.mark.parametrize("kinds", SETS)
def test_the_tree_is_its_model(kinds: str, record_property: Any) -> None:
    record_property("operations", search(TreeMachine, kinds, max_examples=40, stateful_step_count=40, derandomize=True))


@pytest.mark.halved
@pytest.mark.parametrize("kinds", SETS)
def test_the_tree_is_its_model_through_a_long_life(kinds: str, record_property: Any) -> None:
    record_property("operations", sum(walk(TreeMachine, kinds, f"{kinds} {i}", 250, OPERATIONS) for i in range(3)))


@pytest.mark.halved
@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "bushy"])
@pytest.mark.parametrize("kinds", SETS)
def test_the_tree_is_its_model_in_unequal_shapes(kinds: str, shape: str, record_property: Any) -> None:
    record_property(
        "operations", walk(TreeMachine, kinds, f"{kinds} {shape}", 60, OPERATIONS, shape_name=shape, looks_every=10)
    )


def test_a_coverage_that_is_new_needs_no_change_elsewhere(new_kinds: str, record_property: Any) -> None:  # noqa: F811
    record_property("operations", sum(walk(TreeMachine, new_kinds, f"new {new_kinds} {i}", 200, OPERATIONS) for i in range(3)))


@pytest.mark.deep
@pytest.mark.parametrize("kinds", SETS)
def test_the_tree_is_its_model_for_long(kinds: str, record_property: Any) -> None:
    operations = search(TreeMachine, kinds, max_examples=200, stateful_step_count=100)
    operations += sum(walk(TreeMachine, kinds, f"deep {kinds} {i}", 1000, OPERATIONS) for i in range(20))
    operations += sum(
        walk(TreeMachine, kinds, f"deep {kinds} {shape}", 1000, OPERATIONS, shape_name=shape, looks_every=10)
        for shape in SHAPES
    )
    record_property("operations", operations)
    print(f"{kinds}: {operations:,} operations")
