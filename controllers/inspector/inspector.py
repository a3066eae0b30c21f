"""The inspector of one cache: it tells a page, or a recording, what the cache holds and does."""

from __future__ import annotations

import subprocess
from array import array
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.counters.observers import CacheObserver
from unified_tree.controllers.inspector.figures import PageSizes, ages_of_uses, description, figures
from unified_tree.controllers.inspector.frames import encode
from unified_tree.controllers.inspector.held_leases import HeldLeases
from unified_tree.controllers.inspector.page_process import listen, start_page_process, token_for, url_of
from unified_tree.controllers.inspector.prompt_walk import prompt_walk
from unified_tree.controllers.inspector.recent_requests import RecentRequests, page_clock, tree_clock
from unified_tree.controllers.inspector.sinks import FileSink, SocketSink
from unified_tree.controllers.inspector.tape import Tape
from unified_tree.controllers.inspector.timeline import NamespaceTally
from unified_tree.controllers.inspector.tree_walk import TreeWalk
from unified_tree.declare.keys import Key
from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import ConfigurationError, UnifiedTreeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from unified_tree.controllers.counters.observers import ObservedRequest
    from unified_tree.controllers.inspector.frames import Frame
    from unified_tree.controllers.inspector.inspected import Inspected
    from unified_tree.controllers.inspector.sinks import Sink
    from unified_tree.nodes.effect import EffectKind
    from unified_tree.terms.results import EvictResult
    from unified_tree.terms.tier import Tier

NODES_AT_A_TIME = 32
"""So many nodes are read between two looks at the time."""
EVENTS_AT_A_TIME = 48
REQUESTS_AT_A_TIME = 8
MAX_RELEASED = 64
"""So many more leases than twice the open ones are known before those that were released are forgotten."""
DEFAULT_BUDGET_S = 0.00015
FIGURES_EVERY_S = 1.0
PAGE_ENDS_S = 5.0
LONGEST_FAILURE = 500


class Inspector(CacheObserver):
    """Tells what a cache holds and does, a slice a step. Only the cache's thread calls it.

    Args:
        sink: who is told.
        budget_s: a step starts nothing new after so long.
        figures_every_s: how often the figures are told, on the page's clock.
        time_s: the page's clock; by default the cache's own, set to the time of day.

    Attributes:
        url: where its page is, with the token; None for a recording.
        longest_step_s: the longest step so far.
        failure: why it tells nothing more, if something went wrong: a recording's disk is full, say. The cache goes on.
    """

    def __init__(
        self,
        cache: Inspected,
        sink: Sink,
        *,
        budget_s: float = DEFAULT_BUDGET_S,
        figures_every_s: float = FIGURES_EVERY_S,
        time_s: Callable[[], float] | None = None,
    ) -> None:
        _require_unwatched(cache)
        self._cache = cache
        self._sink = sink
        self._budget_s = budget_s
        self._figures_every_s = figures_every_s
        ghosts = cache.tree.state.ghosts
        self._time_s = time_s = page_clock(ghosts) if time_s is None else time_s
        _note_owners(cache, {})
        self._tree_s = tree_clock(ghosts)
        self._names = [component.name for component in cache.tree.components]
        self._sizes = PageSizes(cache.tree)
        self._namespaces = NamespaceTally()
        self._tape = Tape(time_s)
        self._requests = RecentRequests()
        self._acquired: dict[ObservedRequest, tuple[int, float]] = {}
        self._stored: dict[str, int] = {}
        self._due_s = 0.0
        self._figures: dict[str, Any] | None = None
        self._is_untold = False
        self._is_begun = False
        self._walk: TreeWalk | None = None
        self._leases: HeldLeases | None = None
        self._questions: list[Frame] = []
        self._answering: tuple[int, Iterator[dict[str, Any]]] | None = None
        self._answer_of: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self.url: str | None = None
        self.longest_step_s = 0.0
        self.failure: str | None = None
        sink.put(encode("cache", description(cache)))
        cache.counters.observers.add(self)

    @classmethod
    def open(
        cls, cache: Inspected, host: str = "127.0.0.1", port: int = 0, token: str | None = None, **settings: Any
    ) -> Inspector:
        """Serve the page of a cache, from a process of its own that ends with `close` or with this process.

        Args:
            host: an address of this machine; one beyond loopback needs a token.
            port: 0 for a free one; see `url`.
            token: whoever opens the page must know it; beyond loopback a random one by default.
            settings: `budget_s`, `figures_every_s`.

        Raises ConfigurationError if it cannot listen there or start the process. `PrefixCache.poll` drives it from now on.
        """
        _require_unwatched(cache)
        asked = token_for(host, token)
        listener = listen(host, port)
        url = url_of(listener, asked)
        process, connection = start_page_process(listener, asked)
        inspector = cls(cache, SocketSink(connection), **settings)
        inspector._process, inspector.url = process, url
        return inspector

    @classmethod
    def record(cls, cache: Inspected, path: Path | str, **settings: Any) -> Inspector:
        """Record what a cache does, into a file for `unified-tree inspect`. A thread writes the file.

        `record_tree` adds what the tree holds at that time. Raises OSError for a file that cannot be opened. Where it cannot be
        written later, because the disk is full, say, the recording ends and the cache goes on: see `failure` and the log.
        """
        _require_unwatched(cache)
        return cls(cache, FileSink(Path(path)), **settings)

    def step(self) -> None:
        """Do a slice of work; `PrefixCache.poll` calls it. Never blocks, and never raises: see `failure`.

        Cost: `budget_s`, and the one thing begun last.
        """
        self._guarded(self._step)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do what must not raise."""
        if self.failure is not None:
            return
        try:
            work()
        except Exception as error:
            self._cache.counters.observers.fail(self, error)

    def _step(self) -> None:
        began = perf_counter()
        self._tape.next_step()
        if not self._sink.is_open:
            self._leave()  # the page's process is gone; `close` waits for its end, which may take a while
            return
        now_s = self._time_s()
        if not self._sink.flush():
            return
        self._questions += self._sink.take()
        if self._figures is not None:
            self._tell_figures()
        elif self._is_untold:
            self._tell_happened()
        elif self._answering is not None:
            self._answer_on(began, *self._answering)
        elif self._questions:
            self._answer(self._questions.pop(0))
        elif now_s >= self._due_s:
            self._take_figures(now_s)
        elif self._leases is not None:
            self._look_at_leases(began)
        elif self._is_begun:
            self._is_begun = False
            self._walk = TreeWalk(self._cache.tree.state, False)
        elif self._walk is not None:
            self._read_tree(began)
        self._sink.flush()
        self.longest_step_s = max(self.longest_step_s, perf_counter() - began)

    def tell(self) -> None:
        """Tell now what the cache has counted and what happened, for an engine that will not step for a while.

        Never blocks, and never raises. Nothing is told while the page is behind.
        """
        self._guarded(self._tell)

    def _tell(self) -> None:
        if not self._sink.flush():
            return
        now_s = self._time_s()
        if self._figures is not None:
            self._tell_figures()
        self._take_figures(now_s)
        self._tell_figures()
        while self._is_untold:
            self._tell_happened()
        self._sink.flush()

    def record_tree(self, *, tokens: bool = True) -> None:
        """Tell all of the tree and the leases at once, for a recording. Cost: O(tree).

        Args:
            tokens: its tokens, too, so that prompts can be walked in the recording.

        Waits for the recording's disk. An error there is in `failure`.
        """
        self._guarded(lambda: self._record_tree(tokens))

    def _record_tree(self, tokens: bool) -> None:
        self._wait()
        self._tell()
        now_s = self._time_s()
        leases = HeldLeases(self._cache, self._acquired, now_s)
        while not leases.has_ended:
            leases.step()
        self._sink.put(encode("leases", leases.result()))
        walk = TreeWalk(self._cache.tree.state, tokens)
        self._begin_tree(now_s)
        while not walk.has_ended:
            walk.step(4096)
            self._put_rows(walk)
            self._wait()
        self._end_tree(walk)

    def close(self) -> None:
        """End the page, or the recording. The cache goes on without. Idempotent.

        Waits for the page's process, or for the recording's disk; if that fails, `failure` and the log say so.
        """
        self._leave()
        try:
            self._sink.close()
        except OSError as error:
            if self.failure is None:
                self._cache.counters.observers.fail(self, error)
        if self._process is not None:
            try:
                self._process.wait(PAGE_ENDS_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _wait(self) -> None:
        """Wait for the disk of a recording."""
        if isinstance(self._sink, FileSink):
            self._sink.wait()

    def _leave(self) -> None:
        """Be told nothing more by the cache."""
        self._cache.counters.observers.remove(self)
        _note_owners(self._cache, None)

    def __enter__(self) -> Inspector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What the cache tells.

    def acquired(self, request: ObservedRequest, key: Key) -> None:
        """See CacheObserver."""
        now_s = self._time_s()
        self._namespaces.acquired(request, key.namespace)
        self._acquired[request] = (self._requests.add(request, key, now_s, self._tree_s()), now_s)
        if len(self._acquired) > 2 * self._cache.lease_count + MAX_RELEASED:
            self._acquired = {each: when for each, when in self._acquired.items() if not each.is_released}

    def load_failed(self, namespace: str, tokens: int) -> None:
        """See CacheObserver."""
        self._namespaces.load_failed(namespace, tokens)

    def emptied(self) -> None:
        """See CacheObserver."""
        _note_owners(self._cache, {})
        self._tape.add(("invalidated", None, None, None), (0, 0, 0, 0, 0))
        if self._walk is not None or self._is_begun:
            self._walk = None
            self._begin_tree(self._time_s())
            self._is_begun = True

    def invalidated(self, namespace: str | None) -> None:
        """See CacheObserver."""
        self._tape.add(("invalidated", None, None, namespace), (0, 0, 0, 0, 0))

    def evicted(self, tier: Tier, component: str, result: EvictResult) -> None:
        """See CacheObserver."""
        ghosts = self._cache.tree.state.ghosts
        sizes = self._sizes.of({name: ids.size for name, ids in result.freed.items()})
        beneficiary, owners = (None, None) if ghosts is None else (ghosts.beneficiary, ghosts.victims_of)
        self._tape.add(("evicted", int(tier), component, beneficiary), (result.victims, *sizes, result.lost), owners)

    def moved(self, kind: EffectKind, pages: Mapping[str, int], size_bytes: int) -> None:
        """See CacheObserver."""
        self._tape.add((kind.name.lower(), None, None, None), (0, *self._sizes.of(pages)[:2], size_bytes, 0))

    def polled(self) -> None:
        """See CacheObserver."""
        self.step()

    def failed(self, error: Exception) -> None:
        """See CacheObserver. The page goes on with what it was told, and says why it is told nothing more."""
        if self.failure is not None:
            return
        self.failure = printable(str(error) or repr(error), LONGEST_FAILURE)
        _note_owners(self._cache, None)
        self._walk = self._leases = self._answering = None
        self._sink.put(encode("stopped", {"why": self.failure}))
        with suppress(OSError):  # it may be what failed
            self._sink.flush()

    # Slices.

    def _take_figures(self, now_s: float) -> None:
        """Read the figures; to tell them is work for a step of its own where there are many namespaces."""
        self._due_s = now_s + self._figures_every_s
        self._figures = {**figures(self._cache), "at_s": now_s, "namespaces": self._namespaces.take()}

    def _tell_figures(self) -> None:
        if self._figures is not None:
            self._sink.put(encode("figures", self._figures))
        self._figures = None
        self._note_stored()
        self._is_untold = True

    def _tell_happened(self) -> None:
        """Some of what happened since it was told last."""
        events, requests = self._tape.take(EVENTS_AT_A_TIME), self._requests.take(self._cache.tree.state, REQUESTS_AT_A_TIME)
        self._is_untold = len(events) == EVENTS_AT_A_TIME or len(requests) == REQUESTS_AT_A_TIME
        if events or requests:
            told = {"events": events, "left_out": self._tape.left_out, "requests": requests}
            self._sink.put(encode("happened", told))

    def _note_stored(self) -> None:
        storage = self._cache.storage
        if storage is None:
            return
        counters = storage.shared.totals
        for kind, pages, size_bytes in (
            ("prefetch", counters.prefetched_pages, counters.prefetched_bytes),
            ("offload", counters.persisted_pages, counters.persisted_bytes),
        ):
            before = self._stored.get(kind, 0), self._stored.get(f"{kind} bytes", 0)
            if pages > before[0]:
                self._tape.add((kind, None, None, None), (0, 0, pages - before[0], size_bytes - before[1], 0))
            self._stored[kind], self._stored[f"{kind} bytes"] = pages, size_bytes

    def _answer(self, question: Frame) -> None:
        if question.kind == "tree" and self._walk is None and not self._is_begun:
            self._begin_tree(self._time_s())
            self._is_begun = True
        elif question.kind == "leases" and self._leases is None:
            self._leases = HeldLeases(self._cache, self._acquired, self._time_s())
        elif question.kind == "walk":
            self._answer_of = {}
            self._answering = (question.fields["question"], self._walked(question))

    def _answer_on(self, began: float, question: int, parts: Iterator[dict[str, Any]]) -> None:
        """Do the next parts of a prompt's walk, until the time is up."""
        try:
            for part in parts:
                self._answer_of.update(part)
                if part or perf_counter() - began > self._budget_s:  # what has something to say took long
                    return
        except UnifiedTreeError as error:
            self._answer_of = {"error": str(error)}
        self._answering = None
        self._sink.put(encode("answer", {"question": question, "answer": self._answer_of}))

    def _walked(self, question: Frame) -> Iterator[dict[str, Any]]:
        request = question.fields.get("request")
        if request is not None:
            key = self._requests.key(request)
            if key is None:
                return iter([{"error": "this request is too long ago: its tokens are not kept any more"}])
            return prompt_walk(self._cache, key)
        namespace, bigram = question.fields["namespace"], question.fields["bigram"]
        if not question.body:
            return iter([{"error": "a prompt has at least one token"}])
        elements = memoryview(question.body).toreadonly()
        return prompt_walk(self._cache, Key.from_elements(elements, namespace, bigram=bigram))

    def _begin_tree(self, now_s: float) -> None:
        tree = self._cache.tree
        begun = {"at_s": now_s, "clock": tree.state.clock, "nodes": tree.node_count, "ages": ages_of_uses(tree.state)}
        self._sink.put(encode("tree begins", begun))

    def _look_at_leases(self, began: float) -> None:
        leases = self._leases
        assert leases is not None
        if leases.has_ended:  # to tell them is work for a step of its own
            self._sink.put(encode("leases", leases.result()))
            self._leases = None
            return
        while not leases.has_ended:
            leases.step()
            if perf_counter() - began > self._budget_s:
                break

    def _read_tree(self, began: float) -> None:
        walk = self._walk
        assert walk is not None
        while not walk.has_ended:
            walk.step(NODES_AT_A_TIME)
            if perf_counter() - began > self._budget_s:
                break
        self._put_rows(walk)
        if walk.has_ended:
            self._end_tree(walk)
            self._walk = None

    def _put_rows(self, walk: TreeWalk) -> None:
        rows, values, edges, roots = walk.take()
        if rows:
            body = b"".join((array("q", rows).tobytes(), array("q", values).tobytes(), *edges))
            self._sink.put(encode("nodes", {"rows": len(rows), "values": len(values), "roots": roots}, body))

    def _end_tree(self, walk: TreeWalk) -> None:
        state = self._cache.tree.state
        self._sink.put(encode("tree ends", {"at_s": self._time_s(), "clock": state.clock, "nodes": walk.seen}))


def _require_unwatched(cache: Inspected) -> None:
    if any(isinstance(observer, Inspector) for observer in cache.counters.observers.all):
        raise ConfigurationError("this cache has an inspector already")


def _note_owners(cache: Inspected, owners: dict[str, int] | None) -> None:
    """Have evictions count whose values they take, or not."""
    if cache.tree.state.ghosts is not None:
        cache.tree.state.ghosts.victims_of = owners
