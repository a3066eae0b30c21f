"""A naive model of the tree: which page holds what, by prefix, and boundaries found by trying every length.

Nothing here knows of nodes. A page of a component is named by its *place*: the namespace, the view, and all elements of the
key up to the page's end. What the tree keeps and gives up it says itself, in pages; the model follows, objects to what
cannot be, and works out from the places alone what a match must find.

Only the validity of sharers is not told in pages: whether a draft inside full's pages counts depends on where nodes were
cut. For these the model knows what must hold (`sure`) and what can (`possible`), and a match must lie between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unified_tree import (
    Chunked,
    Component,
    Effect,
    EffectKind,
    EvictResult,
    InsertResult,
    Key,
    Match,
    Path,
    Point,
    Tier,
    Trailing,
)

DEVICE, HOST = Tier.DEVICE, Tier.HOST
Place = tuple[str, bool, tuple[int, ...]]
"""Namespace, whether bigrams, tokens up to the page's end (for bigrams one more)."""


@dataclass(frozen=True)
class Text:
    """A key as the model sees it."""

    tokens: tuple[int, ...]
    namespace: str = ""
    bigram: bool = False

    @property
    def length(self) -> int:
        return max(0, len(self.tokens) - self.bigram)

    def key(self) -> Key:
        return Key(list(self.tokens), self.namespace, bigram=self.bigram)

    def lend(self) -> tuple[Key, NDArray[np.int64]]:
        """A key that is not copied, and the caller's array, which it may use again after the call."""
        tokens = np.array(self.tokens, np.int64)
        return Key(tokens, self.namespace, bigram=self.bigram, copy=False), tokens

    def place(self, end: int) -> Place:
        return self.namespace, self.bigram, self.tokens[: end + self.bigram]

    def cut(self, length: int) -> Text:
        return Text(self.tokens[: length + self.bigram], self.namespace, self.bigram)


class Pin(NamedTuple):
    """A page that something pins."""

    tier: Tier
    component: str
    page: int


@dataclass
class Flight:
    """An open effect: where each target page will be if it arrives, and what it pins."""

    effect: Effect
    tier: Tier
    targets: dict[str, dict[int, Place]]
    sharers: dict[str, dict[Place, int]]
    pins: set[Pin] = field(default_factory=set)


class TreeModel:
    """What the tree must hold."""

    def __init__(self, components: Sequence[Component], page_size: int, page_counts: Mapping[Tier, Mapping[str, int]]) -> None:
        self.components = components
        self.page_size = page_size
        self.by_name = {c.name: c for c in components}
        self.owners = [c for c in components if c.shares is None]
        self.sharers = [c for c in components if c.shares is not None]
        self.held: dict[Tier, dict[str, dict[Place, int]]] = {
            DEVICE: {c.name: {} for c in self.owners},
            HOST: {c.name: {} for c in components},
        }
        self.sure: dict[str, set[Place]] = {c.name: set() for c in self.sharers}
        self.possible: dict[str, set[Place]] = {c.name: set() for c in self.sharers}
        self.page_counts = page_counts
        self.free = {tier: {name: list(range(page_counts[tier][name])) for name in pools} for tier, pools in self.held.items()}
        self.flights: list[Flight] = []
        self.generations = 0
        self.pins: list[set[Pin]] = []
        windows = [c for c in self.owners if c.required and c.coverage.suffix is not None]
        points = [c for c in components if c.required and isinstance(c.coverage, Point)]
        costs = [c.rebuild_tokens for c in windows]
        self.rebuild_tokens = sum(c or 0 for c in costs) if costs and not points and None not in costs else None
        self.gated = any(c.required and not isinstance(c.coverage, Path) for c in components)
        gating = [c for c in components if c.required or not c.coverage.is_exact]
        is_gated = any(c.required and not c.coverage.is_path for c in components)
        grids = [c.save_grid_tokens for c in (gating if is_gated else components)]
        self.grid = int(np.lcm.reduce([page_size, *grids]))

    # pages

    def take(self, tier: Tier, component: str, count: int) -> NDArray[np.int64]:
        """Pages off a free list."""
        free = self.free[tier][component]
        taken = free[len(free) - count :] if count else []
        del free[len(free) - count :]
        assert len(taken) == count
        return np.array(taken, np.int64)

    def give(self, tier: Tier, pages: Mapping[str, NDArray[np.int64]]) -> None:
        """Pages back to their free lists: each must be out."""
        for name, ids in pages.items():
            for page in ids.tolist():
                assert page not in self.free[tier][name], f"{name}: page {page} was freed twice"
                self.free[tier][name].append(page)

    def pinned(self) -> set[Pin]:
        """All that locks and transfers pin."""
        return set().union(*self.pins, *(flight.pins for flight in self.flights))

    def place_of(self, tier: Tier, component: str, page: int) -> Place:
        """Where a page is."""
        [place] = [place for place, held in self.held[tier][component].items() if held == page]
        return place

    # what the tree did

    def lost(self, tier: Tier, pages: Mapping[str, NDArray[np.int64]]) -> None:
        """The tree gave pages up: they were there, and nothing pinned them."""
        pinned = self.pinned()
        for name, ids in pages.items():
            for page in ids.tolist():
                assert Pin(tier, name, page) not in pinned, f"{name}: page {page} is pinned on {tier.name} and was freed"
                place = self.place_of(tier, name, page)
                del self.held[tier][name][place]
                self._forget_sharers(tier, name, place)
        self.give(tier, pages)

    def _forget_sharers(self, tier: Tier, owner: str, place: Place) -> None:
        if tier is DEVICE:
            for sharer in self.sharers:
                if sharer.shares == owner:
                    self.sure[sharer.name].discard(place)
                    self.possible[sharer.name].discard(place)

    def evicted(self, tier: Tier, result: EvictResult) -> None:
        """Pages were evicted."""
        self.lost(tier, result.freed)
        self.lost(HOST if tier is DEVICE else DEVICE, result.freed_elsewhere)

    def inserted(
        self,
        text: Text,
        pages: Mapping[str, NDArray[np.int64]],
        states: Mapping[str, Mapping[int, int]],
        without: Sequence[str],
        result: InsertResult,
    ) -> None:
        """Pages were inserted: what the tree lacked it keeps, the rest it hands back."""
        end = text.length // self.page_size * self.page_size
        given: dict[str, dict[Place, int]] = {name: {} for name in self.held[DEVICE]}
        for name, ids in pages.items():
            ends = range(end - (ids.size - 1) * self.page_size, end + 1, self.page_size)
            given[name] = {text.place(at): page for at, page in zip(ends, ids.tolist(), strict=True)}
        for name, by_length in states.items():
            given[name] = {text.place(at): page for at, page in by_length.items()}
        self._leave_windows(text, end, given, without, result)
        self.lost(DEVICE, result.replaced)
        for name, by_place in given.items():
            self._keep(text, end, name, by_place, without, result)
        self.give(DEVICE, result.duplicates)
        self._check_sharers(text, end, pages, without, result)

    def check_canonical(self, text: Text, result: InsertResult) -> None:
        """The canonical pages are what the tree has at the place of what was given, to the key's end."""
        end = text.length // self.page_size * self.page_size
        for name, ids in result.canonical.items():
            if isinstance(self.by_name[name].coverage, Point):
                continue
            held = self.held[DEVICE][name]
            ends = range(end - (ids.size - 1) * self.page_size, end + 1, self.page_size)
            assert [held.get(text.place(at), -1) for at in ends] == ids.tolist(), f"{name}: not the tree's own pages"

    def _leave_windows(
        self, text: Text, end: int, given: dict[str, dict[Place, int]], without: Sequence[str], result: InsertResult
    ) -> None:
        """Windows that the tree did not take, for the reason there can be, are the caller's, who has no use for them."""
        windows = [c.name for c in self.owners if c.coverage.suffix is not None and given[c.name]]
        if not windows or end == 0 or set(windows) <= set(result.canonical):
            return
        assert not set(windows) & set(result.canonical), "some windows were taken and some were not"
        assert any(
            held != given[sharer.shares][place] and place not in self.sure[sharer.name]
            for sharer in self.sharers
            if sharer.required and sharer.shares in windows and sharer.name not in without
            for at in self.window_ends(sharer, end)
            if (place := text.place(at)) in given[sharer.shares]
            and (held := self.held[DEVICE][sharer.shares].get(place)) is not None
        ), "windows were not taken, though nothing would have been lost"
        for name in windows:
            tree_has = set(self.held[DEVICE][name].values())
            self.give(DEVICE, {name: np.array([page for page in given[name].values() if page not in tree_has], np.int64)})
            given[name] = {}

    def _check_sharers(
        self, text: Text, end: int, pages: Mapping[str, NDArray[np.int64]], without: Sequence[str], result: InsertResult
    ) -> None:
        """Whoever gave a required sharer's window gets it back whole, in the pages that are now called canonical."""
        for sharer in self.sharers:
            owner = sharer.shares or ""
            if owner not in result.canonical or not sharer.required or sharer.name in without:
                continue
            given = zip(range(end, 0, -self.page_size), reversed(pages[owner].tolist()), strict=False)
            kept = reversed(result.canonical[owner].tolist())
            wanted = set(self.window_ends(sharer, end))
            for (at, before), after in zip(given, kept, strict=False):
                lost = at in wanted and after != before and text.place(at) not in self.possible[sharer.name]
                assert not lost, f"{sharer.name}: given at {at} in page {before}, not there in page {after}"

    def _keep(
        self, text: Text, end: int, name: str, given: dict[Place, int], without: Sequence[str], result: InsertResult
    ) -> None:
        held = self.held[DEVICE][name]
        duplicates = set(result.duplicates[name].tolist()) if name in result.duplicates else set()
        coverage = self.by_name[name].coverage
        news = {place: page for place, page in given.items() if page not in duplicates and held.get(place) != page}
        for place, page in given.items():
            wanted = place not in held
            if coverage.suffix is not None:
                wanted &= len(place[2]) - text.bigram in self.window_ends(self.by_name[name], end)
            if isinstance(coverage, Path) and not self.by_name[name].required:
                wanted &= page in news.values()  # where nodes end decides whether a path with a gap can go on
            assert (page in duplicates) == (not wanted and held.get(place) != page), f"{name}: page {page} at {place}"
        held.update(news)
        for place, page in given.items():
            if held.get(place) == page:
                self._carry(name, place, without)
        self._make_sure(text, end, name, news, without)

    def _carry(self, owner: str, place: Place, without: Sequence[str]) -> None:
        for sharer in self.sharers:
            if sharer.shares == owner and sharer.name not in without:
                self.possible[sharer.name].add(place)

    def _make_sure(self, text: Text, end: int, owner: str, news: dict[Place, int], without: Sequence[str]) -> None:
        """A sharer is valid for sure in what is new up to the very end; a path only where it is all the way."""
        run = []
        for at in range(end, 0, -self.page_size):
            if text.place(at) not in news:
                break
            run.append(at)
        for sharer in self.sharers:
            if sharer.shares != owner or sharer.name in without:
                continue
            first = run[-1] - self.page_size if run else 0
            above = (text.place(at) for at in range(self.page_size, first + 1, self.page_size))
            if not isinstance(sharer.coverage, Path) or all(place in self.sure[sharer.name] for place in above):
                self.sure[sharer.name].update(text.place(at) for at in run)

    def took_off(self, effect: Effect, targets: Mapping[str, NDArray[np.int64]], pins: set[Pin]) -> None:
        """An effect began: its sources are what the tree holds, its targets the pages given."""
        tier = HOST if effect.kind is EffectKind.BACKUP else DEVICE
        source_tier = DEVICE if tier is HOST else HOST
        flight = Flight(effect, tier, {}, {}, pins)
        for copy in effect.copies:
            owner = self.by_name[copy.component].shares or copy.component
            origin = copy.component if source_tier is HOST else owner
            places = [self.place_of(source_tier, origin, page) for page in copy.source.tolist()]
            if source_tier is DEVICE and origin != copy.component:
                assert set(places) <= self.possible[copy.component], "a sharer was backed up where it is not valid"
            pairs = dict(zip(copy.target.tolist(), places, strict=True))
            if tier is HOST or owner == copy.component:
                flight.targets[copy.component] = pairs
                assert copy.target.tolist() == targets[copy.component].tolist()
            else:
                flight.sharers[copy.component] = {place: page for page, place in pairs.items()}
        assert set(flight.targets) == set(targets)
        for other in self.flights:
            for name, pairs in flight.targets.items():
                on_their_way = set(other.targets.get(name, {}).values()) if other.tier is tier else set()
                assert on_their_way.isdisjoint(pairs.values()), f"{name}: copied twice at the same time"
        self.flights.append(flight)

    def landed(self, effect: Effect, unused: Mapping[str, NDArray[np.int64]]) -> None:
        """An effect was acknowledged: what was not handed back is the tree's."""
        flight = self._ended(effect)
        for name, pairs in flight.targets.items():
            handed_back = set(unused[name].tolist()) if name in unused else set()
            held = self.held[flight.tier][name]
            for page, place in pairs.items():
                if page not in handed_back:
                    assert place not in held, f"{name}: {place} is there twice"
                    held[place] = page
                elif isinstance(self.by_name[name].coverage, Path) and self.by_name[name].required and not effect.after:
                    assert place in held, f"{name}: {place} was not there, yet its copy was refused"
        for name, by_place in flight.sharers.items():
            owner = self.held[DEVICE][self.by_name[name].shares or ""]
            self.possible[name].update(place for place, page in by_place.items() if owner.get(place) == page)
        self.give(flight.tier, unused)

    def host_path_end(self, text: Text) -> int:
        """How far all required paths are on host without a gap."""
        length = 0
        paths = [c.name for c in self.components if c.required and isinstance(c.coverage, Path)]
        for at in range(self.page_size, text.length + 1, self.page_size):
            if any(text.place(at) not in self.held[HOST][name] for name in paths):
                break
            length = at
        return length

    def is_path(self, name: str) -> bool:
        """Whether a component is a path."""
        return isinstance(self.by_name[name].coverage, Path)

    def grafted(self, text: Text, pages: Mapping[str, NDArray[np.int64]], unused: Mapping[str, NDArray[np.int64]]) -> None:
        """Host pages came from elsewhere: what the host lacked it keeps."""
        end = text.length // self.page_size * self.page_size
        for name, ids in pages.items():
            held = self.held[HOST][name]
            handed_back = set(unused[name].tolist()) if name in unused else set()
            ends = range(end - (ids.size - 1) * self.page_size, end + 1, self.page_size)
            for at, page in zip(ends, ids.tolist(), strict=True):
                place = text.place(at)
                if page not in handed_back:
                    assert place not in held, f"{name}: {place} is there twice"
                    held[place] = page
                elif not self.is_path(name) or self.by_name[name].required:
                    assert place in held or not self.is_path(name), f"{name}: {place} was not there, yet its page was refused"
        self.give(HOST, unused)

    def invalidated(self, namespace: str | None) -> None:
        """What there was is kept under a name that no text has."""
        self.generations += 1

        def retired(place: Place) -> Place:
            if namespace is None or place[0] == namespace:
                return f"{place[0]} {self.generations}", place[1], place[2]
            return place

        for pools in self.held.values():
            for name, held in pools.items():
                pools[name] = {retired(place): page for place, page in held.items()}
        for known in (self.sure, self.possible):
            for name, places in known.items():
                known[name] = {retired(place) for place in places}
        for flight in self.flights:
            for name, pairs in flight.targets.items():
                flight.targets[name] = {page: retired(place) for page, place in pairs.items()}
            for name, by_place in flight.sharers.items():
                flight.sharers[name] = {retired(place): page for place, page in by_place.items()}

    def retired_pages(self) -> int:
        """How many pages are still held for what was invalidated."""
        return sum(" " in place[0] for pools in self.held.values() for held in pools.values() for place in held)

    def aborted(self, effect: Effect, unused: Mapping[str, NDArray[np.int64]]) -> None:
        """An effect was aborted: all its pages come back."""
        flight = self._ended(effect)
        assert {name: set(ids.tolist()) for name, ids in unused.items()} == {
            name: set(pairs) for name, pairs in flight.targets.items()
        }
        self.give(flight.tier, unused)

    def _ended(self, effect: Effect) -> Flight:
        [flight] = [flight for flight in self.flights if flight.effect is effect]
        self.flights.remove(flight)
        return flight

    # what follows from it

    def window_ends(self, component: Component, length: int) -> range:
        """The ends of the pages a prefix of this length must have of a component."""
        first = component.coverage.first_page(length, self.page_size) * self.page_size  # of a kind that is new
        match component.coverage:
            case Path():
                first = 0
            case Trailing(window_tokens=window):
                first = max(0, length - window) // self.page_size * self.page_size
            case Chunked(chunk_tokens=chunk):
                first = length // chunk * chunk // self.page_size * self.page_size
            case Point():
                first = length - self.page_size
        return range(first + self.page_size, length + 1, self.page_size)

    def has(self, component: Component, place: Place, *, host: bool, sure: bool) -> bool:
        """Whether a component is valid at a place."""
        if host and place in self.held[HOST][component.name]:
            return True
        if component.shares is None:
            return place in self.held[DEVICE][component.name]
        return place in (self.sure if sure else self.possible)[component.name]

    def covered(self, text: Text, length: int, component: Component, *, host: bool, sure: bool) -> bool:
        """Whether a component has what a prefix of this length needs."""
        ends = self.window_ends(component, length)
        return all(self.has(component, text.place(at), host=host, sure=sure) for at in ends)

    def longest(self, text: Text, limit: int, *, host: bool, sure: bool, paths_only: bool = False) -> int:
        """The longest boundary, by trying every length that the paths reach."""
        required = [c for c in self.components if c.required]
        paths = [c for c in required if isinstance(c.coverage, Path)]
        others = [] if paths_only else [c for c in required if not isinstance(c.coverage, Path)]
        reach = 0
        for at in range(self.page_size, limit + 1, self.page_size):
            if not all(self.has(c, text.place(at), host=host, sure=sure) for c in paths):
                break
            reach = at
        for length in range(reach, 0, -self.page_size):
            if all(self.covered(text, length, c, host=host, sure=sure) for c in others):
                return length
        return 0

    def check_match(self, text: Text, limit: int, match: Match) -> None:
        """A match found exactly what there is to find."""
        for sure in (False, True):
            exact = not any(c.required for c in self.sharers)
            found = [
                (match.device.length, self.longest(text, limit, host=False, sure=sure)),
                (match.reachable.length, self.longest(text, limit, host=True, sure=sure)),
                (match.path_length, self.longest(text, limit, host=True, sure=sure, paths_only=True)),
            ]
            for actual, expected in found:
                if exact:
                    assert actual == expected
                else:
                    assert actual >= expected if sure else actual <= expected
        point = match.path_length // self.grid * self.grid
        assert match.save_at == ((point,) if self.gated and point > match.device.length else ())
        self._check_replay(text, limit, match)

    def _check_replay(self, text: Text, limit: int, match: Match) -> None:
        if match.rebuild.length == match.device.length:
            assert match.rebuild == match.device
            assert match.rebuild_tokens == 0
        if self.rebuild_tokens is None or any(c.required for c in self.sharers):
            return
        length = self.longest(text, limit, host=False, sure=True, paths_only=True)
        start = (length - self.rebuild_tokens - self.page_size + 1) // self.page_size * self.page_size
        if start > match.device.length:
            assert (match.rebuild.length, match.rebuild_tokens) == (length, length - start)
        else:
            assert match.rebuild == match.device

    def check_pages(self, text: Text, length: int, component: Component, ids: Sequence[int]) -> None:
        """The device pages of a boundary are those that were put in for it."""
        held = self.held[DEVICE][component.shares or component.name]
        ends = self.window_ends(component, length) if length else range(0)
        ends = ends[: len(ids)] if isinstance(component.coverage, Path) else ends[len(ends) - len(ids) :]
        assert [held.get(text.place(at)) for at in ends] == list(ids)
        if component.shares is not None:
            assert {text.place(at) for at in ends} <= self.possible[component.name]
        elif not isinstance(component.coverage, Path) or component.required:
            assert len(ids) == self._held_run(text, length, component)

    def check_pages_ahead(self, text: Text, length: int, component: Component, ids: Sequence[int]) -> None:
        """The pages of a boundary, those of open loads included: a path's from the front on, a window's to the end."""
        if component.shares is not None or not component.required:
            return
        coming = [flight.targets.get(component.name, {}) for flight in self.flights if flight.tier is DEVICE]
        known = {place: page for pairs in coming for page, place in pairs.items()} | self.held[DEVICE][component.name]
        ends = self.window_ends(component, length) if length else range(0)
        pages = [known.get(text.place(at)) for at in ends]
        missing = [i for i, page in enumerate(pages) if page is None]
        if isinstance(component.coverage, Path):
            assert pages[: missing[0] if missing else None] == list(ids), (pages, list(ids), text, length)
        else:
            assert pages[missing[-1] + 1 if missing else 0 :] == list(ids)

    def _held_run(self, text: Text, length: int, component: Component) -> int:
        """How many pages before `length` a component has without a gap."""
        count = 0
        for at in reversed(self.window_ends(component, length) if length else range(0)):
            if text.place(at) not in self.held[DEVICE][component.name]:
                break
            count += 1
        return count

    def needs(self, text: Text, length: int, tier: Tier) -> Iterator[Pin]:
        """The pages that a lock on a boundary pins on one tier."""
        for component in self.components:
            if tier is DEVICE and component.shares is not None:
                continue
            held = self.held[tier][component.name]
            for at in self.window_ends(component, length) if length else ():
                if text.place(at) in held:
                    yield Pin(tier, component.name, held[text.place(at)])

    def check_balance(self, used: Mapping[tuple[Tier, str], int]) -> None:
        """Every page has one owner: a free list, the tree, or a transfer."""
        for tier, pools in self.held.items():
            for name, held in pools.items():
                flying = [set(f.targets.get(name, ())) for f in self.flights if f.tier is tier]
                parts = [set(self.free[tier][name]), set(held.values()), *flying]
                assert len(self.free[tier][name]) == len(parts[0])
                assert len(set(held.values())) == len(held) == used[tier, name]
                count = self.page_counts[tier][name]
                assert sum(map(len, parts)) == len(set().union(*parts)) == count, f"{name} on {tier.name}"
