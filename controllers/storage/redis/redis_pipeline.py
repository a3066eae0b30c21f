"""One command per key, sent to all servers of the keys before any reply is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeAlias

from unified_tree.controllers.storage.redis.redis_node import RedisNode
from unified_tree.controllers.storage.redis.redis_topology import RedisTopology
from unified_tree.controllers.storage.redis.resp_connection import Piece, RespConnection
from unified_tree.controllers.storage.redis.resp_reader import Answer, RespError
from unified_tree.errors import StorageError

_DOWN = ("CLUSTERDOWN", "LOADING", "MASTERDOWN")
"""Refusals of a server that will serve nobody for a while."""


class NoReply(Enum):
    """Why there is no reply."""

    AWAY = "the server is taken to be away and was not asked"
    LOST = "the server was asked, and what it did is not known"


Reply: TypeAlias = "Answer | NoReply"
_Sent = tuple[RedisNode, RespConnection, list[int]]


class RedisPipeline:
    """Runs batches of commands.

    Args:
        topology: the servers.
        timeout_s: for all answers of one server.
    """

    def __init__(self, topology: RedisTopology, timeout_s: float) -> None:
        self._topology = topology
        self._timeout_s = timeout_s

    def replies(
        self, names: Sequence[bytes], pieces: Callable[[int], list[Piece]], pages: Sequence[memoryview] | None = None
    ) -> list[Reply]:
        """One reply for each key, in their order; a key that has moved is retried once.

        Args:
            names: the keys.
            pieces: the command of the key at an index.
            pages: for the strings that are answered.
        """
        replies: list[Reply] = [NoReply.AWAY] * len(names)
        asked = list(range(len(names)))
        for _ in range(2):
            sent = self._sent(self._by_owner(names, asked), pieces, replies)
            for node, connection, indices in sent:
                self._read(node, connection, indices, pages, replies)
            asked = [index for index in asked if _kind(replies[index]) == "MOVED"]
            if not asked or not self._topology.refresh():
                break
        if any(isinstance(reply, NoReply) for reply in replies):
            self._topology.refresh()
        return replies

    def _by_owner(self, names: Sequence[bytes], indices: list[int]) -> dict[RedisNode, list[int]]:
        found: dict[RedisNode, list[int]] = {}
        for index in indices:
            owner = self._topology.owner(names[index])
            if owner is not None:
                found.setdefault(owner, []).append(index)
        return found

    def _sent(
        self, by_owner: dict[RedisNode, list[int]], pieces: Callable[[int], list[Piece]], replies: list[Reply]
    ) -> list[_Sent]:
        sent = []
        for node, indices in by_owner.items():
            state = NoReply.LOST if node.breaker.admits() else NoReply.AWAY
            for index in indices:
                replies[index] = state
            if state is NoReply.AWAY:
                continue
            connection = None
            try:
                connection = node.acquire()
                connection.expect(time.monotonic() + self._timeout_s)
                connection.send([piece for index in indices for piece in pieces(index)])
            except (OSError, StorageError):
                node.lost(connection)
            else:
                sent.append((node, connection, indices))
        return sent

    def _read(
        self,
        node: RedisNode,
        connection: RespConnection,
        indices: list[int],
        pages: Sequence[memoryview] | None,
        replies: list[Reply],
    ) -> None:
        connection.expect(time.monotonic() + self._timeout_s)
        try:
            for index in indices:
                replies[index] = connection.read(None if pages is None else pages[index])
        except (OSError, StorageError):
            node.lost(connection)
            return
        node.release(connection)
        if any(_kind(replies[index]) in _DOWN for index in indices):
            node.breaker.failed()


def _kind(reply: Reply) -> str:
    return reply.text.partition(" ")[0] if isinstance(reply, RespError) else ""
