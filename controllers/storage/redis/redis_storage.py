"""Pages in Redis or Valkey, each a string. The server decides what it keeps how long: memory limit, eviction policy, TTL.

A key is the prefix, the first 8 bytes of the pool's format digest and the key, the latter two in hex, with colons between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TypeAlias

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    OutOfMemoryError,
    ResponseError,
    TryAgainError,
)

from unified_tree.controllers.storage.engine_settings import engine_opener
from unified_tree.controllers.storage.guarded_storage import GuardedStorage
from unified_tree.controllers.storage.redis.redis_settings import RedisSettings
from unified_tree.controllers.storage.redis.redis_topology import Asked, Command, RedisNode, RedisTopology, Reply
from unified_tree.controllers.storage.storage_engine import Capabilities, Outcome, StoredPool
from unified_tree.terms.errors import StorageError

LARGEST_BYTES = 512 << 20
"""The server's own limit of a value."""


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
        """See StorageEngine.capabilities. What is read is copied once, out of the client's buffers."""
        return Capabilities(
            zero_copy=False,
            largest_value_bytes=LARGEST_BYTES,
            shared_between_hosts=True,
            survives_restart=True,
        )

    def _exists(self, pool: str, keys: Sequence[bytes]) -> list[bool | None]:
        results = self._each(b"EXISTS", self._names(pool, keys))
        if NoReply.LOST in results and not any(type(result) is int for result in results):
            raise StorageError(f"redis: no server answers at {self._settings.address}")
        return [result == 1 if type(result) is int else None for result in results]

    def _get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        names = self._names(pool, keys)
        results = self._each(b"GET", names, pages)
        strange = [name for name, result in zip(names, results, strict=True) if _is_strange(result)]
        self._each(b"UNLINK", strange)
        return list(map(_got, results))

    def _put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        names = self._names(pool, keys)
        there = self._each(b"EXISTS", names)
        outcomes = [Outcome.PRESENT if result == 1 else _stored(result) for result in there]
        absent = [index for index, result in enumerate(there) if result == 0]
        storing: list[Command] = [(b"SET", names[index], pages[index].cast("B"), *self._options) for index in absent]
        results = self._results(storing, self._pools[pool].value_bytes)
        for index, result in zip(absent, results, strict=True):
            outcomes[index] = _stored(result)
        return outcomes

    def _remove(self, pool: str, keys: Sequence[bytes]) -> None:
        results = self._each(b"UNLINK", self._names(pool, keys))
        wrong = [result for result in results if type(result) is not int]
        if wrong:
            raise StorageError(f"redis: {len(wrong)} values of {pool} were not removed: {wrong[0]!s}")

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

    def _each(self, command: bytes, names: list[bytes], pages: Sequence[memoryview] | None = None) -> list[Result]:
        return self._results([(command, name) for name in names], pages[0].nbytes if pages else 0, pages)

    def _results(self, commands: list[Command], page_bytes: int, pages: Sequence[memoryview] | None = None) -> list[Result]:
        """In pipelines of limited size. Raises StorageError where all are refused for the same unforeseen reason."""
        step = max(1, self._settings.batch_bytes // max(page_bytes, 1 << 10))
        results: list[Result] = []
        for start in range(0, len(commands), step):
            some = None if pages is None else pages[start : start + step]
            results += self._pipeline.results(commands[start : start + step], some)
        refusals = {str(result) for result in results if isinstance(result, ResponseError) and not _is_expected(result)}
        if len(refusals) == 1 and all(str(result) in refusals for result in results):
            raise StorageError(f"redis: {self._settings.address} refuses: {refusals.pop()}")
        return results


def _is_expected(refusal: ResponseError) -> bool:
    return isinstance(refusal, AskError | ClusterDownError | OutOfMemoryError | TryAgainError) or _is_strange(refusal)


def _is_strange(result: Result) -> bool:
    """A value that was not put by us."""
    return isinstance(result, bytes) or (isinstance(result, ResponseError) and str(result).startswith("WRONGTYPE "))


def _got(result: Result) -> Outcome:
    if isinstance(result, memoryview):
        return Outcome.DONE
    missing = result is None or result is NoReply.AWAY or _is_strange(result)
    return Outcome.MISSING if missing else Outcome.FAILED


def _stored(result: Result) -> Outcome:
    if result == b"OK":
        return Outcome.DONE
    if result is None:
        return Outcome.PRESENT
    full = isinstance(result, OutOfMemoryError)
    return Outcome.DROPPED if full or result is NoReply.AWAY else Outcome.FAILED


open_redis = engine_opener("redis", RedisSettings, RedisStorage)
"""An engine with the settings of `RedisSettings`, from here, a file, or the environment; raises as both."""


def sweep(topology: RedisTopology, tag: bytes, timeout_s: float, scan_keys: int) -> None:
    """Remove every key that begins with a tag (without characters of patterns). The servers that are there are all swept.

    Args:
        topology: the servers.
        tag: of the keys.
        timeout_s: for each answer.
        scan_keys: that a server looks at in one call; others are served between the calls.

    Raises StorageError, naming each server that did not answer. Cost: O(keys of each server).
    """
    wrong = []
    for node in topology.nodes:
        try:
            if not node.breaker.admits():
                raise StorageError("the server is away")
            _sweep_node(node, tag, timeout_s, b"%d" % scan_keys)
        except StorageError as error:
            wrong.append(f"{node.address}: {error}")
    if wrong:
        raise StorageError(f"redis: not everything was removed: {'; '.join(wrong)}")


def _sweep_node(node: RedisNode, tag: bytes, timeout_s: float, step: bytes) -> None:
    cursor: bytes | None = None
    while cursor != b"0":
        [answer] = node.ask([(b"SCAN", cursor or b"0", b"MATCH", tag + b"*", b"COUNT", step)], timeout_s)
        match answer:
            case [bytes(following), list(found)]:
                cursor = following
                names = [name for name in found if isinstance(name, bytes) and name.startswith(tag)]
            case _:
                raise StorageError(f"SCAN is answered with {answer!r}")
        removed = node.ask([(b"UNLINK", name) for name in names], timeout_s)  # a cluster takes no two slots in one command
        if not all(type(reply) is int for reply in removed):
            raise StorageError(f"UNLINK is answered with {removed!r}")


class NoReply(Enum):
    """Why there is no reply."""

    AWAY = "the server is taken to be away and was not asked"
    LOST = "the server was asked, and what it did is not known"


Result: TypeAlias = "Reply | NoReply | memoryview"
"""A page that was filled is itself the result."""


class RedisPipeline:
    """Runs batches of commands.

    Args:
        topology: the servers.
        timeout_s: for all answers of one server.
    """

    def __init__(self, topology: RedisTopology, timeout_s: float) -> None:
        self._topology = topology
        self._timeout_s = timeout_s

    def results(self, commands: Sequence[Command], pages: Sequence[memoryview] | None = None) -> list[Result]:
        """One result for each command, in their order; a key that has moved is retried once.

        Args:
            commands: each with its key as the second word.
            pages: a string as long as its page is copied there.
        """
        results: list[Result] = [NoReply.AWAY] * len(commands)
        left = list(range(len(commands)))
        for _ in range(2):
            sent = [(node, self._sent(node, commands, some, results), some) for node, some in self._by_owner(commands, left)]
            for node, connection, some in sent:
                if connection is not None:
                    self._read(node, connection, some, pages, results)
            left = [index for index in left if isinstance(results[index], MovedError)]
            if not left or not self._topology.refresh():
                break
        if any(isinstance(result, NoReply) for result in results):
            self._topology.refresh()
        return results

    def _by_owner(self, commands: Sequence[Command], indices: list[int]) -> list[tuple[RedisNode, list[int]]]:
        found: dict[RedisNode, list[int]] = {}
        for index in indices:
            owner = self._topology.owner(bytes(commands[index][1]))
            if owner is not None:
                found.setdefault(owner, []).append(index)
        return list(found.items())

    def _sent(self, node: RedisNode, commands: Sequence[Command], indices: list[int], results: list[Result]) -> Asked | None:
        state = NoReply.LOST if node.breaker.admits() else NoReply.AWAY
        for index in indices:
            results[index] = state
        if state is NoReply.AWAY:
            return None
        try:
            return node.send([commands[index] for index in indices], self._timeout_s)
        except StorageError:
            return None

    def _read(
        self,
        node: RedisNode,
        connection: Asked,
        indices: list[int],
        pages: Sequence[memoryview] | None,
        results: list[Result],
    ) -> None:
        try:
            for index, reply in zip(indices, node.replies(connection, len(indices), self._timeout_s), strict=True):
                results[index] = reply
                if pages is not None and isinstance(reply, bytes) and len(reply) == pages[index].nbytes:
                    pages[index].cast("B")[:] = reply
                    results[index] = pages[index]
        except StorageError:
            return
