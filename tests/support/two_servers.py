"""Prefill in one process and decode in another, over a loopback socket with the bytes of pages, while either may be killed.

The prefill server runs prompts and sends what the decode server asked for: whole pages of paths as they are computed, windows
and the state with the last piece. The test's process submits requests, kills servers, and judges every token by a run of the
model without a cache.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from random import Random
from typing import Any

import numpy as np
import torch
from oracle.families import FAMILIES
from oracle.mix import Bench, Prompts, Tiers
from oracle.reference import Reference, Tally
from oracle.tiny_model import SINGLE, tiny_model

from reference_engine import Engine, EngineSettings, Request, SequenceRows
from reference_engine.model_runner import Pass
from reference_engine.request import Running
from unified_tree import OutOfPagesError, TransferError
from unified_tree.controllers import Lease

Pages = Mapping[str, tuple[int, Mapping[str, bytes]]]
"""By component the index of the first page, and by part the bytes of these pages in every layer."""
OUTSTANDING = 8
PATIENCE_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The servers' model and memory."""

    family: str
    seed: int
    tiers: Tiers = field(default_factory=lambda: Tiers(paths=2.0, windows=2.0, states=6))
    settings: EngineSettings = field(default_factory=lambda: EngineSettings(chunk_tokens=16))

    def bench(self, engine: type[Engine]) -> Bench:
        """A server's cache, pools and engine. Pages hold what is no number until they are written."""
        torch.set_num_threads(1)
        bench = Bench(FAMILIES[self.family], SINGLE, self.tiers, Random(self.seed), settings=self.settings, engine=engine)  # type: ignore[arg-type]
        for pool in bench.tiers.device.values():
            for part in pool.format.parts:
                for layer_id in pool.format.layer_ids:
                    pool.tensor(layer_id, part.name).fill_(float("nan"))
        return bench


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A prompt that the decode server wants, and by component from which token on."""

    number: int
    tokens: list[int]
    write_from: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The state of a prompt's tokens up to `length`, beyond what came before; the last one has the next token's logits."""

    number: int
    length: int
    pages: Pages
    logits: np.ndarray[Any, Any] | None = None


class PagedEngine(Engine):
    """An engine whose pages can be read and written as bytes."""

    peer: Connection | None = None

    def __init__(self, *args: Any, tolerance: float, **options: Any) -> None:  # noqa: ARG002  a test judges elsewhere
        super().__init__(*args, **{**options, "sampler": lambda logits: int(logits.argmax())})

    def is_path(self, component: str) -> bool:
        """Whether its state belongs to tokens, and not to a length."""
        return next(c.coverage.is_path for c in self.cache.layout.components if c.name == component)

    def table(self, lease: Lease, component: str) -> np.ndarray[Any, Any]:
        """The pages of a component; of a state the running one's."""
        if component == self.cache.layout.point:
            return np.array([lease.state_page])
        return lease.pages(self.cache.layout.owner_of[component])

    def read_pages(self, lease: Lease, component: str, first: int, last: int) -> tuple[int, dict[str, bytes]]:
        """The bytes of the pages [first, last)."""
        pages, pool = self.table(lease, component)[first:last], self.pools[component]
        assert (pages >= 0).all(), f"{component}: {lease} does not hold the pages {first} to {last}: {pages}"
        parts = {p.name: pool.words(p.name)[:, torch.tensor(pages)].numpy().tobytes() for p in pool.format.parts}
        return first, parts

    def write_pages(self, lease: Lease, pages: Pages) -> None:
        """Write what arrived into the lease's own pages."""
        for component, (first, parts) in pages.items():
            table, pool = self.table(lease, component)[first:], self.pools[component]
            owner = lease.tables.get(self.cache.layout.owner_of[component])
            for name, data in parts.items():
                words = pool.words(name)
                layers, _, slots, row = words.shape
                given = torch.frombuffer(bytearray(data), dtype=words.dtype).view(layers, -1, slots, row)
                targets = table[: given.shape[1]]
                assert (targets >= 0).all() and (owner is None or first >= owner.private_from)
                words[:, torch.tensor(targets)] = given

    def send(self, message: object) -> bool:
        """Send to the other server; it may be gone."""
        try:
            assert self.peer is not None
            self.peer.send_bytes(pickle.dumps(message))
        except OSError:
            self.lose_peer()
        return self.peer is not None

    def lose_peer(self) -> None:
        """The other server is gone."""
        if self.peer is not None:
            self.peer.close()
        self.peer = None


class PrefillEngine(PagedEngine):
    """Runs prompts, and sends their state when it is computed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.asks: dict[Request, tuple[Ask, int]] = {}

    def receive(self, ask: Ask) -> None:
        """Compute a prompt; what is sent of paths so far is nothing."""
        request = Request(prompt=ask.tokens, new_tokens=1)
        self.asks[request] = ask, 0
        self.submit(request)

    def lose_peer(self) -> None:
        """The decode server is gone: the prompts are computed to their end all the same."""
        super().lose_peer()
        self.asks.clear()

    def ran(self, request: Request, running: Running, run: Pass) -> None:
        """Send the paths' whole pages that were computed; at the prompt's end everything else."""
        super().ran(request, running, run)
        if request not in self.asks:
            return
        ask, sent = self.asks[request]
        size, end = self.cache.page_size, running.computed
        is_last = end == len(ask.tokens)
        last = -(-end // size) if is_last else end // size
        pages = {}
        for name, token in ask.write_from.items():
            first = max(token, sent) // size if self.is_path(name) else token // size
            if name == self.cache.layout.point:
                first, last_page = 0, 1
            else:
                last_page = last
            if (is_last or self.is_path(name)) and first < last_page:
                pages[name] = self.read_pages(running.lease, name, first, last_page)
        self.asks[request] = ask, max(sent, last * size)
        if pages:
            logits = run.logits[-1].numpy() if is_last else None
            self.send(Piece(number=ask.number, length=min(last * size, end), pages=pages, logits=logits))

    def finish(self, request: Request, running: Running) -> None:
        """Published: nothing more is to be sent."""
        super().finish(request, running)
        self.asks.pop(request, None)


class DecodeEngine(PagedEngine):
    """Asks another server for the state of its prompts; computes them itself while there is none.

    Attributes:
        arriving: requests by the number of their ask, with their leases.
        said: the logits of each token of the output, by request.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.arriving: dict[int, tuple[Request, Lease]] = {}
        self.said: dict[Request, dict[int, np.ndarray[Any, Any]]] = {}
        self.done: list[Request] = []
        self._last_number = 0

    def _admit(self) -> None:
        while self.peer is not None and self.waiting and len(self.running) + len(self.arriving) < self.settings.max_running:
            request = self.waiting[0]
            try:
                lease = self.cache.acquire(request.key(), arriving=True, may_load=not request.load_failed)
            except OutOfPagesError:
                if not (self.running or self.arriving):
                    break  # transfers hold pages: it is admitted as ever
                return
            self.waiting.popleft()
            self._last_number += 1
            self.arriving[self._last_number] = request, lease
            layout = self.cache.layout
            names = [c.name for c in layout.components]
            self.send(Ask(number=self._last_number, tokens=request.tokens, write_from={n: lease.write_from[n] for n in names}))
        if self.peer is None or not (self.running or self.arriving):
            super()._admit()

    def receive(self, piece: Piece) -> None:
        """Write a piece, and publish it; with the last one the request decodes. A piece for a lease that is gone is dropped."""
        if piece.number not in self.arriving:
            return
        request, lease = self.arriving[piece.number]
        try:
            self.write_pages(lease, piece.pages)
            self.cache.commit(lease, piece.length)
        except TransferError:  # what it was loading back from host
            request.load_failed = True
            self.give_up(piece.number)
            return
        if piece.logits is None:
            return
        assert not lease.is_arriving
        del self.arriving[piece.number]
        rows = SequenceRows(lease, self.pools, self.cache.layout)
        request.running = Running(lease, rows, self.runners[request.namespace], lease.compute_from)
        self.running.append(request)
        self.said.setdefault(request, {})[piece.length] = piece.logits
        request.output.append(int(piece.logits.argmax()))
        if request.finished:
            self.finish(request, request.running)

    def give_up(self, number: int) -> None:
        """Give back the pages of a request whose state does not arrive any more; it waits again."""
        request, lease = self.arriving.pop(number)
        self.cache.release(lease)
        self.waiting.appendleft(request)

    def lose_peer(self) -> None:
        """The prefill server is gone, with all that was on its way."""
        super().lose_peer()
        for number in reversed(list(self.arriving)):
            self.give_up(number)

    def grow(self, request: Request, end: int) -> bool:
        """As ever; where nothing else is left, what arrives gives way."""
        while True:
            try:
                return super().grow(request, end)
            except OutOfPagesError:
                if not self.arriving:
                    raise
                self.give_up(max(self.arriving))

    def ran(self, request: Request, running: Running, run: Pass) -> None:
        """Note what is said of the output."""
        super().ran(request, running, run)
        for i, logits in enumerate(run.logits, start=run.start + 1):
            if i >= len(request.prompt):
                self.said.setdefault(request, {})[i] = logits.numpy()

    def finish(self, request: Request, running: Running) -> None:
        """It has all its tokens."""
        super().finish(request, running)
        self.done.append(request)


def report(bench: Bench) -> dict[str, int]:
    """A server ends: whatever happened to it, no page is missing."""
    bench.engine.run()
    cache = bench.cache
    cache.drain()
    assert cache.tree.check() == []
    stats = cache.stats()
    leased = sum(pool.leased for pool in stats.pools.values())
    assert (cache.lease_count, leased) == (0, 0), stats
    for name, pool in stats.pools.items():
        cache.device.reserve({name: pool.total or 0})  # all can be had
    cache.close()
    return {"prompt": stats.prompt_tokens, "hit": stats.hit_tokens, "arriving": stats.arriving_tokens}


def prefill_server(control: Connection, setup: Setup) -> None:
    """The process that computes prompts. It says where it listens; a decode server that connects replaces the earlier one."""
    bench, server = setup.bench(PrefillEngine), socket.create_server(("127.0.0.1", 0))
    engine: Any = bench.engine
    control.send(("address", server.getsockname()))
    while True:
        engine.step()
        is_idle = not (engine.running or engine.waiting)
        given: list[Any] = [control, server, *([] if engine.peer is None else [engine.peer])]
        for ready in wait(given, None if is_idle else 0):
            if ready is control:
                control.recv()
                control.send(("report", report(bench)))
                return
            if ready is server:
                engine.lose_peer()
                engine.peer = Connection(server.accept()[0].detach())
            elif ready is engine.peer:
                _receive(engine)


def decode_server(control: Connection, setup: Setup) -> None:
    """The process that clients talk to."""
    bench = setup.bench(DecodeEngine)
    engine: Any = bench.engine
    numbers: dict[Request, int] = {}
    while True:
        engine.step()
        for request in engine.done:
            logits = engine.said.pop(request)
            rows = [logits[at] for at in range(len(request.prompt), len(request.tokens))]
            control.send(("done", (numbers.pop(request), request.tokens, np.stack(rows))))
        engine.done.clear()
        timeout = 0 if engine.running else 0.02 if engine.waiting else None
        for ready in wait([control, *([] if engine.peer is None else [engine.peer])], timeout):
            if ready is engine.peer:
                _receive(engine)
            elif ready is control:
                what, given = control.recv()
                if what == "stop":
                    control.send(("report", report(bench)))
                    return
                if what == "address":
                    engine.lose_peer()
                    engine.peer = _connect(given)
                else:
                    number, prompt, new_tokens = given
                    request = Request(prompt=prompt, new_tokens=new_tokens)
                    numbers[request] = number
                    engine.submit(request)


def _connect(address: tuple[str, int]) -> Connection | None:
    try:
        return Connection(socket.create_connection(address).detach())
    except OSError:
        return None


def _receive(engine: Any) -> None:
    """A message of the other server, or its end, perhaps in the middle of a message."""
    try:
        message = pickle.loads(engine.peer.recv_bytes())
    except (EOFError, OSError):
        engine.lose_peer()
    else:
        engine.receive(message)


def _nursery() -> Any:
    """Processes are forked from one that has imported everything, and has run nothing: so a server is up again at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["two_servers_nursery"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path or "." for path in sys.path)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return context


class Server:
    """A process, and the line to it."""

    def __init__(self, target: Any, setup: Setup) -> None:
        context = _nursery()
        self.control, child = context.Pipe()
        self.process = context.Process(target=target, args=(child, setup), daemon=True)
        self.process.start()
        child.close()

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self.process.kill()
        self.process.join()
        self.control.close()

    def stop(self) -> dict[str, int]:
        """Let it end; returns its report. Raises EOFError if it failed."""
        self.control.send(("stop", None))
        while (message := self.control.recv())[0] != "report":
            pass
        self.process.join()
        found: dict[str, int] = message[1]
        return found


class TwoServers:
    """Requests to a decode server and a prefill server, each killed now and then.

    Attributes:
        kills: how often each was killed, by its name.
        tally: what was compared.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.random = Random(setup.seed)
        self.model = tiny_model(FAMILIES[setup.family], SINGLE, 0)
        self.targets = {"prefill": prefill_server, "decode": decode_server}
        self.servers = {name: Server(target, setup) for name, target in self.targets.items()}
        self.kills = dict.fromkeys(self.targets, 0)
        self.tally, self.reference = Tally(), Reference()
        self.outstanding: dict[int, tuple[list[int], int]] = {}
        self._address: Any = None

    def serve(self, requests: int, kills: int, longest: int = 60) -> dict[str, dict[str, int]]:
        """Serve so many requests to their ends, with so many kills; returns the servers' reports."""
        prompts = Prompts(self.random, int(self.model.config.vocab_size), longest)
        kill_after = sorted(self.random.sample(range(1, requests), kills))
        done = submitted = 0
        kill_at: float | None = None
        silent_since = time.monotonic()
        try:
            while self._address is None:  # else on a busy machine the decode server may compute all by itself before
                self._messages()
                assert time.monotonic() - silent_since < PATIENCE_S, "the prefill server does not come up"
            silent_since = time.monotonic()
            while done < requests:
                while submitted < requests and len(self.outstanding) < OUTSTANDING:
                    self.outstanding[submitted] = prompts.draw(), self.random.choice((1, 2, 5, 9))
                    self._submit([submitted])
                    submitted += 1
                for served in self._messages():
                    done += 1
                    silent_since = time.monotonic()
                    prompts.earlier.append(self._judge(*served)[: longest - 5])
                assert time.monotonic() - silent_since < PATIENCE_S, f"{self.outstanding} are lost"
                if kill_after and done >= kill_after[0] and kill_at is None:
                    kill_at = time.monotonic() + self.random.random() * 0.05  # in the middle of anything
                if kill_at is not None and time.monotonic() >= kill_at:
                    self._kill(self.random.choice(("prefill", "decode")))
                    del kill_after[0]
                    kill_at = None
            return {name: server.stop() for name, server in self.servers.items()}
        finally:
            for server in self.servers.values():
                if not server.control.closed:
                    server.kill()

    def _submit(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.servers["decode"].control.send(("serve", (number, *self.outstanding[number])))

    def _messages(self) -> list[tuple[int, list[int], np.ndarray[Any, Any]]]:
        """Read the messages of a moment; returns the requests that are done. Raises EOFError if one ended by itself."""
        served = []
        for ready in wait([server.control for server in self.servers.values()], 0.01):
            assert isinstance(ready, Connection)
            what, given = ready.recv()
            if what == "address":
                self._address = given
                self.servers["decode"].control.send((what, given))
            elif self.outstanding.pop(given[0], None) is not None:
                served.append(given)
        return served

    def _kill(self, name: str) -> None:
        """Kill a server and start another, which knows nothing; a client whose decode server is gone asks again."""
        self.kills[name] += 1
        self.servers[name].kill()
        self.servers[name] = Server(self.targets[name], self.setup)
        if name == "decode":
            if self._address is not None:
                self.servers[name].control.send(("address", self._address))
            self._submit(list(self.outstanding))
        else:
            self._address = None

    def _judge(self, number: int, tokens: list[int], said: np.ndarray[Any, Any]) -> list[int]:
        """Compare every token of an output with a run without a cache. Returns all tokens."""
        count = len(said)
        given = torch.from_numpy(said)
        assert given.argmax(1).tolist() == tokens[-count:], f"request {number} was given other tokens than were said"
        logits = self.reference.logits(self.model, tokens[:-1])[-count:]
        rounded = lambda: [other[-count:] for other in self.reference.rounded(self.model, tokens[:-1])]  # noqa: E731
        difference = self.tally.add(given, logits, SINGLE.tolerance, rounded)
        assert difference <= SINGLE.tolerance, f"request {number}: {difference:.3g} off in {count} of {len(tokens)} tokens"
        return tokens
