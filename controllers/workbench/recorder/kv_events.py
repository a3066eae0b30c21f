"""KV events of vLLM and SGLang, as requests of a trace.

An engine tells of the blocks that it has stored: their tokens, and the block before them. From these every stored path is
known, but not who asked for it. So a request here is a run of blocks that go on from each other: it begins where an event
goes on from a block that is known, or from nothing, and ends when nothing was added for a while. Its prompt is the whole path,
of which the blocks that were known are the cached tokens.

This shows what was computed, and not all that was asked for: a prompt that was cached wholly leaves no event, answers cannot be
told from prompts, and the tokens behind the last whole block are missing. Use it where there can be no proxy and no log.

Known blocks are kept by the engine's hash: the chain of hashes up to there (BlockHasher), and the ids that the block added.
Each costs some 0.7 kB; the least recently used go beyond a bound. An event whose block before is not known any more, or was
never seen, is counted. Removals are not needed: a hash stands for the same tokens when it is stored again.

Events come as msgpack over ZeroMQ, batches `[time, events, rank]`; an event is a map with its `type`, or, in older versions,
an array that begins with it. In a file, `read_records` makes an object of every batch.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from unified_tree.controllers.workbench.recorder.block_hashes import token_bytes
from unified_tree.controllers.workbench.recorder.exchanges import namespace_of
from unified_tree.controllers.workbench.recorder.trace_writer import MAX_TOKENS, TraceLine
from unified_tree.inputs.arguments import integer
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from unified_tree.controllers.workbench.recorder.block_hashes import BlockHasher, Chain

    BlockKey = tuple[Any, Any]
    """A rank, and the engine's hash."""

ARRAY_FIELDS: Sequence[str] = (
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
)
ON_DEVICE = (None, "GPU")
ORPHAN: Final = "goes on from an unknown block"
UNREADABLE_EVENT: Final = "an unreadable event"
MISSED: Final = "a missed batch"
DEFAULT_KNOWN_BLOCKS = 500_000
DEFAULT_QUIET_S = 5.0
MAX_OPEN = 10_000
MAX_BATCH_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Block:
    """A block that an engine has stored.

    Attributes:
        before: the block before it; None for the first.
        chain: of all tokens up to its end.
        ids: of the blocks of the trace that end in it.
        tokens: up to its end.
    """

    before: BlockKey | None
    chain: Chain
    ids: tuple[int, ...]
    tokens: int


@dataclass(slots=True)
class Run:
    """A run of blocks that were stored one after another: a request."""

    time_ms: int
    last_ms: int
    cached_tokens: int


class EventTrace:
    """Makes requests of KV events.

    Args:
        hasher: of the trace.
        lose: is told the reason for each event that cannot be used.
        known_blocks: so many of the engine's blocks are remembered.
        quiet_s: a request has ended when nothing was added for so long.

    Raises ConfigurationError for a bound below 1.
    """

    def __init__(
        self,
        hasher: BlockHasher,
        lose: Callable[[str], None],
        *,
        known_blocks: int | Any = DEFAULT_KNOWN_BLOCKS,
        quiet_s: float = DEFAULT_QUIET_S,
    ) -> None:
        self._hasher = hasher
        self._lose = lose
        self._most = integer(known_blocks, "known_blocks", ConfigurationError, minimum=1)
        self._quiet_ms = round(quiet_s * 1000)
        self._blocks: OrderedDict[BlockKey, Block] = OrderedDict()
        self._runs: OrderedDict[BlockKey, Run] = OrderedDict()
        """By their last blocks, in the order in which they were last added to."""

    def batch(self, batch: Any) -> list[TraceLine]:
        """Take a batch; the requests that have ended by it. Cost: a hash for each new block, O(path) for each that ends."""
        ended: list[TraceLine] = []
        try:
            names = ("ts", "events", "data_parallel_rank")
            time_s, events, *more = batch if isinstance(batch, list) else map(batch.get, names)
            time_ms = round(float(time_s) * 1000)
            ended += self._quiet(time_ms)
            for event in events:
                self._event(event, time_ms, more[0] if more and type(more[0]) is int else 0)
        except (AttributeError, TypeError, ValueError, OverflowError):
            self._lose(UNREADABLE_EVENT)
        while len(self._runs) > MAX_OPEN:
            ended += self._end(*self._runs.popitem(last=False))
        return ended

    def end(self) -> list[TraceLine]:
        """The requests that have not ended, as no more events come."""
        ended = [line for key, run in self._runs.items() for line in self._end(key, run)]
        self._runs.clear()
        return ended

    def _event(self, event: Any, time_ms: int, rank: int) -> None:
        try:
            fields: dict[str, Any] = event if isinstance(event, dict) else dict(zip(ARRAY_FIELDS, event, strict=False))
            if fields["type"] == "BlockStored" and fields.get("medium") in ON_DEVICE and not fields.get("group_idx"):
                self._stored(fields, time_ms, rank)
        except (TypeError, ValueError, KeyError, OverflowError, IndexError, AttributeError):
            self._lose(UNREADABLE_EVENT)

    def _stored(self, fields: dict[str, Any], time_ms: int, rank: int) -> None:
        hashes, size = fields["block_hashes"], integer(fields["block_size"], "block_size", ConfigurationError, minimum=1)
        tokens, parent = fields["token_ids"], fields.get("parent_block_hash")
        if len(tokens) != len(hashes) * size or len(tokens) > MAX_TOKENS:
            raise ValueError("an event must have the tokens of its blocks")
        tokens = [token if type(token) is int else token[0] for token in tokens]  # EAGLE's are pairs
        more = fields.get("extra_keys") or ()
        before = None if parent is None else (rank, parent)
        if before is None:
            chain = self._hasher.begin(namespace_of(None, fields.get("cache_salt"), fields.get("lora_name")))
            count = 0
        elif (known := self._blocks.get(before)) is not None:
            chain, count = known.chain, known.tokens
        else:
            self._lose(ORPHAN)
            return
        run = None if before is None else self._runs.pop(before, None)
        run = Run(time_ms, time_ms, count) if run is None else run
        for at, each in enumerate(hashes):
            block = tokens[at * size : (at + 1) * size]
            if at < len(more) and more[at]:  # an image, say, whose tokens are placeholders
                block[0] = _marked(block[0], more[at])
            chain, ids = self._hasher.extend(chain, token_bytes(block))
            count += size
            key = (rank, each)
            self._blocks[key] = Block(before, chain, tuple(ids), count)
            self._blocks.move_to_end(key)
            before = key
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)
        if before is not None:
            run.last_ms = time_ms
            self._runs[before] = run
            self._runs.move_to_end(before)

    def _quiet(self, time_ms: int) -> Iterator[TraceLine]:
        """End the requests that nothing was added to for a while."""
        while self._runs:
            key = next(iter(self._runs))
            run = self._runs[key]
            if time_ms - run.last_ms < self._quiet_ms:
                return
            del self._runs[key]
            yield from self._end(key, run)

    def _end(self, key: BlockKey, run: Run) -> Sequence[TraceLine]:
        ids: list[tuple[int, ...]] = []
        at: BlockKey | None = key
        tokens = self._blocks[key].tokens if key in self._blocks else 0
        while at is not None:
            block = self._blocks.get(at)
            if block is None or len(ids) > MAX_TOKENS:
                self._lose(ORPHAN)
                return ()
            self._blocks.move_to_end(at)
            ids.append(block.ids)
            at = block.before
        line = TraceLine(
            time_ms=run.time_ms,
            prompt_tokens=tokens,
            output_tokens=0,
            ids=[each for part in reversed(ids) for each in part],
            answer_ids=[],
            block_tokens=self._hasher.block_tokens,
            cached_tokens=run.cached_tokens,
        )
        return (line,)


def _marked(token: int, what: Any) -> int:
    return int.from_bytes(blake2b(repr((token, what)).encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") >> 1


class EventSubscription:
    """The batches that an engine publishes.

    Args:
        address: of its publisher, `tcp://HOST:PORT`.
        lose: is told of each batch that was missed, by their numbers, or that is no msgpack.
        topic: the beginning of the topics to take.

    Raises ConfigurationError for an address that ZeroMQ does not take; ModuleNotFoundError without the extra `record`.
    """

    def __init__(self, address: str, lose: Callable[[str], None], topic: str = "") -> None:
        import zmq

        self._lose = lose
        self._next: dict[bytes, int] = {}
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.subscribe(topic.encode())
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigurationError(
                f"{address} is no address of a publisher, such as tcp://127.0.0.1:5557: {error}"
            ) from error

    def take(self, wait_s: float = 1.0) -> Any:
        """The next batch; None if none has come within so long."""
        if not self._socket.poll(round(wait_s * 1000)):
            return None
        import msgpack

        parts = self._socket.recv_multipart()
        if len(parts) != 3 or len(parts[1]) != 8:
            self._lose(UNREADABLE_EVENT)
            return None
        topic, number = parts[0], int.from_bytes(parts[1], "big")
        for _ in range(min(max(0, number - self._next.get(topic, number)), 1_000_000)):
            self._lose(MISSED)
        self._next[topic] = number + 1
        try:
            return msgpack.unpackb(parts[2], raw=False, unicode_errors="surrogateescape", strict_map_key=False)
        except (ValueError, msgpack.UnpackException):
            self._lose(UNREADABLE_EVENT)
            return None

    def close(self) -> None:
        """End the subscription. Idempotent."""
        self._socket.close()
        self._context.term()
