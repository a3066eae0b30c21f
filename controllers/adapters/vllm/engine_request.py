"""vLLM's requests as the scheduler side reads them, and its records beside them.

A prompt with images has the same placeholder tokens for all of them, and one of embeddings has zeros. There the key of a
request has numbers beyond every vocabulary. They follow from vLLM's name of the image, which is a hash of it, or from the
embedding's bytes. So equal prompts have equal keys, in other processes and in stores too, and a prefix may end within an image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b, shake_256
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from unified_tree.declare.keys import Key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.cache.engine_turns import EngineTurn
    from unified_tree.controllers.cache.held_hints import RequestHints
    from unified_tree.controllers.cache.sessions import Session
    from unified_tree.controllers.counters.observers import AdmittedRequest
    from unified_tree.locks.locks import Receipt
    from unified_tree.misses.causes import Flight, StoreLoss
    from unified_tree.terms.results import Boundary, Match


NUMBER_BYTES: Final = 8
BEYOND_VOCABULARY: Final = 1 << 62
"""All numbers that stand for something else have this bit, and no sign."""


class EngineRequest(Protocol):
    """A request of vLLM. Its tokens are those known so far; a step that runs may add more."""

    @property
    def request_id(self) -> str:
        """Unique among those that run."""
        ...

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Of the prompt and the output known so far."""
        ...

    @property
    def mm_features(self) -> Sequence[Any]:
        """Images and the like: `identifier` is a hash, `mm_position` says where it lies by `offset` and `length`."""
        ...

    @property
    def prompt_embeds(self) -> Any:
        """A tensor [tokens, hidden] in host memory; None for a prompt of tokens."""
        ...

    @property
    def prompt_is_token_ids(self) -> Sequence[bool] | None:
        """Which positions of a prompt with embeddings are tokens; None for none of them."""
        ...

    @property
    def num_tokens(self) -> int:
        """Of the prompt and the output."""
        ...

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """vLLM's hashes of its whole blocks."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRequest:
    """A request in one engine step.

    Attributes:
        request_id: whose.
        end_tokens: how many of its tokens are computed when the step ends.
        block_table: its blocks by group, 0 where it has none any more. Asked for only if something is saved, as the engine
            copies the whole table.
        states: recurrent states that are complete when the step ends: group, block, and the length they stand for.
    """

    request_id: str
    end_tokens: int
    block_table: Callable[[], Sequence[Sequence[int]]]
    states: Sequence[tuple[int, int, int]] = ()


class Fetching(Enum):
    """Whether a store was asked for what a prompt lacks."""

    UNASKED = "unasked"
    WAITED_FOR = "waited for"
    OVER = "over"


@dataclass(slots=True, kw_only=True)
class TrackedRequest:
    """A request that the connector serves.

    Attributes:
        request: vLLM's.
        namespace: of its keys.
        prompt_tokens: with which it came.
        local_tokens: what vLLM's own cache had when the connector was asked last.
        save_points: lengths at which a window would have been worth keeping.
        path_tokens: how far its paths are on host, saves in flight included.
        window_tokens: the last length at which its windows were saved or loaded.
        open_saves: saves in flight.
        anchor: locks the path that the next save in flight stands on.
        may_load: not after a load of it failed.
        fetch: whether the store was asked for its prompt.
        is_storable: whether the store has a part in it.
        is_paired: its keys are pairs of tokens, for what blocks hold depends on the token behind them, too.
        prompt: the key of its prompt, which never changes; None before it was asked for.
        may_save: not after the cache was reset while it ran, for its blocks may be older than the reset.
        found: what its last match found; None before, and once its misses are booked.
        loaded_tokens: up to which length a load was begun.
        due_tokens: how long a prefix a store was about to bring when it waited no longer.
        loss: what a fault of a store kept from its prompt; None for nothing.
        is_booked: its misses are booked.
        known_tokens: how far the host tier knew its prompt then.
        admitted: as the observers were told of it; None if there are none.
        flight: the prompt while the host tier lacks some of it; None if nobody can find it.
        session, hints: its session, and what it says of that; None for none.
        turn: what its session knows of it, from when it is scheduled until it has ended.
        reach: up to where the host tier has its text; None if it has saved nothing.
    """

    request: EngineRequest
    namespace: str
    prompt_tokens: int
    local_tokens: int = 0
    save_points: tuple[int, ...] = ()
    path_tokens: int = 0
    window_tokens: int = 0
    open_saves: int = 0
    anchor: Receipt | None = None
    may_load: bool = True
    fetch: Fetching = Fetching.UNASKED
    may_save: bool = True
    is_storable: bool = False
    is_paired: bool = False
    prompt: Key | None = None
    found: Match | None = None
    loaded_tokens: int = 0
    due_tokens: int = 0
    loss: StoreLoss | None = None
    is_booked: bool = False
    known_tokens: int = 0
    admitted: AdmittedRequest | None = None
    flight: Flight | None = None
    session: Session | None = None
    hints: RequestHints | None = None
    turn: EngineTurn | None = None
    reach: Boundary | None = None

    def key(self, length: int) -> Key:
        """The first `length` elements; fewer if so many are not known. Of pairs there is one less than of tokens.

        Cost: O(1) within the prompt, once that was read. Behind it a copy of the prompt's bytes, and O(answer).
        """
        prompt = self.prompt
        if prompt is None:
            prompt = self.prompt = self._key(0, self.prompt_tokens)
        if length <= prompt.length or self.request.num_tokens <= self.prompt_tokens:
            return prompt.prefix(min(length, prompt.length))
        behind = self._key(prompt.length, length + self.is_paired)
        return Key.from_elements(bytes(prompt.data) + bytes(behind.data), self.namespace, bigram=self.is_paired)

    def sought(self) -> Key:
        """The key that a store is asked for: an element for each known token; it never seeks the last. So the last pair, of
        which the second token is not known, may have any.
        """
        key = self.key(self.request.num_tokens)
        if not self.is_paired:
            return key
        last = bytes(key.width_bytes)
        return Key.from_elements(bytes(key.data[: key.length * key.width_bytes]) + last, self.namespace, bigram=True)

    def _key(self, begin: int, end: int) -> Key:
        return Key(key_tokens(self.request, begin, end), self.namespace, bigram=self.is_paired)

    def hold(self, anchor: Receipt | None) -> None:
        """Lock another path, or none."""
        before, self.anchor = self.anchor, anchor
        if before is not None:
            before.release()


def key_tokens(request: EngineRequest, begin: int, end: int) -> NDArray[np.int64]:
    """The elements of a request's key from `begin` to `end`; fewer if so many are not known. Shape [tokens].

    Cost: O(tokens); a hash of the bytes of embeddings, some milliseconds a MiB.
    """
    tokens = np.fromiter(request.all_token_ids[begin:end], np.int64)
    end = begin + tokens.size
    if request.prompt_embeds is not None and begin < len(request.prompt_embeds):
        rows = embedded(request.prompt_embeds[begin:end])
        is_token = request.prompt_is_token_ids
        own = np.zeros(rows.size, np.bool_) if is_token is None else np.array(is_token[begin : begin + rows.size], np.bool_)
        tokens[: rows.size] = np.where(own, tokens[: rows.size], rows)
    for feature in request.mm_features:
        start, stop = feature.mm_position.offset, feature.mm_position.offset + feature.mm_position.length
        first, last = max(begin, start), min(end, stop)
        if first < last:
            tokens[first - begin : last - begin] = named(feature.identifier, last - start)[first - start :]
    return tokens


def named(identifier: str, count: int) -> NDArray[np.int64]:
    """The numbers that stand for the first tokens of what has this name. Shape [count]."""
    drawn = shake_256(identifier.encode("utf-8", "surrogatepass")).digest(count * NUMBER_BYTES)
    return _numbers(drawn)


def embedded(rows: Any) -> NDArray[np.int64]:
    """The numbers that stand for embeddings, given as a tensor [tokens, hidden]. Shape [tokens]."""
    import torch

    data = rows.detach().cpu().contiguous()
    kind = str(data.dtype).encode()
    hashes = [blake2b(row.numpy(), digest_size=NUMBER_BYTES, key=kind).digest() for row in data.view(torch.uint8)]
    return _numbers(b"".join(hashes))


def _numbers(drawn: bytes) -> NDArray[np.int64]:
    found = np.frombuffer(drawn, "<u8") & np.uint64(BEYOND_VOCABULARY - 1) | np.uint64(BEYOND_VOCABULARY)
    return found.astype(np.int64)
