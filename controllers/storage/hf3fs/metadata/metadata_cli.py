"""`unified-tree-3fs-metadata`: run the metadata service until SIGTERM or SIGINT.

It says `listening on http://HOST:PORT` when it can be asked. The token may be in UNIFIED_TREE_HF3FS_TOKEN, where the other
processes of the machine cannot read it as they can a command line.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import sys
from pathlib import Path

from aiohttp import web

from unified_tree.controllers.storage.hf3fs.metadata.metadata_service import application
from unified_tree.controllers.storage.hf3fs.metadata.metadata_state import MetadataState
from unified_tree.controllers.storage.hf3fs.metadata.state_directory import StateDirectory
from unified_tree.errors import StorageError

TOKEN_VARIABLE = "UNIFIED_TREE_HF3FS_TOKEN"


def main(arguments: list[str] | None = None) -> int:
    """Serve; 0 after a signal, 1 where the state or the address cannot be used."""
    parser = argparse.ArgumentParser(prog="unified-tree-3fs-metadata", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--state", type=Path, required=True, help="directory for the state, which survives the service")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; anything but loopback wants a token")
    parser.add_argument("--port", type=int, default=18300, help="0 for any")
    parser.add_argument("--lease-s", type=float, default=30.0, help="how long readers and writers own their pages")
    parser.add_argument(
        "--aside-s", type=float, default=300.0, help="how long pages rest, after the lease, whose writers vanished"
    )
    parser.add_argument("--sync", action="store_true", help="flush every change to the disk before it is answered")
    options = parser.parse_args(arguments)
    if not options.lease_s > 0 or not options.aside_s >= 0:
        parser.error("--lease-s must be positive and --aside-s not negative")
    token = os.environ.get(TOKEN_VARIABLE, "")
    try:
        state = MetadataState(
            StateDirectory(options.state, sync=options.sync),
            lease_s=options.lease_s,
            aside_s=options.aside_s,
            draw=lambda: secrets.randbits(62),
        )
    except StorageError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        asyncio.run(_serve(state, token, options.host, options.port))
    except OSError as error:
        print(f"cannot listen on {options.host}:{options.port}: {error}", file=sys.stderr)
        return 1
    finally:
        state.close()
    return 0


async def _serve(state: MetadataState, token: str, host: str, port: int) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    runner = web.AppRunner(
        application(state, token), access_log=None, handle_signals=False, keepalive_timeout=3600, read_bufsize=1 << 20
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, shutdown_timeout=1)
        await site.start()
        for address in runner.addresses:
            print(f"listening on http://{address[0]}:{address[1]}", flush=True)
        await ended.wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    sys.exit(main())
