"""`python -m benches.storage_mooncake`: how much of the bare Mooncake client's speed over TCP is left behind the engine's seam.

Question: what do the batch's checks, the query before a put, and the checksums cost?
Not: what RDMA or another machine would give; master, peer and client share this one's cores.

The bare client is the engine's own, on the same connections and the same registered memory, called with addresses made before
the clock starts: two clients differ from each other by more than the engine costs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from benches.contestants import ROOT
from benches.rounds import options_of, told, written
from benches.storage_rounds import HEAD, Contestant, Pages, engine_contestants, measure_cases, pool_of
from unified_tree.controllers.storage.mooncake import MooncakeSettings, MooncakeStorage
from unified_tree.controllers.storage.mooncake.mooncake_storage import MooncakeClient
from unified_tree.controllers.storage.registered_storage import address_of

sys.path.append(str(ROOT / "tests" / "support"))


def bare(client: MooncakeClient, pages: Pages) -> Contestant:
    """The client, called as its own examples do."""
    addresses = {id(page): address_of(page) for page in (*pages.stored, *pages.read)}

    def put(keys: Sequence[bytes], views: Sequence[memoryview]) -> None:
        names = [key.hex() for key in keys]
        if set(client.put_from(names, [addresses[id(view)] for view in views], views[0].nbytes)) != {0}:
            raise RuntimeError("the bare client's put failed")

    def get(keys: Sequence[bytes], views: Sequence[memoryview]) -> None:
        names, size = [key.hex() for key in keys], views[0].nbytes
        if set(client.get_into(names, [addresses[id(view)] for view in views], size)) != {size}:
            raise RuntimeError("the bare client's get failed")

    return Contestant(name="bare client", put=put, get=get, remove=lambda keys: _removed(client, keys))


def _removed(client: MooncakeClient, keys: Sequence[bytes]) -> None:
    client.remove([key.hex() for key in keys])


@contextmanager
def contestants(settings: MooncakeSettings, pages: Pages) -> Iterator[list[Contestant]]:
    """The client, and the engine over it."""
    client = MooncakeClient(settings)
    engine = MooncakeStorage([pool_of(pages.page_bytes)], settings, client)
    engine.register([pages.memory])
    yield [bare(client, pages), *engine_contestants(engine)]
    engine.close()


def main(arguments: list[str] | None = None) -> int:
    """Measure and report; 1 if bytes did not arrive as they were sent, 2 where no Mooncake can run."""
    options = options_of("storage_mooncake", __doc__, quick="two small cases and two rounds", rounds=31).parse_args(arguments)
    import mooncake_server

    reason = mooncake_server.why_not()
    if reason is not None:
        print(f"no Mooncake: {reason}", file=sys.stderr)
        return 2
    where = told(HEAD)
    with mooncake_server.Mooncake(segment_bytes=(64 if options.quick else 1024) << 20) as server:
        found = measure_cases(options, partial(contestants, MooncakeSettings(master=server.master)))
    return written(found, where, options.json)


if __name__ == "__main__":
    sys.exit(main())
