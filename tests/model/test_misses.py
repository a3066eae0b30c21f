"""The causes of misses against a model that remembers everything: each prefix that was ever in the tree, each length at which a
prompt could ever be resumed, and each page that a component ever had. A boundary whose parts were never there at the same time
may count as evicted or as never saved.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from kinds import SETS
from numpy.typing import NDArray

from unified_tree import Boundary, Component, Key, MissCause, TreeSettings, UnifiedTree

PAGE_SIZE = 2
Prefix = tuple[int, ...]


class Remembering:
    """A tree, and what it ever had.

    Attributes:
        seen: every prefix of whole pages that was in the tree; `once`: those at which a prompt could be resumed.
        had: for each component the prefixes whose last page it ever had.
    """

    def __init__(self, components: list[Component], seed: int, settings: TreeSettings) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.tree = UnifiedTree(components, PAGE_SIZE, settings=settings, time_s=lambda: self.now)
        self.owners = [component for component in components if component.shares is None]
        self.next_page = 0
        self.seen: set[Prefix] = set()
        self.once: set[Prefix] = set()
        self.had: dict[str, set[Prefix]] = {component.name: set() for component in components}
        self.texts: list[Prefix] = []

    def step(self) -> None:
        self.now += 1
        chance = self.random.random()
        if chance < 0.55:
            self.insert(self.some_text())
        elif chance < 0.9:
            owner = self.random.choice(self.owners)
            used = self.tree.pool(owner.name).used_pages
            self.tree.evict({owner.name: self.random.randint(1, max(1, used // self.random.choice((1, 4, 8))))})
        else:
            self.tree.match_prefix(Key(self.some_text()))
        self.look()

    def some_text(self) -> Prefix:
        """A text, mostly one that shares a prefix with one before."""
        text: Prefix = ()
        if self.texts and self.random.random() < 0.9:
            before = self.random.choice(self.texts)
            text = before[: self.random.randint(0, len(before))]
        more = tuple(self.random.randint(1, 3) for _ in range(self.random.choice((0, 1, 2, 5, 12))))
        text = (text + more)[:40]
        self.texts.append(text)
        return text

    def insert(self, text: Prefix) -> None:
        key = Key(text)
        end = len(text) // PAGE_SIZE * PAGE_SIZE
        if not end:
            return
        found = self.tree.match_prefix(key, touch=False)
        begin = min(found.path_length, end)
        pages: dict[str, NDArray[np.int64]] = {}
        states = {}
        for component in self.owners:
            if component.coverage.is_path:
                have = self.path_end(key.prefix(end), component)
                pages[component.name] = self.pages((end - min(have, begin)) // PAGE_SIZE)
            elif component.coverage.is_exact:
                if self.random.random() < 0.5:
                    states[component.name] = {end: int(self.pages(1)[0])}
            elif self.random.random() < 0.7:
                wanted = component.coverage.pages_needed(end, PAGE_SIZE)
                pages[component.name] = self.pages(wanted)
        self.tree.insert(key, pages, states)

    def path_end(self, key: Key, component: Component) -> int:
        boundary = self.tree.match_prefix(key, touch=False).known
        return self.tree.pages(boundary, component.name).size * PAGE_SIZE if boundary.length else 0

    def pages(self, count: int) -> NDArray[np.int64]:
        first, self.next_page = self.next_page, self.next_page + count
        return np.arange(first, first + count, dtype=np.int64)

    def look(self) -> None:
        """Note what is in the tree now."""
        for node in self.tree.state.nodes:
            text = tuple(np.frombuffer(self.tree.key_of(Boundary(node.id, node.end)).data, np.int64).tolist())
            for value in filter(None, node.device):
                for back in range(value.page_count):
                    self.had[self.tree.components[value.component].name].add(text[: node.end - back * PAGE_SIZE])
        for text in self.texts[-6:] + self.random.sample(self.texts, min(8, len(self.texts))):
            found = self.tree.match_prefix(Key(text), touch=False)
            for end in range(PAGE_SIZE, found.known.length + 1, PAGE_SIZE):
                self.seen.add(text[:end])
                if self.tree.match_prefix(Key(text[:end]), touch=False).reachable.length == end:
                    self.once.add(text[:end])

    def check(self, text: Prefix) -> None:
        """The causes of a prompt are those that the model knows."""
        if not text:
            return
        count = len(text)
        found = self.tree.match_prefix(Key(text), limit=count - 1, touch=False)
        misses = self.tree.misses(Key(text), found)
        assert [misses[0].begin, *(miss.end for miss in misses)] == [found.device.length, *(m.begin for m in misses[1:]), count]
        assert all(miss.begin < miss.end for miss in misses), misses
        causes = [miss.cause for miss in misses for _ in range(miss.begin, miss.end)]
        for cause, allowed in zip(causes, self.expected(text, found.device.length), strict=True):
            assert cause in allowed, (text, misses)

    def check_claims(self, text: Prefix) -> bool:
        """No token is called evicted, seen or saved that was not, though the tree forgets; whether one is unknown."""
        if not text:
            return False
        count = len(text)
        found = self.tree.match_prefix(Key(text), limit=count - 1, touch=False)
        misses = self.tree.misses(Key(text), found)
        assert [found.device.length, *(miss.end for miss in misses)] == [*(miss.begin for miss in misses), count]
        causes = [miss.cause for miss in misses for _ in range(miss.begin, miss.end)]
        for token, (cause, allowed) in enumerate(zip(causes, self.expected(text, found.device.length), strict=True)):
            end = found.device.length + token // PAGE_SIZE * PAGE_SIZE + PAGE_SIZE
            if cause in (MissCause.EVICTED, MissCause.NEVER_SAVED):
                assert text[:end] in self.seen, (text, misses)
            if MissCause.NEVER_SEEN in allowed:
                assert cause in (MissCause.NEVER_SEEN, MissCause.UNKNOWN, MissCause.DIVERGED), (text, misses)
        return MissCause.UNKNOWN in causes

    def had_all(self, prefix: Prefix) -> bool:
        """Whether a prompt could be resumed here if nothing had ever gone."""
        for component in self.tree.components:
            pages = component.coverage.pages_needed(len(prefix), PAGE_SIZE)
            ends = [len(prefix) - back * PAGE_SIZE for back in range(pages)]
            if component.required and any(prefix[:end] not in self.had[component.name] for end in ends):
                return False
        return True

    def expected(self, text: Prefix, at: int) -> list[set[MissCause]]:
        """The causes that each token from `at` on may have."""
        count, grid = len(text), self.tree.state.layout.save_grid_tokens
        whole = (count - 1) // PAGE_SIZE * PAGE_SIZE
        ends = range(PAGE_SIZE, whole + 1, PAGE_SIZE)
        known = max((end for end in ends if text[:end] in self.seen), default=0)
        once = max((end for end in ends if text[:end] in self.once), default=0)
        perhaps = max((end for end in ends if self.had_all(text[:end])), default=0)
        is_exact = bool(self.tree.state.layout.required_points)
        causes: list[set[MissCause]] = []
        for token in range(at, count):
            if token == count - 1:
                cause = MissCause.LAST_TOKEN
            elif token >= whole:
                cause = MissCause.PAGE_REMAINDER
            elif token < once:
                cause = MissCause.EVICTED
            elif token < known:
                cause = MissCause.SAVE_GRID if is_exact and token >= known // grid * grid else MissCause.NEVER_SAVED
            elif is_exact and token >= (count - 1) // grid * grid:
                cause = MissCause.SAVE_GRID
            else:
                others = any(len(prefix) > known and prefix[:known] == text[:known] for prefix in self.seen)
                cause = MissCause.DIVERGED if known and others else MissCause.NEVER_SEEN
            causes.append({cause, MissCause.EVICTED} if once <= token < perhaps else {cause})
        return causes


@pytest.mark.parametrize("kinds", SETS)
def test_each_token_has_the_cause_that_a_model_names_that_forgets_nothing(kinds: str) -> None:
    for seed in range(12):
        world = Remembering(SETS[kinds], seed, TreeSettings())
        for _ in range(60):
            world.step()
            world.check(world.some_text())
        assert not world.tree.check()


@pytest.mark.parametrize("ghost_bytes", [1, 2_000, 4_000])
@pytest.mark.parametrize("kinds", ["full", "two windows", "window and mamba", "everything"])
def test_a_small_memory_says_less_and_nothing_wrong(kinds: str, ghost_bytes: int) -> None:
    settings = TreeSettings(ghost_bytes=ghost_bytes, faded_ghosts=20)
    unknown = 0
    for seed in range(6):
        world = Remembering(SETS[kinds], seed, settings)
        for _ in range(60):
            world.step()
            text = world.some_text()
            unknown += world.check_claims(text)
        ghosts = world.tree.state.ghosts
        assert ghosts is not None
        assert ghosts.size_bytes <= ghost_bytes
        assert ghosts.faded.count <= 20
    assert unknown
