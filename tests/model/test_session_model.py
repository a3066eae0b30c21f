"""Random sessions against a naive model: who has used which prefix, and who has ended.

Laws: a node that strangers share is claimed by nobody. What only ended sessions have used goes first. What an open session used
last does not. Nothing that a session or a hint does lets a request fail that would have been admitted without it.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from unified_tree import Component, Key, OutOfPagesError, Path, Point, Trailing, TreeSettings
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.host import HostTier, WritePolicy
from unified_tree.controllers.transfer_engines import NullEngine
from unified_tree.nodes.node import Node
from unified_tree.nodes.order import LEFT

PAGE = 2
KINDS = {
    "path": [Component(name="full", coverage=Path())],
    "states": [Component(name="full", coverage=Path()), Component(name="mamba", coverage=Point(), save_grid_tokens=2)],
    "windows": [Component(name="full", coverage=Path()), Component(name="swa", coverage=Trailing(4))],
}


class Life:
    """A cache, and for each prefix of whole pages that it has the sessions that used it, None for a request without one.

    Attributes:
        parents: of the open sessions, by name; a session that opens again after its end has a new number.
        last: what each open session published last.
    """

    def __init__(self, kind: str, rng: Random, pages: int, *, has_host: bool, policy: str = "density") -> None:
        self.rng = rng
        counts = {c.name: pages if c.coverage.is_path else max(3, pages // 2) for c in KINDS[kind]}
        host = None
        if has_host:
            host = HostTier(
                page_counts={name: rng.choice([2, count, 3 * count]) for name, count in counts.items()},
                engine=NullEngine(),
                write_policy=rng.choice(list(WritePolicy)),
                exclusive=rng.random() < 0.5,
                selective_hits=1,
            )
        self.cache = PrefixCache(
            KINDS[kind],
            PAGE,
            counts,
            host=host,
            policy=policy,
            settings=TreeSettings(session_texts=rng.choice([1, 2, 8])),
            max_sessions=5000,
        )
        self.users: dict[bytes, set[int | None]] = {}
        self.number: dict[str, int] = {}
        self.trees: list[int] = []
        self.parents: list[int | None] = []
        self.is_open: list[bool] = []
        self.last: dict[int, bytes] = {}

    def opened(self, name: str, parent: str | None = None) -> int:
        if name not in self.number:
            above = None if parent is None else self.opened(parent)
            number = self.number[name] = len(self.parents)
            self.parents.append(above)
            self.trees.append(number if above is None else self.trees[above])
            self.is_open.append(True)
        return self.number[name]

    def end(self, name: str) -> None:
        self.cache.end_session(name)
        ended = {self.number[name]} if name in self.number else set()
        for number, above in enumerate(self.parents):  # a part is younger
            if above in ended and self.is_open[number]:
                ended.add(number)
        for number in ended:
            self.is_open[number] = False
            self.last.pop(number, None)
        self.number = {each: number for each, number in self.number.items() if number not in ended}

    def forget(self) -> None:
        """What the tree has no more, nobody has used."""
        there = {text for _, text in self.texts()}
        kept = {text[: at + PAGE] for text in there for at in range(0, len(text), PAGE)}
        self.users = {text: users for text, users in self.users.items() if text in kept}

    def texts(self) -> list[tuple[Node, bytes]]:
        """The nodes, each with its whole text."""
        found = []
        for node in self.cache.tree.state.nodes:
            parts, at = [], node
            while at.parent is not None:
                parts.append(np.frombuffer(at.edge, f"i{len(at.edge) // (at.end - at.start)}").astype(np.uint8).tobytes())
                at = at.parent
            found.append((node, b"".join(reversed(parts))))
        return found

    def serve(self, text: bytes, session: str | None, answer: int) -> bool:
        """A request with an answer of so many tokens; whether it was admitted."""
        cache, tokens = self.cache, np.frombuffer(text, np.uint8).astype(np.int64)
        said = np.array([self.rng.randrange(5) for _ in range(answer)], np.int64)
        number = None if session is None else self.opened(session)
        whole = np.concatenate((tokens, said))
        try:
            with cache.acquire(Key(tokens), session=session) as lease:
                if session is None:
                    self.note(text[: lease.cached_tokens], None)
                cache.allocate(lease, len(tokens))
                self.forget()
                cache.commit(lease, len(tokens), states=dict(lease.save_pages))
                self.note(text[: len(text) // PAGE * PAGE], number)
                if answer and self.rng.random() < 0.8:
                    cache.allocate(lease, len(whole))
                    self.forget()
                    cache.commit(lease, whole, states={k: v for k, v in lease.save_pages.items() if k <= len(whole)})
                    self.note(whole[: len(whole) // PAGE * PAGE].astype(np.uint8).tobytes(), number)
                if self.rng.random() < 0.1 and session is not None:
                    self.end(session)  # while it runs
        except OutOfPagesError:
            return False
        finally:
            cache.poll()
            self.forget()
        return True

    def note(self, used: bytes, number: int | None) -> None:
        for at in range(PAGE, len(used) + 1, PAGE):
            self.users.setdefault(used[:at], set()).add(number)
        if number is not None and self.is_open[number]:
            self.last[number] = used

    def above(self, number: int) -> list[int]:
        at: int | None = number
        found = []
        while at is not None:
            found.append(at)
            at = self.parents[at]
        return found

    def check(self) -> int:
        """Every law; how many nodes only ended sessions had used."""
        assert not self.cache.tree.check(), self.cache.tree.check()[:3]
        left = 0
        for node, text in self.texts():
            users = self.users.get(text)
            assert users, "each node was used"
            trees = {None if user is None else self.trees[user] for user in users}
            assert (node.claim is not None) == (len(trees) == 1 and None not in trees), (node, users)
            known = [user for user in users if user is not None]
            if node.claim is None:
                continue
            common = set.intersection(*[set(self.above(user)) for user in known])
            if not any(self.is_open[user] for user in (*known, max(common))):
                left += 1
                assert not node.claim.live
            if any(self.is_open[user] and self.last.get(user, b"").startswith(text) for user in known):
                assert node.claim.live
            for value in (*node.device, *node.host):
                if value is not None and value.is_placed and not (value.stranded or value.spare or value.holds):
                    assert (value.urgency == LEFT) == (value.demoted or not node.claim.live)
        return left


def prompt(rng: Random, life: Life) -> bytes:
    """A text of few tokens, often one that goes on from another."""
    known = list(life.users)
    base = rng.choice(known) if known and rng.random() < 0.7 else b""
    return base[: rng.choice([len(base), len(base), rng.randrange(len(base) + 1)])] + bytes(
        rng.randrange(4) for _ in range(rng.randint(1, 7))
    )


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("has_host", [False, True], ids=["device", "host"])
@pytest.mark.parametrize("kind", KINDS)
def test_random_sessions_agree_with_a_naive_model(kind: str, has_host: bool, seed: int) -> None:
    rng = Random(seed)
    life = Life(kind, rng, rng.choice([6, 12, 40, 400]), has_host=has_host, policy=rng.choice(["density", "lru", "cost"]))
    names = [f"s{i}" for i in range(rng.choice([1, 3, 6]))]
    for _ in range(60):
        name = rng.choice(names)
        dice = rng.random()
        if dice < 0.15:
            life.end(name)
        elif dice < 0.25:
            parent = rng.choice(names)
            if name not in life.number and parent != name:
                life.opened(name, parent)
                life.cache.open_session(name, parent)
        else:
            life.serve(prompt(rng, life), rng.choice([name, name, None]), rng.choice([0, 0, 3, 6]))
        life.check()
    life.cache.drain()
    for name in names:
        life.end(name)
    life.check()


def test_thousands_of_sessions_leave_only_what_others_share() -> None:
    rng = Random(7)
    life = Life("states", rng, 60_000, has_host=False)
    life.check = lambda: 0  # type: ignore[method-assign]
    life.forget = lambda: None  # type: ignore[method-assign]
    shared = bytes(rng.randrange(4) for _ in range(8))
    for i in range(3000):
        text = (shared if i % 3 == 0 else b"") + np.array([i % 200, 50 + i // 200, 1, 2, 3, 4], np.uint8).tobytes()
        life.serve(text, f"s{i}", 0)
    for i in range(0, 3000, 2):
        life.end(f"s{i}")
    del life.check
    assert life.check() > 1400
    assert len(life.cache.sessions) == len(life.number)


def test_a_flood_takes_what_ended_sessions_left_before_older_open_ones() -> None:
    for policy in ("density", "lru", "cost", "slru"):
        cache = PrefixCache(KINDS["path"], PAGE, {"full": 12}, policy=policy)
        for start, session in ((10, "old"), (30, "dead"), (50, None)):
            with cache.acquire(Key(np.arange(start, start + 8)), session=session) as lease:
                cache.allocate(lease, 8)
                cache.commit(lease, 8)
        cache.end_session("dead")
        with cache.acquire(Key(np.arange(90, 98))) as lease:
            cache.allocate(lease, 8)
        lengths = [cache.tree.match_prefix(Key(np.arange(start, start + 8))).device.length for start in (10, 30, 50)]
        assert lengths == [8, 0, 8], policy


def test_sessions_beyond_the_bound_end_with_the_one_unused_for_longest() -> None:
    cache = PrefixCache(KINDS["path"], PAGE, {"full": 100}, max_sessions=3)
    cache.open_session("parent")
    for name in ("one", "part", "two", "three"):
        cache.open_session(name, "parent" if name == "part" else None)
        with cache.acquire(Key(np.arange(4) + 10 * ord(name[-1])), session=name) as lease:
            cache.allocate(lease, 4)
            cache.commit(lease, 4)
    assert [session.name for session in cache.sessions] == ["parent", "two", "three"], "a use of a part is one of its parent"
    assert cache.stats().ended_sessions == 2
