"""A process that becomes `lmcache server`. It is forked from one that has imported the package, which takes seconds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess

IMPORTED = (
    "lmcache.cli.main",
    "lmcache.cli.commands.server",
    "lmcache.v1.distributed.l2_adapters.dax_l2_adapter",
    "lmcache.v1.multiprocess.http_server",
    "lmcache.v1.multiprocess.transport.zmq_impl.server",
)


def start_server(arguments: Sequence[str], output: str) -> ForkServerProcess:
    """What the script `lmcache` does with these arguments, in a process group of its own; all it writes goes to a file."""
    context = get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    process = context.Process(target=_serve, args=(["server", *arguments], output), daemon=True)
    process.start()
    return process


def _serve(arguments: list[str], output: str) -> None:
    os.setsid()
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ |= {"LMCACHE_TRACK_USAGE": "false", "DO_NOT_TRACK": "1"}
    import_module("lmcache.cli.main").main(arguments)
