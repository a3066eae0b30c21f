"""The metadata service over HTTP, and the command `unified-tree-3fs-metadata`, which runs it until SIGTERM or SIGINT.

    GET  /health                                 {"status": "ok"}, to anybody
    GET  /v1/stats                               counts and gauges by rank and namespace
    POST /v1/open    {rank, namespaces, seen, may_replace}   {epoch, lease_s}
    POST /v1/clear   {rank, epoch, namespace}    {removed}
    POST /v1/lookup, read, reserve, confirm, delete    ?rank=&epoch=&namespace=, for `confirm` &lease=; see `metadata_wire`

A refusal is {"error": …}: 400 for what is no request, 401 without the token, 404 for an unknown namespace, 409 for a rank
that others use otherwise, 410 for another epoch than the rank's, 503 where the state cannot be written.

The event loop answers one request after the other. Checkpoints of the database, which wait for the disk, run in a thread.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from aiohttp import web

from unified_tree.controllers.storage.engine_settings import SECONDS, check_number, is_loopback
from unified_tree.controllers.storage.hf3fs.metadata.metadata_state import MetadataState
from unified_tree.controllers.storage.hf3fs.metadata.page_table import RefusedError, Shape
from unified_tree.controllers.storage.hf3fs.metadata.state_database import StateDatabase
from unified_tree.controllers.storage.hf3fs.metadata_wire import (
    LARGEST_BATCH,
    UNKNOWN,
    UNWRITTEN,
    WRITTEN,
    WireError,
    pack_answer,
    unpack_request,
)
from unified_tree.terms.errors import ConfigurationError, StorageError

_LARGEST_BODY_BYTES = LARGEST_BATCH * 48 + (8 << 20)
_BINARY = "application/octet-stream"
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(state: MetadataState, token: str = "", *, checkpoint_s: float = 1.0) -> web.Application:
    """The service as an application of aiohttp; the state stays the caller's, who closes it after the application.

    Args:
        state: what it serves.
        token: every request but for health must bear it; "" for none, which is for loopback alone.
        checkpoint_s: between two checkpoints, where something changed.

    Raises ConfigurationError for a token that no client can send, or an invalid pause.
    """
    check_number("checkpoint_s", checkpoint_s, float, SECONDS)
    if not token.isascii() or not token.isprintable() or token != token.strip():
        raise ConfigurationError("the token must be printable ASCII without white space around it, which what was given is not")
    service = _Service(state)
    made = web.Application(client_max_size=_LARGEST_BODY_BYTES, middlewares=[_guard(token)])
    made.cleanup_ctx.append(lambda _: _checkpoints(state, checkpoint_s))
    made.router.add_get("/health", _health)
    made.router.add_get("/v1/stats", service.stats)
    for name in ("open", "clear", "lookup", "read", "reserve", "confirm", "delete"):
        made.router.add_post(f"/v1/{name}", getattr(service, name))
    return made


async def _checkpoints(state: MetadataState, pause_s: float) -> AsyncIterator[None]:
    """Take them while the application runs."""
    ended = asyncio.Event()

    async def take() -> None:
        while not ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), pause_s)
            with suppress(StorageError):  # the log goes on, and the next one tries again
                await asyncio.to_thread(state.checkpoint)

    task = asyncio.create_task(take())
    yield
    ended.set()
    await task


def _guard(token: str) -> Any:
    expected = _digest(f"Bearer {token}".encode())

    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if token and request.path != "/health" and not hmac.compare_digest(_digest(given), expected):
            return _refused(401, "the token is missing or another")
        try:
            return await handler(request)
        except RefusedError as error:
            return _refused(error.status, str(error))
        except WireError as error:
            return _refused(400, str(error))

    return guard


def _digest(text: bytes) -> bytes:
    """Of equal length, so that comparing two takes equally long, however long the texts are."""
    return sha256(text).digest()


def _refused(status: int, reason: str) -> web.Response:
    return web.json_response({"error": reason}, status=status)


async def _health(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


class _Service:
    def __init__(self, state: MetadataState) -> None:
        self._state = state

    async def stats(self, _: web.Request) -> web.Response:
        return web.json_response(self._state.stats())

    async def open(self, request: web.Request) -> web.Response:
        said = await _json(request)
        try:
            described = _exactly(said, _OPEN)
            shapes = {}
            for of in described["namespaces"]:
                _exactly(of, _NAMESPACE)
                if of["namespace"] in shapes:
                    raise ValueError(f"{of['namespace']!r} stands twice")
                shapes[of["namespace"]] = Shape(of["format"], _positive(of["stride_bytes"]), _positive(of["page_count"]))
            rank, seen, may_replace = described["rank"], described["seen"], described["may_replace"]
            sizes = [len(name.encode()) for name in (rank, *shapes)]
        except ValueError as error:
            raise WireError(f"no description of a rank: {error}") from error
        if not shapes or any(not 0 < size < 256 for size in sizes):
            raise WireError("a rank and its namespaces must have names of at most 255 bytes")
        epoch = self._state.open(rank, shapes, seen, may_replace=may_replace)
        return web.json_response({"epoch": epoch, "lease_s": self._state.lease_s})

    async def clear(self, request: web.Request) -> web.Response:
        said = await _json(request)
        try:
            _exactly(said, _CLEAR)
        except ValueError as error:
            raise WireError(f"no namespace of a rank: {error}") from error
        return web.json_response({"removed": self._state.clear(said["rank"], said["epoch"], said["namespace"])})

    async def lookup(self, request: web.Request) -> web.Response:
        ended, keys, _ = unpack_request(await request.read())
        return _answer(self._state.lookup(*_where(request), keys, ended))

    async def read(self, request: web.Request) -> web.Response:
        ended, keys, _ = unpack_request(await request.read())
        lease, pages = self._state.read(*_where(request), keys, ended)
        return _answer(pages, lease)

    async def reserve(self, request: web.Request) -> web.Response:
        ended, keys, _ = unpack_request(await request.read())
        lease, pages = self._state.reserve(*_where(request), keys, ended)
        return _answer(pages, lease)

    async def confirm(self, request: web.Request) -> web.Response:
        ended, keys, flags = unpack_request(await request.read(), has_flags=True)
        if not set(flags) <= {WRITTEN, UNWRITTEN, UNKNOWN}:
            raise WireError(f"flags must be among {WRITTEN}, {UNWRITTEN} and {UNKNOWN}, not {sorted(set(flags))}")
        return _answer(self._state.confirm(*_where(request), _number(request, "lease"), keys, flags, ended))

    async def delete(self, request: web.Request) -> web.Response:
        ended, keys, _ = unpack_request(await request.read())
        return _answer(self._state.delete(*_where(request), keys, ended))


async def _json(request: web.Request) -> dict[str, Any]:
    try:
        said = json.loads(await request.read())
    except ValueError as error:
        raise WireError(f"no JSON: {error}") from error
    if not isinstance(said, dict):
        raise WireError(f"no JSON object but {type(said).__name__}")
    return said


_OPEN = {"rank": str, "namespaces": list, "seen": int, "may_replace": bool}
_NAMESPACE = {"namespace": str, "format": str, "stride_bytes": int, "page_count": int}
_CLEAR = {"rank": str, "epoch": int, "namespace": str}


def _exactly(said: Any, wanted: dict[str, type]) -> dict[str, Any]:
    """The same, if it has these names and no others, each with a value of just that type. Raises ValueError."""
    if not isinstance(said, dict) or {name: type(value) for name, value in said.items()} != wanted:
        raise ValueError(f"{', '.join(f'{name}: {of.__name__}' for name, of in wanted.items())} are expected, not {said!r}")
    return said


def _where(request: web.Request) -> tuple[str, int, str]:
    return request.query.get("rank", ""), _number(request, "epoch"), request.query.get("namespace", "")


def _number(request: web.Request, name: str) -> int:
    text = request.query.get(name, "")
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise WireError(f"{name} must be a number, not {text!r}")
    return int(text)


def _positive(value: object) -> int:
    if type(value) is not int or not 0 < value < 1 << 48:
        raise ValueError(f"{value!r} is no positive integer")
    return value


def _answer(answers: list[int], lease: int = 0) -> web.Response:
    return web.Response(body=pack_answer(answers, lease), content_type=_BINARY)


TOKEN_VARIABLE = "unified_tree__hf3fs__token"
ABOUT = """\
It says `listening on http://HOST:PORT` when it can be asked. The token is in the variable unified_tree__hf3fs__token, where the
other processes of the machine cannot read it as they can a command line. Without one the service listens on loopback only.
"""


def main(arguments: list[str] | None = None) -> int:
    """Serve; 0 after a signal, 1 where the state or the address cannot be used, 2 for invalid options."""
    options = _options(arguments)
    token = os.environ.get(TOKEN_VARIABLE, "")
    try:
        addresses = _addresses(options.host, options.port)
        check_token(token, addresses)
        state = MetadataState(
            StateDatabase(
                options.state,
                sync=options.sync,
                log_bytes=options.log_mib << 20,
                commit_wait_s=options.commit_wait_s,
            ),
            lease_s=options.lease_s,
            aside_s=options.aside_s,
            draw=lambda: secrets.randbits(62),
        )
    except ConfigurationError as error:
        print(_line(error), file=sys.stderr)
        return 2
    except (OSError, StorageError) as error:
        print(_line(error), file=sys.stderr)
        return 1
    try:
        served = application(state, token, checkpoint_s=options.checkpoint_s)
        asyncio.run(_serve(served, addresses, options.port))
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"cannot listen on {options.host}:{options.port}: {error}", file=sys.stderr)
        return 1
    finally:
        state.close()
    return 0


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def check_token(token: str, addresses: list[str]) -> None:
    """Raise ConfigurationError for addresses that others can reach where there is no token. No name is looked up."""
    reachable = [address for address in addresses if not is_loopback(address)]
    if reachable and not token:
        raise ConfigurationError(
            f"without a token only loopback can be listened on, not {', '.join(reachable)}: set {TOKEN_VARIABLE}, or "
            "--host 127.0.0.1"
        )


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="unified-tree-3fs-metadata", description=ABOUT)
    add = parser.add_argument
    add("--state", type=Path, required=True, help="directory for the state, which survives the service")
    add(
        "--host",
        default="127.0.0.1",
        help="address to listen on; the service does not start on any but loopback without a token",
    )
    add("--port", type=int, default=18300, help="0 for any")
    add("--lease-s", type=float, default=30.0, help="how long readers and writers own their pages")
    add("--aside-s", type=float, default=300.0, help="how long pages rest, after the lease, whose writers vanished")
    add("--sync", action="store_true", help="flush every change to the disk before it is answered")
    add("--checkpoint-s", type=float, default=1.0, help="between two checkpoints, which flush what was changed")
    add("--log-mib", type=int, default=64, help="a log longer than this is begun anew, and changes wait for that")
    add("--commit-wait-s", type=float, default=1.0, help="how long a change waits for the disk before it is refused")
    options = parser.parse_args(arguments)
    if not 0 <= options.port < 1 << 16:
        parser.error(f"--port must be 0 to 65535, not {options.port}")
    if not options.host:
        parser.error("--host must be an address or a name")
    return options


def _addresses(host: str, port: int) -> list[str]:
    """What a host is called in numbers, each once: these are checked, and just these are listened on.

    Raises OSError for one that is not known, and ConfigurationError for what can be none.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except ValueError as error:  # UnicodeError is one
        raise ConfigurationError(f"--host must be an address or a name, not {host!r}: {error}") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def _serve(served: web.Application, addresses: list[str], port: int) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    runner = web.AppRunner(served, access_log=None, handle_signals=False, keepalive_timeout=3600, read_bufsize=1 << 20)
    await runner.setup()
    try:
        for address in addresses:
            await web.TCPSite(runner, address, port, shutdown_timeout=1).start()
        for address in runner.addresses:
            host = f"[{address[0]}]" if ":" in address[0] else address[0]
            print(f"listening on http://{host}:{address[1]}", flush=True)
        await ended.wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    sys.exit(main())
