"""`python -m benches.storage_redis`: the Redis engine beside redis-py with hiredis, on one server, over TCP and a unix socket.

Question: what do the engine's checks, bounded waits and outcomes cost or gain beside redis-py's own client?
Not: what a network would leave of it; server and client share this machine's cores.

redis-py's client stores and reads the same pages in one pipeline, and copies what it read into the pages. The engine uses
redis-py's connections; it sends pages without copying them, and copies each into its place as soon as it is read.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benches.contestants import ROOT
from benches.rounds import options_of, told, written
from benches.storage_rounds import HEAD, Contestant, Pages, engine_contestants, measure_cases, pool_of
from unified_tree.controllers.storage.redis import RedisSettings, RedisStorage

sys.path.append(str(ROOT / "tests" / "support"))


def bare(address: str) -> Contestant:
    """redis-py, in one pipeline a batch."""
    redis: Any = importlib.import_module("redis")
    where: dict[str, Any] = {}
    if address.startswith("unix:"):
        where["unix_socket_path"] = address.removeprefix("unix:")
    else:
        where["host"], where["port"] = address.split(":")
    client = redis.Redis(**where)

    def put(keys: Sequence[bytes], views: Sequence[memoryview]) -> None:
        pipeline = client.pipeline(transaction=False)
        for key, view in zip(keys, views, strict=True):
            pipeline.set(key.hex(), view)
        if not all(pipeline.execute()):
            raise RuntimeError("redis-py's put failed")

    def get(keys: Sequence[bytes], views: Sequence[memoryview]) -> None:
        pipeline = client.pipeline(transaction=False)
        for key in keys:
            pipeline.get(key.hex())
        for value, view in zip(pipeline.execute(), views, strict=True):
            view[:] = value

    return Contestant(name="redis-py", put=put, get=get, remove=lambda keys: client.unlink(*(key.hex() for key in keys)))


@contextmanager
def contestants(address: str, pages: Pages) -> Iterator[list[Contestant]]:
    """redis-py, and the engine, on one server."""
    engine = RedisStorage([pool_of(pages.page_bytes)], RedisSettings(address=address))
    yield [bare(address), *engine_contestants(engine)]
    engine.close()


def main(arguments: list[str] | None = None) -> int:
    """Measure and report; 1 if bytes did not arrive as they were sent, 2 where there is no server or no redis-py."""
    options = options_of("storage_redis", __doc__, quick="two small cases and two rounds", rounds=31).parse_args(arguments)
    import redis_server

    if redis_server.program() is None or importlib.util.find_spec("redis") is None:
        print("this needs redis-server (Debian's package of that name), and pip install redis hiredis", file=sys.stderr)
        return 2
    where = told()
    found = []
    for over in ("tcp", "unix"):
        print(f"\n{over}\n{HEAD}")
        with tempfile.TemporaryDirectory() as folder, redis_server.Redis(Path(folder), over=over) as server:
            found += [row | {"over": over} for row in measure_cases(options, partial(contestants, server.address))]
    return written(found, where, options.json)


if __name__ == "__main__":
    sys.exit(main())
