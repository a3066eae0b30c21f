"""One command per key, sent to all servers of the keys before any reply is read."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TypeAlias

from redis.exceptions import MovedError

from unified_tree.controllers.storage.redis.redis_topology import Asked, Command, RedisNode, RedisTopology, Reply
from unified_tree.terms.errors import StorageError


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
