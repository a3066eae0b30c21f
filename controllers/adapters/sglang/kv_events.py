"""The events that a router reads: which blocks of tokens this cache holds, and on which tier (`--kv-events-config`).

SGLang's cache tells of full-attention pages only, by hashes that chain each page to the one before; so does this one, and both
give a page the same hash. Pages on device are told as `GPU`, pages of the host tier as `CPU_PINNED`, when they can be used: a
page that is being loaded is told once it has arrived, where SGLang tells it when the load begins. What a store holds is told
when it comes to host.

Windows and recurrent states have no events in SGLang. Those of this cache are as in vLLM: of a group of their own, with the
hashes of the same pages of tokens. A reader that does not know groups takes the end of a window for that of its page, so they
are told only if the settings ask for it.

The digest and the published hash of each told page are kept by page name: the end of a page costs O(1), and a page that
was never told is never told to be gone.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from sglang.srt.disaggregation.kv_events import (
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
    StorageMedium,
    kv_event_namespace_seed,
    namespaced_block_hash,
)

from unified_tree.controllers.adapters.sglang.device_pools import FULL, STATE, WINDOW
from unified_tree.declare.coverage import Trailing
from unified_tree.terms.errors import StaleBoundaryError
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sglang.srt.mem_cache.events import KVCacheEventRecorder

    from unified_tree import Key, UnifiedTree
    from unified_tree.terms.results import Boundary

DIGEST_BYTES = 32
SALT_TAG = b"sglang-cache-salt-v1\0"
"""What SGLang puts before a salt where it seeds the digests of a namespace."""
LARGEST_NARROW = (1 << 32) - 1
"""SGLang hashes tokens as 32-bit words, but a page with a larger one as a tag and 64-bit words."""
GROUPS = {WINDOW: "sliding_window", STATE: "mamba"}
"""The kinds of the groups after that of full attention, in vLLM's words."""


class GroupStored(KVCacheEvent, tag="BlockStored", kw_only=True, omit_defaults=True):  # type: ignore[call-arg, misc]
    """A `BlockStored` of a group.

    Attributes:
        group_idx: its number in the model; full attention is group 0, whose events do not say it.
        kv_cache_spec_kind: of `GROUPS`.
        kv_cache_spec_sliding_window: how many tokens a window has, the query's own among them.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[Any]
    block_size: int
    lora_id: int | None
    medium: str
    group_idx: int
    kv_cache_spec_kind: str
    kv_cache_spec_sliding_window: int | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    lora_name: str | None = None


class GroupRemoved(KVCacheEvent, tag="BlockRemoved", kw_only=True, omit_defaults=True):  # type: ignore[call-arg, misc]
    """A `BlockRemoved` of a group."""

    block_hashes: list[int]
    medium: str
    group_idx: int


class KvEvents:
    """Tells a router what one tree's pages hold. It watches the page pools of both tiers (`PageWatcher`).

    Args:
        tree: a new one needs a new watcher.
        recorder: SGLang's; holds the events until the scheduler takes them.
        has_groups: tell of windows and states, too.
    """

    def __init__(self, tree: UnifiedTree, recorder: KVCacheEventRecorder, *, has_groups: bool = False) -> None:
        self._tree = tree
        self._recorder = recorder
        self._told = _new_told()
        self._groups: dict[str, Group] = {}
        for number, component in enumerate(tree.components if has_groups else ()):
            if component.name in GROUPS:
                coverage = component.coverage
                window = coverage.window_tokens + 1 if isinstance(coverage, Trailing) else None
                self._groups[component.name] = Group(number, GROUPS[component.name], window, _new_told())

    def landed(self, tier: Tier, boundary: Boundary) -> None:
        """Pages arrived on a tier, on the path to a boundary. Cost: one copy of the key, and as `stored`."""
        try:
            key = self._tree.key_of(boundary)
        except StaleBoundaryError:  # nobody can find the pages any more
            return
        self.stored(tier, key, boundary)

    def stored(self, tier: Tier, key: Key, boundary: Boundary, session_id: str | None = None) -> None:
        """Tell of the pages up to a boundary that were not told yet.

        Args:
            key: begins with the boundary's tokens.
            session_id: of the request that computed them.

        Cost: O(nodes on the path), one copy of its page ids, and a hash for each new page.
        """
        path = PathPages(self._tree, key, boundary)
        self._tell_new(self._told[tier], None, path, key, path.on[tier], session_id)
        for group in self._groups.values():
            for held in group.on_path(self._tree, boundary, tier):
                self._tell_new(group.told[tier], group, path, key, held, session_id)

    def _tell_new(
        self,
        told: ToldPages,
        group: Group | None,
        path: PathPages,
        key: Key,
        held: tuple[int, NDArray[np.int64]],
        session_id: str | None,
    ) -> None:
        """Tell of pages that were not told yet, of a group, or of full attention.

        Args:
            held: the position of the first page, and the names of the pages from there on.
        """
        first, names = held
        is_new = ~told.has(names)
        if not is_new.any():
            return
        namespace = Namespace(key.namespace, self._recorder)
        for begin, end in _runs(is_new):
            digests = self._digests(path, namespace, first + begin, first + end)
            told.add(names[begin:end], digests, namespace.published(digests))
            self._tell(told, group, path, namespace, first + begin, names[begin:end], session_id)

    def freed(self, tier: Tier, component: str, names: NDArray[np.int64]) -> None:
        """Pages of a tier were freed. Cost: O(pages)."""
        if not names.size:
            return
        if component == FULL:
            told = self._told[tier]
            hashes = told.remove(names)
            if hashes:
                self._recorder.enqueue(BlockRemoved(block_hashes=hashes, medium=told.medium))
        elif component in self._groups:
            group = self._groups[component]
            told = group.told[tier]
            hashes = told.remove(names)
            if hashes:
                self._recorder.enqueue(GroupRemoved(block_hashes=hashes, medium=told.medium, group_idx=group.number))

    def _digests(self, path: PathPages, namespace: Namespace, begin: int, end: int) -> NDArray[np.uint8]:
        """The digests of the path's pages from `begin` to `end`, uint8 [pages, 32], computed from the last known one on."""
        known, last = begin, None
        while known and (last := self._digest_at(path, known - 1)) is None:
            known -= 1
        before = namespace.seed if last is None else last
        digests = bytearray()
        for page in path.hashed_bytes(known, end):
            before = hashlib.sha256(before + page).digest()
            digests += before
        return np.frombuffer(digests, np.uint8).reshape(-1, DIGEST_BYTES)[begin - known :]

    def _digest_at(self, path: PathPages, page: int) -> bytes | None:
        """The digest of one page of a path, if either tier knows it."""
        for tier, told in self._told.items():
            first, names = path.on[tier]
            if first <= page < first + names.size and told.has(names[page - first : page - first + 1])[0]:
                return told.digest(int(names[page - first]))
        return None

    def _tell(
        self,
        told: ToldPages,
        group: Group | None,
        path: PathPages,
        namespace: Namespace,
        begin: int,
        names: NDArray[np.int64],
        session_id: str | None,
    ) -> None:
        parent = None
        if begin:
            digest = self._digest_at(path, begin - 1)
            if digest is None:
                digest = self._digests(path, namespace, begin - 1, begin).tobytes()
            parent = namespace.published(np.frombuffer(digest, np.uint8).reshape(1, DIGEST_BYTES))[0]
        stored = {
            "block_hashes": told.hashes(names),
            "parent_block_hash": parent,
            "token_ids": path.tokens(begin, begin + names.size),
            "block_size": path.page_size,
            "lora_id": None,
            "medium": told.medium,
            "cache_salt": namespace.cache_salt,
            "session_id": session_id,
            "lora_name": namespace.lora_name,
        }
        self._recorder.enqueue(BlockStored(**stored) if group is None else GroupStored(**stored, **group.fields))


class Group:
    """A kind of pages beside full attention.

    Attributes:
        number: `group_idx` of its events, and of its component in the tree.
        fields: of its `GroupStored`.
        told: the pages that a router knows, by tier.
    """

    def __init__(self, number: int, kind: str, window_tokens: int | None, told: dict[Tier, ToldPages]) -> None:
        self.number = number
        self.fields = {"group_idx": number, "kv_cache_spec_kind": kind, "kv_cache_spec_sliding_window": window_tokens}
        self.told = told

    def on_path(self, tree: UnifiedTree, boundary: Boundary, tier: Tier) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """The pages on the path to a boundary, with the position of the first: of each node that has some, the last first.

        Windows on a path have gaps between them. Cost: O(nodes on the path).
        """
        node, _ = tree.locks.find(boundary)
        while node is not None:
            value = node.values(tier)[self.number]
            if value is not None and node.end <= boundary.length:
                names = np.frombuffer(value.pages, np.int64)
                yield node.end // tree.page_size - names.size, names
            node = node.parent


class PathPages:
    """The full-attention pages on the path to a boundary, and the tokens in them.

    Attributes:
        on: by tier the position of the first page that the tier has, and the names of its pages from there on.
    """

    def __init__(self, tree: UnifiedTree, key: Key, boundary: Boundary) -> None:
        self._key = key
        self.page_size = tree.page_size
        count = boundary.length // tree.page_size
        device, host = (tree.pages(boundary, FULL, tier) for tier in (Tier.DEVICE, Tier.HOST))
        self.on = {Tier.DEVICE: (0, device), Tier.HOST: (count - host.size, host)}

    def _words(self, begin: int, end: int) -> NDArray[np.int64]:
        """The int64 words of some pages: tokens, or both tokens of each pair."""
        size = self.page_size * self._key.width_bytes
        return np.frombuffer(self._key.data, np.int64, (end - begin) * size // 8, begin * size)

    def tokens(self, begin: int, end: int) -> list[Any]:
        """The tokens of some pages as events have them: of bigrams a tuple each."""
        words: list[Any] = self._words(begin, end).tolist()
        return list(zip(words[::2], words[1::2], strict=True)) if self._key.bigram else words

    def hashed_bytes(self, begin: int, end: int) -> Iterator[bytes]:
        """What is hashed of each page, as SGLang encodes it."""
        if begin == end:
            return
        words = self._words(begin, end).reshape(end - begin, -1)
        is_wide = words.max(axis=1) > LARGEST_NARROW
        narrow = words.astype("<u4")
        for page in range(end - begin):
            yield b"\xff" + words[page].tobytes() if is_wide[page] else narrow[page].tobytes()


class Namespace:
    """What a namespace of the tree is in SGLang's events."""

    def __init__(self, name: str, recorder: KVCacheEventRecorder) -> None:
        self.extra_key, self.cache_salt = namespace_parts(name)
        self._recorder = recorder
        self.seed = (
            b""
            if self.cache_salt is None
            else hashlib.sha256(SALT_TAG + self.cache_salt.encode("utf-8", "surrogatepass")).digest()
        )

    @cached_property
    def lora_name(self) -> str | None:
        """The public name of the LoRA adapter."""
        names = self._recorder.lora_names
        found: str | None = (names.resolve if self._recorder.dynamo_format else names.get)(self.extra_key)
        return found

    @cached_property
    def _hash_seed(self) -> bytes | None:
        """SGLang hashes the namespace into what it publishes in the dynamo format, and for a LoRA adapter with a name."""
        seed: bytes | None
        if self._recorder.dynamo_format:
            seed = kv_event_namespace_seed(extra_key=self.extra_key, cache_salt=self.cache_salt)
        else:
            is_named = self._recorder.lora_names.get(self.extra_key) is not None
            seed = kv_event_namespace_seed(extra_key=self.extra_key if is_named else None, cache_salt=None)
        return seed

    def published(self, digests: NDArray[np.uint8]) -> list[int]:
        """The hashes that stand for these digests, uint8 [pages, 32], in events."""
        hashes: list[int] = np.ascontiguousarray(digests[:, :8]).view(">i8")[:, 0].tolist()
        if self._hash_seed is None:
            return hashes
        return [namespaced_block_hash(value, namespace_seed=self._hash_seed) for value in hashes]


class ToldPages:
    """The pages of one tier that a router knows, by page name.

    Attributes:
        medium: what events call the tier.
    """

    def __init__(self, medium: StorageMedium) -> None:
        self.medium = medium
        self._is_told = np.zeros(1024, np.bool_)
        self._hashes = np.zeros(1024, np.int64)
        self._digests = np.zeros((1024, DIGEST_BYTES), np.uint8)

    def has(self, names: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each of these pages was told."""
        top = int(names.max(initial=-1)) + 1
        if top > self._is_told.size:
            more = max(top, 2 * self._is_told.size) - self._is_told.size
            self._is_told = np.pad(self._is_told, (0, more))
            self._hashes = np.pad(self._hashes, (0, more))
            self._digests = np.pad(self._digests, ((0, more), (0, 0)))
        found: NDArray[np.bool_] = self._is_told[names]
        return found

    def add(self, names: NDArray[np.int64], digests: NDArray[np.uint8], hashes: list[int]) -> None:
        """These pages are told."""
        self._is_told[names] = True
        self._digests[names] = digests
        self._hashes[names] = hashes

    def remove(self, names: NDArray[np.int64]) -> list[int]:
        """These pages are gone; the hashes of those that were told."""
        gone = names[self.has(names)]
        self._is_told[gone] = False
        return self.hashes(gone)

    def hashes(self, names: NDArray[np.int64]) -> list[int]:
        """The published hashes of told pages."""
        found: list[int] = self._hashes[names].tolist()
        return found

    def digest(self, name: int) -> bytes:
        """The digest of a told page."""
        found: bytes = self._digests[name].tobytes()
        return found


@lru_cache(maxsize=1024)
def namespace_parts(name: str) -> tuple[str | None, str | None]:
    """The extra key and the cache salt of a namespace, whose name is the `repr` of both and of an adapter's weights."""
    if not name:
        return None, None
    extra_key, cache_salt, *_ = ast.literal_eval(name)
    return extra_key, cache_salt


def _new_told() -> dict[Tier, ToldPages]:
    return {Tier.DEVICE: ToldPages(StorageMedium.GPU), Tier.HOST: ToldPages(StorageMedium.CPU)}


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The half-open ranges in which a mask is set."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False]))))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
