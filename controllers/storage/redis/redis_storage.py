"""Pages in Redis or Valkey, each a string. The server decides what it keeps how long: memory limit, eviction policy, TTL.

A key is the prefix, the first 8 bytes of the pool's format digest and the key, the latter two in hex, with colons between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from unified_tree.controllers.storage.engine_settings import engine_opener
from unified_tree.controllers.storage.guarded_storage import GuardedStorage
from unified_tree.controllers.storage.redis.redis_pipeline import NoReply, RedisPipeline, Reply
from unified_tree.controllers.storage.redis.redis_settings import RedisSettings
from unified_tree.controllers.storage.redis.redis_sweep import sweep
from unified_tree.controllers.storage.redis.redis_topology import RedisTopology
from unified_tree.controllers.storage.redis.resp_connection import Piece, command
from unified_tree.controllers.storage.redis.resp_reader import LARGEST_BYTES, RespError, WrongLength
from unified_tree.controllers.storage.storage_engine import Capabilities, Outcome
from unified_tree.controllers.storage.stored_pool import StoredPool
from unified_tree.errors import StorageError


class RedisStorage(GuardedStorage):
    """A StorageEngine over one server or a cluster.

    Every thread has connections of its own, as long as it uses them. In a cluster only the pages of a server that is away are
    misses; it is degraded when all are. A server that refuses everything for one reason, such as missing rights, is a
    StorageError with its words; so is `exists` where no server answers any more, and later it is all a miss. Pages are DROPPED
    where the server's memory is full and it evicts nothing. What has another length or is no string was not put by us: `get`
    removes it. For `clear` every server goes through all its keys.

    Args:
        pools: what it keeps.
        settings: where and how.

    Raises StorageError where no server lets us in, ConfigurationError for certificates or a cluster that is not one.
    """

    def __init__(self, pools: Iterable[StoredPool], settings: RedisSettings) -> None:
        super().__init__("redis", pools)
        self._settings = settings
        tags = {name: f"{settings.key_prefix}:{pool.format_digest[:8].hex()}:" for name, pool in self._pools.items()}
        self._tags = {name: tag.encode() for name, tag in tags.items()}
        self._options = (b"NX", b"EX", b"%d" % settings.ttl_s) if settings.ttl_s else (b"NX",)
        self._topology = RedisTopology(settings)
        self._pipeline = RedisPipeline(self._topology, settings.request_timeout_s)

    @property
    def capabilities(self) -> Capabilities:
        """See StorageEngine.capabilities. TLS copies every page."""
        return Capabilities(
            zero_copy=not self._settings.tls,
            largest_value_bytes=LARGEST_BYTES,
            shared_between_hosts=True,
            survives_restart=True,
        )

    def _exists(self, pool: str, keys: Sequence[bytes]) -> list[bool]:
        replies = self._present(self._names(pool, keys))
        if NoReply.LOST in replies and not any(type(reply) is int for reply in replies):
            raise StorageError(f"redis: no server answers at {self._settings.address}")
        return [reply == 1 for reply in replies]

    def _get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        names = self._names(pool, keys)
        replies = self._replies(names, lambda index: command(b"GET", names[index]), pages)
        strange = [name for name, reply in zip(names, replies, strict=True) if _is_strange(reply)]
        if strange:
            self._replies(strange, lambda index: command(b"UNLINK", strange[index]))
        return list(map(_got, replies))

    def _put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        names = self._names(pool, keys)
        there = self._present(names)
        outcomes = [Outcome.PRESENT if reply == 1 else _stored(reply) for reply in there]
        absent = [index for index, reply in enumerate(there) if reply == 0]

        def storing(index: int) -> list[Piece]:
            return command(b"SET", names[absent[index]], pages[absent[index]], *self._options)

        size = self._pools[pool].value_bytes
        replies = self._replies([names[index] for index in absent], storing, page_bytes=size)
        for index, reply in zip(absent, replies, strict=True):
            outcomes[index] = _stored(reply)
        return outcomes

    def _remove(self, pool: str, keys: Sequence[bytes]) -> None:
        names = self._names(pool, keys)
        replies = self._replies(names, lambda index: command(b"UNLINK", names[index]))
        wrong = [reply for reply in replies if type(reply) is not int]
        if wrong:
            raise StorageError(f"redis: {len(wrong)} values of {pool} were not removed: {wrong[0]!r}")

    def _clear(self) -> None:
        for tag in self._tags.values():
            sweep(self._topology, tag, self._settings.request_timeout_s, self._settings.scan_keys)

    def _is_degraded(self) -> bool:
        return all(node.breaker.is_open for node in self._topology.nodes)

    def _close(self) -> None:
        self._topology.close()

    def _names(self, pool: str, keys: Sequence[bytes]) -> list[bytes]:
        tag = self._tags[pool]
        return [tag + key.hex().encode() for key in keys]

    def _present(self, names: list[bytes]) -> list[Reply]:
        return self._replies(names, lambda index: command(b"EXISTS", names[index]))

    def _replies(
        self,
        names: list[bytes],
        pieces: Callable[[int], list[Piece]],
        pages: Sequence[memoryview] | None = None,
        page_bytes: int = 0,
    ) -> list[Reply]:
        """In pipelines of limited size. Raises StorageError where all are refused for the same unforeseen reason."""
        size = pages[0].nbytes if pages else max(page_bytes, 1 << 10)
        step = max(1, self._settings.batch_bytes // size)
        replies: list[Reply] = []
        for start in range(0, len(names), step):
            some = None if pages is None else pages[start : start + step]
            replies += self._pipeline.replies(names[start : start + step], _counted_from(start, pieces), some)
        refusals = {reply for reply in replies if isinstance(reply, RespError)}
        if len(refusals) == 1 and all(isinstance(reply, RespError) for reply in replies):
            [refusal] = refusals
            if not refusal.text.startswith(_EXPECTED):
                raise StorageError(f"redis: {self._settings.address} refuses: {refusal.text}")
        return replies


_EXPECTED = ("OOM ", "WRONGTYPE ", "MOVED ", "ASK ", "TRYAGAIN ", "CLUSTERDOWN ", "LOADING ", "MASTERDOWN ")


def _counted_from(start: int, pieces: Callable[[int], list[Piece]]) -> Callable[[int], list[Piece]]:
    return lambda index: pieces(start + index)


def _is_strange(reply: Reply) -> bool:
    return isinstance(reply, WrongLength) or (isinstance(reply, RespError) and reply.text.startswith("WRONGTYPE "))


def _got(reply: Reply) -> Outcome:
    if isinstance(reply, memoryview):
        return Outcome.DONE
    missing = reply is None or reply is NoReply.AWAY or _is_strange(reply)
    return Outcome.MISSING if missing else Outcome.FAILED


def _stored(reply: Reply) -> Outcome:
    if reply == b"OK":
        return Outcome.DONE
    if reply is None:
        return Outcome.PRESENT
    full = isinstance(reply, RespError) and reply.text.startswith("OOM ")
    return Outcome.DROPPED if full or reply is NoReply.AWAY else Outcome.FAILED


open_redis = engine_opener("redis", RedisSettings, RedisStorage)
"""An engine with the settings of `RedisSettings`, from here, a file, or the environment; raises as both."""
