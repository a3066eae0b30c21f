"""A prompt pasted into the inspector made one `poll` take 51 to 75 ms: it was received, copied and looked for in one step.

What is counted is work, not time: bytes received, and pages and nodes looked at, in one poll.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from inspected_cache import FULL, busy_cache, serve
from waiting import PATIENCE_S

from unified_tree import Component, Key, Path, Point, Trailing, TreeSettings
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.inspector import Inspector, prompt_walk
from unified_tree.controllers.inspector.frames import QUESTION_BYTES, Frame, QuestionReader, encode
from unified_tree.controllers.inspector.page_main import elements
from unified_tree.controllers.inspector.recent_requests import MAX_COPIED_TOKENS, MAX_MISSES, RecentRequests
from unified_tree.controllers.transfer_engines import NullEngine

PAGE = 16


class Sink:
    """Asks what it is given, and keeps what it is told."""

    def __init__(self, *questions: Frame) -> None:
        self.is_open = True
        self.questions = list(questions)
        self.told: list[bytes] = []

    def put(self, frame: bytes) -> None:
        self.told.append(frame)

    def flush(self) -> bool:
        return True

    def take(self) -> list[Frame]:
        taken, self.questions = self.questions, []
        return taken

    def close(self) -> None:
        self.is_open = False


def question(tokens: Any, *, namespace: str = "", bigram: bool = False) -> Frame:
    fields = {"question": 1, "namespace": namespace, "bigram": bigram}
    return Frame("walk", fields, elements(np.asarray(tokens).tolist(), is_bigram=bigram))


def answer(sink: Sink) -> Any:
    for frame in sink.told:
        if b'"kind":"answer"' in frame[:40]:
            return json.loads(frame[8:])["answer"]
    return None


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes a walk compares, each time it does."""
    counts: list[int] = []
    compare: Callable[..., int] = vars(prompt_walk)["agreement"]

    def counted(data: Any, edge: Any, position: int, stop: int, page: int) -> int:
        counts.append(min(len(edge), stop - position))
        return compare(data, edge, position, stop, page)

    monkeypatch.setattr(prompt_walk, "agreement", counted)
    return counts


def filled(tokens: Any, pieces: int = 1, components: Any = (FULL,), **options: Any) -> PrefixCache:
    """A cache with a prompt that came in pieces."""
    cache = PrefixCache(components, PAGE, {c.name: 20_000 for c in components}, **options)
    for end in np.linspace(len(tokens) // pieces, len(tokens), pieces).astype(int):
        with cache.acquire(Key(tokens[:end])) as lease:
            cache.allocate(lease, int(end))
            cache.commit(lease, tokens[:end])
    return cache


def walked(cache: PrefixCache, asked: Frame, each: Callable[[], None] = lambda: None) -> tuple[Any, int]:
    """The answer, and how many steps it took."""
    sink = Sink(asked)
    steps = 0
    with Inspector(cache, sink, budget_s=0.0, figures_every_s=1e9) as inspector:
        while answer(sink) is None:
            inspector.step()
            each()
            steps += 1
            assert steps < 20_000
        assert inspector.failure is None
    return answer(sink), steps


@pytest.mark.parametrize("pieces", [1, 7, 300])
def test_a_step_compares_one_slice(pieces: int, looked_at: list[int]) -> None:
    tokens = np.random.default_rng(0).integers(0, 1000, 200_000)
    cache = filled(tokens, pieces)
    seen = [0]
    most = 0

    def each() -> None:
        nonlocal most
        most = max(most, sum(looked_at[seen[0] :]))
        seen[0] = len(looked_at)

    told, steps = walked(cache, question(tokens), each)
    assert told["known"] == 200_000 - PAGE and told["prompt"] == 200_000, "the last token is always computed"
    assert most <= prompt_walk.SLICE_BYTES
    assert steps >= max(8 * 200_000 // prompt_walk.SLICE_BYTES, pieces)


def test_a_prompt_that_is_too_deep_is_refused() -> None:
    tokens = np.random.default_rng(0).integers(0, 1000, PAGE * (prompt_walk.MAX_PATH_NODES + 50))
    cache = filled(tokens, prompt_walk.MAX_PATH_NODES + 50)
    told, _ = walked(cache, question(tokens))
    assert "nodes" in told["error"] if cache.tree.node_count > prompt_walk.MAX_PATH_NODES else told["known"] == len(tokens)


def test_of_a_long_prompt_the_beginning_is_walked() -> None:
    most = prompt_walk.MAX_PROMPT_TOKENS
    told, _ = walked(filled(np.arange(100)), question(np.arange(most + 5)))
    assert (told["prompt"], told["left_out"], told["known"]) == (most, 5, 96)


@pytest.mark.parametrize("bigram", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_walk_in_slices_says_what_a_match_says(seed: int, bigram: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tiny slices, over trees of every kind of state."""
    monkeypatch.setattr(prompt_walk, "SLICE_BYTES", 1)
    rng = np.random.default_rng(seed)
    kinds = [Component(name="full", coverage=Path()), Component(name="swa", coverage=Trailing(20))]
    kinds += [Component(name="mamba", coverage=Point())] if seed % 2 else []
    tier = HostTier(page_counts={kind.name: 60 for kind in kinds}, engine=NullEngine())
    cache = PrefixCache(kinds, 4, {kind.name: 60 for kind in kinds}, host=tier)
    texts = [rng.integers(0, 3, rng.integers(4, 80)) for _ in range(30)]
    for text in texts:
        key = Key(text, bigram=bigram)
        with cache.acquire(key) as lease:
            while lease.is_loading:
                cache.poll()
            cache.allocate(lease, key.length)
            cache.commit(lease, text)
        cache.poll()
    for text in [*texts, *(np.append(text[:-2], [7, 8, 9]) for text in texts)]:
        key = Key(text, bigram=bigram)
        found = cache.tree.match_prefix(key, limit=key.length - 1, touch=False)
        explained = cache.explain(key)
        told, _ = walked(cache, question(text, bigram=bigram))
        assert (told["device"], told["reachable"], told["path"], told["known"]) == (
            found.device.length, found.reachable.length, found.path_length, found.known.length
        )  # fmt: skip
        assert [(loss["component"], loss["begin"], loss["end"]) for loss in told["losses"]] == [
            (loss.component, loss.begin, loss.end) for loss in explained.losses
        ]
        assert not told["nodes"] or told["nodes"][-1]["matched"] == explained.known_length
    cache.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_tree_that_changes_meanwhile_does_not_break_a_walk(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_walk, "SLICE_BYTES", 1)
    cache = busy_cache(60, seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(12):
        boundaries = list(cache.tree.transfers.boundaries())
        key = cache.tree.key_of(boundaries[rng.integers(len(boundaries))])
        tokens = np.frombuffer(bytes(key.data), np.int64)

        def each() -> None:
            kind = rng.random()
            if kind < 0.3:
                serve(cache, 2, rng)
            elif kind < 0.4:
                cache.evict({"full": 20})
            elif kind < 0.42:
                cache.invalidate(key.namespace)  # noqa: B023

        told, _ = walked(cache, question(tokens, namespace=key.namespace), each)
        assert "error" not in told and 0 <= told["known"] <= key.length
        assert cache.tree.check() == []


def test_a_question_comes_in_bounded_pieces() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    body = np.arange(300_000).tobytes()
    sent = encode("walk", {"question": 7, "namespace": "x", "bigram": False}, body) + encode("tree", {})
    sender = threading.Thread(target=theirs.sendall, args=(sent,))
    sender.start()

    class Counted:
        sizes: list[int] = []

        def recv_into(self, buffer: memoryview) -> int:
            self.sizes.append(len(buffer))
            return ours.recv_into(buffer)

    reader = QuestionReader()
    found: list[Frame] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < 2 and time.monotonic() < deadline:
        before = len(Counted.sizes)
        try:
            frame = reader.read(Counted())  # type: ignore[arg-type]
        except BlockingIOError:
            continue
        assert len(Counted.sizes) - before <= 1 and max(Counted.sizes) <= QUESTION_BYTES
        found += [] if frame is None else [frame]
    sender.join()
    assert [frame.kind for frame in found] == ["walk", "tree"] and bytes(found[0].body) == body
    theirs.close()
    with pytest.raises(ConnectionError):
        reader.read(ours)
    ours.close()


@contextmanager
def polled(cache: PrefixCache) -> Iterator[None]:
    """The cache is polled by a thread of its own meanwhile."""
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(0.001):
            cache.poll()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def posted(url: str, body: bytes, headers: Any = ()) -> tuple[int, Any]:
    request = urllib.request.Request(f"{url}api/walk", body, {"Content-Type": "application/json", **dict(headers)})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as told:
            return told.status, json.load(told)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


ODD = (
    *(b"[" * 10_000, b"{", b"\xff", b'{"tokens": 1' + b"0" * 5000 + b"}", b'{"tokens": [NaN]}', b"null", b'{"tokens": [true]}'),
    *(b'{"request": 1e9}', b'{"request": true}', b'{"tokens": [1], "namespace": 1}'),
    json.dumps({"tokens": [1], "namespace": "x" * 70_000}).encode(),
)
QUERIES = (
    "node",
    "node?id=x",
    f"node?id={'9' * 40}",
    f"run?run={'9' * 30}",
    "events?after=-",
    "flame?width=1e9",
    "flame?run=-5",
)


def test_many_clients_and_odd_questions_are_answered() -> None:
    cache = filled(np.arange(64))
    with Inspector.open(cache) as inspector, polled(cache):
        url = inspector.url or ""
        found: list[tuple[int, Any]] = []
        good = json.dumps({"tokens": list(range(70))}).encode()
        clients = [threading.Thread(target=lambda: found.append(posted(url, good))) for _ in range(8)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert [(status, told["known"]) for status, told in found] == [(200, 64)] * 8
        for body in ODD:
            status, told = posted(url, body)
            assert status == 400 and told["error"]
        status, told = posted(url, json.dumps({"tokens": [1] * 400_000, "namespace": "\ud800"}).encode())
        assert status == 200 and told["left_out"] == 400_000 - prompt_walk.MAX_PROMPT_TOKENS
        for name in QUERIES:
            with pytest.raises(urllib.error.HTTPError, match="40"):
                urllib.request.urlopen(f"{url}api/{name}", timeout=PATIENCE_S)
        assert posted(url, good)[0] == 200
    assert inspector.failure is None


class Request:
    prompt_tokens = cached_tokens = compute_from = host_tokens = 0
    is_released = False
    misses: list[Any] = []


def test_no_long_prompt_is_copied_in_the_middle_of_a_step() -> None:
    """A key over the caller's own array would have to be."""
    requests: Any = RecentRequests()
    short, long = (np.zeros(count, np.int64) for count in (MAX_COPIED_TOKENS, MAX_COPIED_TOKENS + 1))
    asked: Any = Request()
    assert requests.key(requests.add(asked, Key(short, copy=False), 0.0, 0.0)) is not None
    assert requests.key(requests.add(asked, Key(long, copy=False), 0.0, 0.0)) is None
    assert requests.key(requests.add(asked, Key(long), 0.0, 0.0)) is not None


def test_of_a_prompt_with_very_many_misses_some_are_told() -> None:
    cache = PrefixCache([FULL], PAGE, {"full": 40}, settings=TreeSettings())
    with cache.acquire(Key(np.arange(64))) as lease:
        miss = lease.misses[0]
    asked: Any = Request()
    asked.misses = [miss] * 10_000
    requests = RecentRequests()
    requests.add(asked, Key([1]), 0.0, 0.0)
    [told] = requests.take(cache.tree.state, 8)
    assert len(told["misses"]) == MAX_MISSES
