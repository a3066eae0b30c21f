"""Servers that are none, or say what is not so: a scripted one, that answers commands with any bytes at any pace."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from types import TracebackType

import pytest
from redis_server import PATIENT, brief_answers
from waiting import PATIENCE_S, wait_until

from unified_tree.controllers.storage import Outcome, StoredPool
from unified_tree.controllers.storage.redis import RedisSettings, RedisStorage
from unified_tree.terms.errors import StorageError

SIZE = 10_000
POOL = StoredPool(name="full", format_digest=sha256(b"full").digest(), value_bytes=SIZE)
KEYS = [sha256(bytes([index])).digest() for index in range(3)]
GOOD = {b"CLIENT": b"+OK\r\n", b"INFO": b"$0\r\n\r\n", b"EXISTS": b":0\r\n", b"UNLINK": b":1\r\n", b"SET": b"+OK\r\n"}
TABLE = b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$%d\r\n%b\r\n:1\r\n"
"""Of slots, all of one host with its length."""
Script = Callable[[socket.socket, bytes], None]


class Liar:
    """Accepts connections and hands each command's name to a script; a context manager."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self.commands: list[bytes] = []

    @property
    def connections(self) -> int:
        """Accepted so far."""
        return len(self._threads)

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(accepted,)))
            self._threads[-1].start()

    def _serve(self, accepted: socket.socket) -> None:
        with accepted, accepted.makefile("rb") as stream, contextlib.suppress(OSError):
            while head := stream.readline():
                words = []
                for _ in range(int(head[1:])):
                    words.append(stream.read(int(stream.readline()[1:])))
                    stream.readline()
                self.commands.append(words[0])
                self._script(accepted, words[0])

    def __enter__(self) -> Liar:
        self._accepting.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._accepting.join(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def to_get(answer: bytes) -> Script:
    """Everything is answered well, but for GET."""
    return lambda accepted, name: accepted.sendall(answer if name == b"GET" else GOOD[name])


@contextlib.contextmanager
def engine_of(liar: Liar) -> Iterator[RedisStorage]:
    settings = RedisSettings(address=liar.address, retry_pause_s=1000, **PATIENT)
    made = RedisStorage([POOL], settings)
    try:
        yield made
    finally:
        made.close()


def pages(count: int) -> list[memoryview]:
    return [memoryview(bytearray(SIZE)) for _ in range(count)]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (b"$%d\r\n%b\r\n" % (SIZE, bytes(SIZE)), Outcome.DONE),
        (b"$-1\r\n", Outcome.MISSING),
        (b"$3\r\nabc\r\n", Outcome.MISSING),
        (b"+OK\r\n", Outcome.MISSING),
        (b":12\r\n", Outcome.FAILED),
        (b"*2\r\n:1\r\n:2\r\n", Outcome.FAILED),
        (b"-LOADING the dataset\r\n", Outcome.FAILED),
        (b"-ASK 5 127.0.0.1:1\r\n", Outcome.FAILED),
        (b"-MOVED 5 127.0.0.1:1\r\n", Outcome.FAILED),
        (b"HTTP/1.1 200 OK\r\n\r\n", Outcome.FAILED),
        (b"\0" * 5000, Outcome.FAILED),
    ],
)
def test_answers_to_get(answer: bytes, outcome: Outcome) -> None:
    with Liar(to_get(answer)) as liar, engine_of(liar) as engine:
        assert engine.get("full", KEYS[:1], pages(1)) == [outcome]


@pytest.mark.parametrize("answer", [b"$99999999999999\r\n", b"$%d\r\n" % (64 << 20), b"$%d\r\nshort" % SIZE])
def test_answers_to_get_that_never_end(answer: bytes) -> None:
    with Liar(to_get(answer)) as liar, engine_of(liar) as engine, brief_answers(engine):
        assert engine.get("full", KEYS[:1], pages(1)) == [Outcome.FAILED]


def test_a_server_that_hangs_up_within_a_page() -> None:
    def script(accepted: socket.socket, name: bytes) -> None:
        if name != b"GET":
            accepted.sendall(GOOD[name])
            return
        accepted.sendall(b"$%d\r\n%b\r\n$%d\r\nhalf" % (SIZE, bytes(SIZE), SIZE))
        accepted.shutdown(socket.SHUT_RDWR)

    with Liar(script) as liar, engine_of(liar) as engine:
        assert engine.get("full", KEYS, pages(3)) == [Outcome.DONE, Outcome.FAILED, Outcome.FAILED]


def test_a_server_that_trickles_is_given_up_and_its_page_left_alone() -> None:
    def script(accepted: socket.socket, name: bytes) -> None:
        if name != b"GET":
            accepted.sendall(GOOD[name])
            return
        accepted.sendall(b"$%d\r\n" % SIZE)
        while True:  # a byte at a time, each well within any limit of a single wait
            accepted.sendall(b"x")
            time.sleep(0.02)

    with Liar(script) as liar, engine_of(liar) as engine, brief_answers(engine):
        page = pages(1)
        assert engine.get("full", KEYS[:1], page) == [Outcome.FAILED]
        page[0][:] = bytes(SIZE)
    assert page == pages(1), "the server found itself hung up on"


def test_a_page_too_many_is_never_taken_for_the_next_answer() -> None:
    answer = b"$%d\r\n%b\r\n" % (SIZE, b"a" * SIZE)
    replies = [answer + answer, b"$%d\r\n%b\r\n" % (SIZE, b"b" * SIZE)]
    is_sent = threading.Event()

    def script(accepted: socket.socket, name: bytes) -> None:
        accepted.sendall(replies.pop(0) if name == b"GET" else GOOD[name])
        if name == b"GET":
            is_sent.set()

    with Liar(script) as liar, engine_of(liar) as engine:
        first, second = pages(2)
        assert engine.get("full", KEYS[:1], [first]) == [Outcome.DONE]
        assert is_sent.wait(PATIENCE_S)
        assert engine.get("full", KEYS[1:2], [second]) == [Outcome.DONE]
        assert bytes(second) == b"b" * SIZE
        assert liar.connections == 2


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (b"+OK\r\n", Outcome.DONE),
        (b"$-1\r\n", Outcome.PRESENT),
        (b"-OOM command not allowed\r\n", Outcome.DROPPED),
        (b":1\r\n", Outcome.FAILED),
        (b"+QUEUED\r\n", Outcome.FAILED),
        (b"-CLUSTERDOWN Hash slot not served\r\n", Outcome.FAILED),
        (b"?\r\n", Outcome.FAILED),
    ],
)
def test_answers_to_set(answer: bytes, outcome: Outcome) -> None:
    with Liar(lambda a, name: a.sendall(answer if name == b"SET" else GOOD[name])) as liar, engine_of(liar) as engine:
        assert engine.put("full", KEYS[:1], pages(1)) == [outcome]


@pytest.mark.parametrize("text", ["MISCONF Errors writing to disk", "READONLY a replica", "ERR unknown command"])
def test_refusals_of_everything_are_quoted(text: str) -> None:
    with (
        Liar(lambda a, name: a.sendall(f"-{text}\r\n".encode() if name == b"SET" else GOOD[name])) as liar,
        engine_of(liar) as engine,
        pytest.raises(StorageError, match=f"refuses: .*{text.partition(' ')[2]}"),
    ):
        engine.put("full", KEYS, pages(3))


def test_a_server_that_loads_is_left_alone_for_a_pause() -> None:
    with Liar(to_get(b"-LOADING the dataset\r\n")) as liar, engine_of(liar) as engine:
        assert engine.get("full", KEYS, pages(3)) == [Outcome.FAILED] * 3
        assert engine.stats().is_degraded
        assert engine.get("full", KEYS, pages(3)) == [Outcome.MISSING] * 3


@pytest.mark.parametrize(
    "table",
    [
        b"*1\r\n:1\r\n",
        TABLE % (5, b"a\0b.c"),
        TABLE % (70, b"x" * 70),
        b"$2\r\nno\r\n",
        b"*1\r\n*3\r\n:0\r\n:99999\r\n*2\r\n$1\r\nh\r\n:1\r\n",
    ],
)
def test_a_table_of_slots_that_is_none_is_refused(table: bytes) -> None:
    answers = GOOD | {b"CLUSTER": table}
    with Liar(lambda a, name: a.sendall(answers[name])) as liar, pytest.raises(StorageError, match="CLUSTER SLOTS"):
        RedisStorage([POOL], RedisSettings(address=liar.address, cluster=True, **PATIENT))


def test_a_cluster_that_moved_away_altogether_is_found_by_its_first_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        gone = int(unused.getsockname()[1])
    ports: list[int] = [gone]

    def script(accepted: socket.socket, name: bytes) -> None:
        table = b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:%d\r\n" % ports[0]
        accepted.sendall((GOOD | {b"CLUSTER": table, b"EXISTS": b":1\r\n"})[name])

    with Liar(script) as seed, Liar(script) as later:
        engine = RedisStorage([POOL], RedisSettings(address=seed.address, cluster=True, retry_pause_s=0.05, **PATIENT))
        with pytest.raises(StorageError, match="no server answers"):
            engine.exists("full", KEYS)
        ports[0] = int(later.address.rpartition(":")[2])

        def is_found() -> bool:
            with contextlib.suppress(StorageError):
                engine.exists("full", KEYS)
            return b"EXISTS" in later.commands

        wait_until(is_found, "the later server is not found")
        engine.close()
        assert b"EXISTS" not in seed.commands


def test_a_web_server_is_no_redis() -> None:
    refused = pytest.raises(StorageError, match=r"(?i)no server lets us in.*protocol error")
    with Liar(lambda a, _: a.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as liar, refused:
        RedisStorage([POOL], RedisSettings(address=liar.address, **PATIENT))
