"""`unified-tree-3fs-metadata`: run the metadata service until SIGTERM or SIGINT.

It says `listening on http://HOST:PORT` when it can be asked. The token is in the variable unified_tree__hf3fs__token, where the
other processes of the machine cannot read it as they can a command line. Without one the service listens on loopback only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import socket
import sys
from pathlib import Path

from aiohttp import web

from unified_tree.controllers.storage.engine_settings import is_loopback
from unified_tree.controllers.storage.hf3fs.metadata.metadata_service import application
from unified_tree.controllers.storage.hf3fs.metadata.metadata_state import MetadataState
from unified_tree.controllers.storage.hf3fs.metadata.state_database import StateDatabase
from unified_tree.terms.errors import ConfigurationError, StorageError

TOKEN_VARIABLE = "unified_tree__hf3fs__token"


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
    parser = argparse.ArgumentParser(prog="unified-tree-3fs-metadata", description=(__doc__ or "").split("\n\n")[1])
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
