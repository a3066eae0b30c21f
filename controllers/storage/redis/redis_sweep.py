"""All values of a pool, removed from all servers."""

from __future__ import annotations

import time

from unified_tree.controllers.storage.redis.redis_node import RedisNode
from unified_tree.controllers.storage.redis.redis_topology import RedisTopology
from unified_tree.controllers.storage.redis.resp_connection import RespConnection, command
from unified_tree.controllers.storage.redis.resp_reader import Answer
from unified_tree.errors import StorageError


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
        except (OSError, StorageError) as error:
            wrong.append(f"{node.address}: {error}")
    if wrong:
        raise StorageError(f"redis: not everything was removed: {'; '.join(wrong)}")


def _sweep_node(node: RedisNode, tag: bytes, timeout_s: float, step: bytes) -> None:
    connection = None
    try:
        connection = node.acquire()
        cursor = b"0"
        while True:
            answer = _asked(connection, timeout_s, b"SCAN", cursor, b"MATCH", tag + b"*", b"COUNT", step)
            if not isinstance(answer, list) or len(answer) != 2:
                raise StorageError(f"SCAN is answered with {answer!r}")
            following, found = answer
            if not isinstance(following, bytes) or not isinstance(found, list):
                raise StorageError(f"SCAN is answered with {answer!r}")
            names = [name for name in found if isinstance(name, bytes) and name.startswith(tag)]
            _remove(connection, names, timeout_s)
            cursor = following
            if cursor == b"0":
                break
    except (OSError, StorageError):
        node.lost(connection)
        raise
    node.release(connection)


def _remove(connection: RespConnection, names: list[bytes], timeout_s: float) -> None:
    """One by one in a pipeline: in a cluster keys of several slots may not stand in one command."""
    connection.expect(time.monotonic() + timeout_s)
    connection.send([piece for name in names for piece in command(b"UNLINK", name)])
    answers = [connection.read() for _ in names]
    wrong = [answer for answer in answers if type(answer) is not int]
    if wrong:
        raise StorageError(f"UNLINK is answered with {wrong[0]!r}")


def _asked(connection: RespConnection, timeout_s: float, *words: bytes) -> Answer:
    connection.expect(time.monotonic() + timeout_s)
    connection.send(command(*words))
    return connection.read()
