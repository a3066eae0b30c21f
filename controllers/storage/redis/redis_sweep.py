"""All values of a pool, removed from all servers."""

from __future__ import annotations

from unified_tree.controllers.storage.redis.redis_node import RedisNode
from unified_tree.controllers.storage.redis.redis_topology import RedisTopology
from unified_tree.terms.errors import StorageError


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
