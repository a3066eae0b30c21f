"""What one life of a daemon knows of this process: a connection, and the pools registered under a number of their own.

A daemon takes a number that it knows for the memory it knows; and what was sent to one that has ended may reach the one that
takes its place. So every session has a new number, and nothing of an old one can write to the pools.

Device pools are told as groups of tensors, each with a list of blocks for every chunk. A daemon with --separate-object-groups
keeps a chunk of a window or a state as an object of its own, and only where it has one: its lookups then find the longest
prefix whose every page is there and whose window and state at that very length are. Where a span names no page of a chunk, its
blocks say so.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from unified_tree.controllers.adapters.lmcache.lmcache_package import lmcache_module
from unified_tree.controllers.adapters.lmcache.lmcache_settings import LmcacheSettings
from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool, check_windows, format_digest
from unified_tree.controllers.prefix_linker.prefix_linker import Span
from unified_tree.terms.errors import ConfigurationError, LinkError


class DaemonSession:
    """Registered with the daemon, or not made at all.

    Attributes:
        settings: as they were given.
        client: the daemon's calls; each gives a future.
        pools: the device pools.
        chunk_tokens: the daemon's.
        losses: of the watch, when this session began.

    Raises ConfigurationError without the package, for a chunk that fits the pages or a window badly, for a daemon that does
    not keep windows and states apart, and for CPU pools that it cannot map; LinkError where the daemon does not answer.
    """

    def __init__(self, settings: LmcacheSettings, pools: Sequence[LinkedPool], losses: int) -> None:
        self.losses = losses
        self.settings = settings
        self.pools = pools
        self._model = f"{settings.model}-{format_digest(pools)}"
        self._key = lmcache_module("lmcache.v1.multiprocess.custom_types").IPCCacheServerKey
        self._windows = [pool for pool in pools if not pool.coverage.is_path]
        self._tensors = {f"{pool.name}.{index}": tensor for pool in pools for index, tensor in enumerate(pool.tensors)}
        linger_ms = round(1000 * settings.answer_timeout_s)  # without it one that nobody answers is never closed
        context = client_context(lmcache_module("zmq"), linger_ms)
        factory = lmcache_module("lmcache.v1.multiprocess.transport.factory").RequestClientFactory
        self.client = factory.create(f"tcp://{settings.daemon}", context=context)
        try:
            self.chunk_tokens = self._asked_chunk()
            check_windows(pools, self.chunk_tokens)
            self._groups = block_groups(pools, self.chunk_tokens)
            transfer = lmcache_module("lmcache.v1.multiprocess.transfer_context").LMCacheDrivenTransferContext
            self._transfer = transfer(secrets.randbits(62), self.client)
            self.register()
            if self._windows:
                check_object_groups(self)
        except BaseException:
            self.client.close()
            raise

    def register(self) -> None:
        """Make the pools known to the daemon, again if it has forgotten them. Raises as the constructor. Blocks."""
        addresses = [tensor.data_ptr() for tensor in self._tensors.values()]
        try:
            self._transfer.register(
                self._tensors,
                self._model,
                1,
                self.chunk_tokens // self.pools[0].page_tokens,
                self.settings.answer_timeout_s,
                layout_hints={"kv_layout": "NHD"},
                engine_group_infos=[group.info for group in self._groups],
            )
        except TimeoutError as error:
            raise no_answer(self.settings) from error
        if addresses != [tensor.data_ptr() for tensor in self._tensors.values()]:
            raise ConfigurationError(
                "lmcache: the daemon cannot map the device pools: call share_pools on them before anything else uses them"
            )

    def answer(self, future: Any) -> Any:
        """What the daemon answers. Raises LinkError where it does not in time. Blocks."""
        try:
            return future.result(timeout=self.settings.answer_timeout_s)
        except TimeoutError as error:
            raise no_answer(self.settings) from error

    def ping(self) -> bool:
        """Whether the daemon answers in time. Blocks."""
        return bool(self.client.ping(None).wait(timeout=self.settings.answer_timeout_s))

    def key(self, request: str, tokens: tuple[int, ...], salt: str, begin: int, end: int, *, worker: int | None) -> Any:
        """The daemon's key of a range of tokens; for lookups and locks without a worker."""
        return self._key(
            model_name=self._model,
            world_size=1,
            worker_id=worker,
            token_ids=tokens,
            start=begin,
            end=end,
            request_id=request,
            cache_salt=salt,
            num_kv_readers=1,
        )

    def retrieve(self, request: str, span: Span) -> Any:
        """Begin to fill pages; a future of whether it did."""
        begin = span.first_token(self.chunk_tokens)
        key = self.key(request, _ids(span), span.salt, begin, span.end, worker=0)
        event = self._transfer.create_recorded_event()
        blocks = [group.blocks(span, self.chunk_tokens) for group in self._groups]
        return self._transfer.submit_retrieve(
            request, key, self._tensors, blocks, event, 0, skip_first_n_tokens=span.begin - begin
        )

    def store(self, name: str, span: Span) -> Any:
        """Begin to read pages; a future of whether it did."""
        key = self.key(name, _ids(span), span.salt, span.begin, span.end, worker=0)
        event = self._transfer.create_recorded_event()
        blocks = [group.blocks(span, self.chunk_tokens) for group in self._groups]
        return self._transfer.submit_store(name, key, self._tensors, blocks, event, 0)

    def close(self, *, is_lost: bool) -> None:
        """Make the daemon forget the pools, if it is still there, and close the connection. Blocks."""
        if not is_lost:
            future = self._transfer.unregister()
            if future is not None:
                future.wait(timeout=self.settings.answer_timeout_s)
        self._transfer.close()
        self.client.close()

    def _asked_chunk(self) -> int:
        try:
            chunk_tokens = int(self.client.get_chunk_size().result(timeout=self.settings.answer_timeout_s))
        except TimeoutError as error:
            raise no_answer(self.settings) from error
        page_tokens = self.pools[0].page_tokens
        if chunk_tokens % page_tokens:
            raise ConfigurationError(
                f"lmcache: the daemon's --chunk-size {chunk_tokens} is no multiple of the page size {page_tokens}"
            )
        return chunk_tokens


def no_answer(settings: LmcacheSettings) -> LinkError:
    """The error of a daemon that does not answer in time."""
    return LinkError(
        f"lmcache: no answer from {settings.daemon} within {settings.answer_timeout_s} s: "
        "check `daemon`, and that `lmcache server` runs there"
    )


def _ids(span: Span) -> tuple[int, ...]:
    return tuple(span.tokens.tolist())


def check_object_groups(session: DaemonSession) -> None:
    """Store so many chunks, under tokens of this check alone, that the first has no window and no state, and look for them.

    The daemon does not say how it was started. One that was not told --separate-object-groups would keep all of a chunk as one
    object, find prefixes without their windows, and fill pages with what was never stored; so it must not be used at all.

    All of them must be found, and the first alone must not. Pages are read, none is written.
    Raises ConfigurationError for a daemon that finds the first, LinkError for one that finds nothing or does not end looking.
    Blocks.
    """
    chunk, salt = session.chunk_tokens, f"probe-{secrets.token_hex(12)}"
    chunks = 1 + max(pool.coverage.boundary_pages(session.chunk_tokens) for pool in session.pools)
    tokens = np.arange(chunks * chunk, dtype=np.int64) & 0xFFFF
    pages = {}
    for pool in session.pools:
        first, last = pool.page_range(0, tokens.size)
        pages[pool.name] = np.ones(last - first, np.int64)  # a page that is not the null block
        if min(tensor.shape[0] for tensor in pool.tensors) < 2:
            raise ConfigurationError(f"lmcache: {pool.name} needs two pages or more")
    span = Span(tokens=tokens, salt=salt, begin=0, end=tokens.size, pages=pages)
    if not session.answer(session.store(f"{salt}-store", span)):
        raise LinkError("lmcache: the daemon did not store what it was tried with")
    for attempt in range(session.settings.probe_attempts):
        if _found(session, f"{salt}-{attempt}", span, tokens.size) == tokens.size:
            break
        time.sleep(session.settings.probe_pause_s)
    else:
        raise LinkError("lmcache: the daemon does not find what it was tried with; has it memory to spare?")
    if _found(session, f"{salt}-first", span, chunk):
        raise ConfigurationError(
            "lmcache: the daemon does not keep windows and states apart from the pages of every token: start it with "
            "--separate-object-groups, and with the --null-block-id that it has by default"
        )


def _found(session: DaemonSession, request: str, span: Span, end: int) -> int:
    key = session.key(request, tuple(span.tokens[:end].tolist()), span.salt, 0, end, worker=None)
    session.answer(session.client.lookup(key, 1))
    chunks, late = None, time.monotonic() + session.settings.answer_timeout_s
    while chunks is None:
        if time.monotonic() > late:
            raise LinkError(
                f"lmcache: the daemon looks for what it was tried with for longer than {session.settings.answer_timeout_s} s"
            )
        chunks = session.answer(session.client.query_prefetch_status(request))
    if chunks:
        held = session.key(request, tuple(span.tokens[:end].tolist()), span.salt, 0, chunks * session.chunk_tokens, worker=None)
        session.answer(session.client.free_lookup_locks(held, 1))
    session.answer(session.client.end_session(request))
    return int(chunks) * session.chunk_tokens


NO_BLOCK = 0
"""The daemon takes a chunk all of whose blocks are this one, of one group of objects, for absent: the default of its
--null-block-id. It is a page of ours as well: a chunk of a single page that happens to lie there is not stored, a miss."""


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """Tensors under the same page ids, of one shape and coverage.

    Attributes:
        info: the daemon's description.
        pool: one of the pools.
    """

    info: Any
    pool: LinkedPool

    def blocks(self, span: Span, chunk_tokens: int) -> list[int]:
        """Block ids of all chunks of a span: its pages, and what stands for none."""
        ids: list[int] = span.pages[self.pool.name].tolist()
        chunks = (span.end - span.first_token(chunk_tokens)) // chunk_tokens
        if self.pool.coverage.is_exact:
            return [NO_BLOCK] * (chunks - 1) + ids
        a_chunk = chunk_tokens // self.pool.page_tokens
        absent = chunks * a_chunk - len(ids)
        beside = absent % a_chunk  # in the chunk of the window's first page; what the daemon leaves out, but not the null block
        return [NO_BLOCK] * (absent - beside) + [ids[0] or 1] * beside + ids


def block_groups(pools: Sequence[LinkedPool], chunk_tokens: int) -> list[BlockGroup]:
    """The daemon's groups, in the order of its own."""
    group_info = import_module("lmcache.v1.multiprocess.group_view").EngineGroupInfo
    spaces = list(dict.fromkeys((pool.owner, pool.coverage) for pool in pools))
    alike: dict[tuple[Any, ...], list[int]] = {}
    pool_of = {(pool.owner, pool.coverage): pool for pool in pools}
    owned = [((pool.owner, pool.coverage), tensor) for pool in pools for tensor in pool.tensors]
    for index, (space, tensor) in enumerate(owned):
        alike.setdefault((space, tuple(tensor.shape)), []).append(index)
    return [
        BlockGroup(
            group_info(
                engine_group_id=spaces.index(space), layer_indices=tuple(indices), **_kind(pool_of[space], chunk_tokens)
            ),
            pool_of[space],
        )
        for (space, _), indices in alike.items()
    ]


def _kind(pool: LinkedPool, chunk_tokens: int) -> dict[str, Any]:
    if pool.coverage.is_exact:
        return {"tokens_per_block": chunk_tokens, "sw_size_tokens": chunk_tokens, "recurrent_state": True}
    window = pool.coverage.window_tokens
    return {"tokens_per_block": pool.page_tokens, **({} if window is None else {"sw_size_tokens": window})}


def client_context(zmq: Any, linger_ms: int) -> Any:
    """The ZeroMQ context of LMCache's client: the process's own, with connections whose events end before their reader does.

    LMCache's client closes the socket that reads a connection's events, then the connection. If the daemon ends in between, the
    context's I/O thread waits for ever for a reader of that event, and no link of the process moves a byte any more. Rejected:
    a context for each link, which would have a thread that waits for ever, and the process could not end.

    Args:
        zmq: the package.
        linger_ms: how long a closed connection tries to send what it has not sent.
    """

    class Connection(zmq.Socket):  # type: ignore[misc]
        read_from: Any = None

        def get_monitor_socket(self, events: int | None = None, addr: str | None = None) -> Any:
            reader = super().get_monitor_socket(events, addr)
            reader.read_from = self
            return reader

        def close(self, linger: int | None = None) -> None:
            if self.read_from is not None and not self.read_from.closed:
                self.read_from.disable_monitor()
            super().close(linger)

    class ClientContext(zmq.Context):  # type: ignore[misc]
        _socket_class = Connection

    context = ClientContext(zmq.Context.instance())
    context.setsockopt(zmq.LINGER, linger_ms)
    return context


class DaemonWatch:
    """An idle connection whose break shows that the daemon has ended. Thread-safe.

    To a request, a daemon that has ended and one that does not answer look the same. But the kernel closes the connections of
    a process that has ended, after its memory is freed; only then is it certain that the daemon writes to no page any more.

    Args:
        address: "host:port".

    Raises ConfigurationError without the package.
    """

    def __init__(self, address: str) -> None:
        self._zmq = lmcache_module("zmq")
        self._lock = threading.Lock()
        self._losses = 0
        self._is_connected = False
        self._is_closed = False
        self._socket = self._zmq.Context.instance().socket(self._zmq.DEALER)
        self._socket.setsockopt(self._zmq.LINGER, 0)
        events = self._zmq.EVENT_HANDSHAKE_SUCCEEDED | self._zmq.EVENT_DISCONNECTED
        self._monitor = self._socket.get_monitor_socket(events)
        self._socket.connect(f"tcp://{address}")

    @property
    def losses(self) -> int:
        """How often the connection has broken. Cost: microseconds."""
        with self._lock:
            self._read()
            return self._losses

    def wait(self, timeout_s: float) -> bool:
        """Whether the daemon is connected by then. The end of one that was not would go unnoticed. Blocks."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._read()
                if self._is_connected or time.monotonic() > deadline:
                    return self._is_connected
            time.sleep(0.002)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._is_closed = True
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(0)

    def _read(self) -> None:
        parse = import_module("zmq.utils.monitor").recv_monitor_message
        while not self._is_closed and self._monitor.poll(0):
            self._is_connected = parse(self._monitor)["event"] == self._zmq.EVENT_HANDSHAKE_SUCCEEDED
            self._losses += not self._is_connected
