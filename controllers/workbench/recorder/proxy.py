"""A reverse proxy that records: it stands before one server and passes everything on as it is.

Bytes go through in the pieces in which they come, both ways, so a stream of events arrives as it is sent. What is recorded is
noted on the side: the bytes of a request and of its answer, up to a bound for each and one for all, which are given to the
recorder when the answer has ended. Nothing of that can change, delay or end what passes.

Not passed on are the headers that belong to one connection (RFC 9110, 7.6.1). The address is always that of the one server,
whatever the request line says. Each request has a connection of its own to the server: one that
is kept open may be closed by the server just when a request is written, which the client would see as an error of the proxy's
making. If a client leaves, so does the connection to the server, which ends the work on it. A server that breaks off has its
client's connection broken off, so that half an answer never looks like a whole one. WebSockets are not passed on, and headers
that are not UTF-8 are refused. A request takes some 0.8 ms longer.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from multidict import CIMultiDict
from yarl import URL

from unified_tree.controllers.workbench.recorder.exchanges import Exchange, Kind, kind_of
from unified_tree.controllers.workbench.recorder.recorder import UNREADABLE
from unified_tree.controllers.workbench.recorder.trace_writer import LOG
from unified_tree.inputs.arguments import integer
from unified_tree.inputs.printable import printable, traceback_of
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from aiohttp import ClientResponse

    from unified_tree.controllers.workbench.recorder.exchanges import ExchangeReader
    from unified_tree.controllers.workbench.recorder.recorder import Recorder

TOO_LARGE: Final = "larger than is kept"
UNSERVED: Final = "not served"
"""Refused by the server, which may be down, or given up by its client before the answer began."""
OF_A_CONNECTION = {
    *("connection", "expect", "host", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"),
    *("trailer", "transfer-encoding", "upgrade"),
}
ADDED_TO_REQUESTS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
ADDED_TO_ANSWERS = ("Content-Type", "Date", "Server")
"""Headers that aiohttp adds where they are missing."""
SHUTDOWN_S = 5.0
QUIET = logging.getLogger("unified_tree.recorder.http")
"""aiohttp logs what it cannot parse, with the bytes: a prompt, say."""
QUIET.disabled = True
MAX_HEADER_BYTES = 1 << 16
CONNECT_S = 30.0
DEFAULT_LONGEST_BYTES = 8 << 20
DEFAULT_KEPT_BYTES = 256 << 20


@dataclass(slots=True)
class Kept:
    """The bounds of what a proxy has noted and not yet given to its recorder: of one request with its answer, and of all."""

    longest_bytes: int
    room_bytes: int


class Note:
    """Notes of one request. Beyond its bounds it gives up, and forgets what it has then.

    Args:
        kept: the bounds.
        kind: what is asked for; None for what is not recorded.
        time_ms: when it came.

    Attributes:
        body, answer: as far as they have passed.
        is_whole: whether nothing is missing.
        is_served: whether the server has begun to answer it well.
        is_stream: whether the answer is a stream of events.
    """

    def __init__(self, kept: Kept, kind: Kind | None, time_ms: int) -> None:
        self._kept = kept
        self._size = 0
        self.kind = kind
        self.time_ms = time_ms
        self.body = bytearray()
        self.answer = bytearray()
        self.is_whole = True
        self.is_served = False
        self.is_stream = False

    def add(self, to: bytearray, piece: bytes) -> None:
        """Note a piece of the body or of the answer."""
        if self.kind is None or not self.is_whole:
            return
        if self._size + len(piece) > self._kept.longest_bytes or len(piece) > self._kept.room_bytes:
            self.forget()
            self.is_whole = False
            return
        to += piece
        self._size += len(piece)
        self._kept.room_bytes -= len(piece)

    def forget(self) -> None:
        """Give the room back. Idempotent."""
        self._kept.room_bytes += self._size
        self._size = 0
        self.body, self.answer = bytearray(), bytearray()


class RecordingProxy:
    """Passes requests to a server, and records those with a prompt.

    Args:
        server: its address, `http://HOST:PORT`, maybe with a path before its own.
        recorder: takes what was served.
        reader: reads it, in the recorder's thread.
        longest_bytes: a request is recorded up to so many bytes of body and answer.
        kept_bytes: all that is kept of requests that run has no more.
        time_ms: a clock, milliseconds since 1970.

    Raises ConfigurationError for an address that is none.
    """

    def __init__(
        self,
        server: str,
        recorder: Recorder,
        reader: ExchangeReader,
        *,
        longest_bytes: int | Any = DEFAULT_LONGEST_BYTES,
        kept_bytes: int | Any = DEFAULT_KEPT_BYTES,
        time_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._server = server_address(server)
        self._recorder = recorder
        self._reader = reader
        self._kept = Kept(
            integer(longest_bytes, "longest_bytes", ConfigurationError, minimum=1),
            integer(kept_bytes, "kept_bytes", ConfigurationError, minimum=1),
        )
        self._time_ms = time_ms
        self._client: ClientSession | None = None
        self._runner: web.AppRunner | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen; the address. Raises OSError if that cannot be done."""
        self._client = ClientSession(
            auto_decompress=False,
            connector=TCPConnector(limit=0, force_close=True),
            cookie_jar=DummyCookieJar(),
            max_field_size=MAX_HEADER_BYTES,
            max_line_size=MAX_HEADER_BYTES,
            skip_auto_headers=ADDED_TO_REQUESTS,
            timeout=ClientTimeout(total=None, sock_connect=CONNECT_S),
            trust_env=False,
        )
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._pass)
        app.on_response_prepare.append(_leave_out)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,
            handler_cancellation=True,
            logger=QUIET,
            max_field_size=MAX_HEADER_BYTES,
            max_line_size=MAX_HEADER_BYTES,
            shutdown_timeout=SHUTDOWN_S,
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError:
            await self.stop()
            raise
        bound = self._runner.addresses[0]
        return f"http://[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"http://{bound[0]}:{bound[1]}"

    async def stop(self) -> None:
        """Take no more requests, and end those that run after a while. Idempotent."""
        runner, self._runner = self._runner, None
        client, self._client = self._client, None
        if runner is not None:
            await runner.cleanup()
        if client is not None:
            await client.close()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        """Pass one request on, and its answer back."""
        target = request.raw_path
        if not target.startswith("/"):
            return _error(400, "the request must name a path")
        if not is_text(request.headers):
            return _error(400, "the headers must be UTF-8")
        note = Note(self._kept, kind_of(request.method, target.partition("?")[0]), self._time_ms())
        try:
            return await self._exchange(request, target, note)
        finally:  # also where the client has left
            self._record(note)

    async def _exchange(self, request: web.Request, target: str, note: Note) -> web.StreamResponse:
        assert self._client is not None
        asked = self._client.request(
            request.method,
            URL(self._server + target, encoded=True),
            headers=passed_headers(request.headers),
            data=_pieces(request, note) if request.body_exists else None,
            allow_redirects=False,
        )
        try:
            answer = await asked
        except (ClientError, OSError, ValueError) as error:
            return _error(502, f"{self._server} does not answer: {printable(str(error) or type(error).__name__, 200)}")
        async with answer:
            return await _answered(request, answer, note)

    def _record(self, note: Note) -> None:
        """Give what was noted to the recorder. Never raises."""
        if note.kind is None:
            return
        try:
            if not note.is_served:
                self._recorder.drop(UNSERVED)
            elif not note.is_whole:
                self._recorder.drop(TOO_LARGE)
            else:
                exchange = Exchange(
                    time_ms=note.time_ms,
                    kind=note.kind,
                    body=bytes(note.body),
                    answer=bytes(note.answer),
                    is_stream=note.is_stream,
                )
                self._recorder.offer(lambda: self._reader.read(exchange), len(exchange.body) + len(exchange.answer))
        except Exception as error:
            self._recorder.drop(UNREADABLE)
            LOG.error("a request could not be recorded: %s", traceback_of(error))
        finally:
            note.forget()


class PassedAnswer(web.StreamResponse):
    """An answer of the server.

    Attributes:
        left_out: headers that it does not have.
    """

    left_out: Sequence[str] = ()


async def _pieces(request: web.Request, note: Note) -> AsyncIterator[bytes]:
    """The body, as it comes."""
    async for piece in request.content.iter_any():
        note.add(note.body, piece)
        yield piece


async def _answered(request: web.Request, answer: ClientResponse, note: Note) -> web.StreamResponse:
    """Pass an answer back."""
    if not is_text(answer.headers):
        return _error(502, "the headers of the server's answer are not UTF-8")
    note.is_served = 200 <= answer.status < 300
    note.is_stream = answer.content_type == "text/event-stream"
    response = PassedAnswer(status=answer.status, reason=answer.reason, headers=passed_headers(answer.headers))
    response.left_out = [name for name in ADDED_TO_ANSWERS if name not in answer.headers]
    try:
        await response.prepare(request)
        async for piece in answer.content.iter_any():
            note.add(note.answer, piece)
            await response.write(piece)
        await response.write_eof()
    except (ClientError, OSError):  # the server or the client has broken off
        if request.transport is not None:
            request.transport.abort()
    return response


async def _leave_out(request: web.Request, response: web.StreamResponse) -> None:
    """Take back the headers that aiohttp adds and the server had not sent."""
    del request
    for name in response.left_out if isinstance(response, PassedAnswer) else ():
        response.headers.popall(name, None)


def passed_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """The headers that are passed on: all but those of one connection, which `Connection` may name more of."""
    named = {name.strip().lower() for key, value in headers.items() if key.lower() == "connection" for name in value.split(",")}
    left_out = OF_A_CONNECTION | (named - {"content-length", "content-type", "content-encoding"})
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in left_out)


def is_text(headers: Mapping[str, str]) -> bool:
    """Whether headers can be passed on: aiohttp leaves out bytes that are not UTF-8, which it has read as lone surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for value in headers.values() for letter in value if letter > "\x7f")


def server_address(text: str) -> str:
    """The address of a server without a slash at its end. Raises ConfigurationError for anything else."""
    try:
        url = URL(text)
        port = url.port
    except ValueError:
        url, port = URL(), None
    if url.scheme not in ("http", "https") or not url.host or port is None or url.user or url.query_string or url.fragment:
        raise ConfigurationError(f"a server is given as http://HOST:PORT, not {printable(text, 200)!r}")
    return str(url).rstrip("/")


def _error(status: int, message: str) -> web.Response:
    """An error of the proxy's own, in the form of the OpenAI API."""
    return web.json_response({"error": {"message": message, "type": "proxy_error", "code": status}}, status=status)
