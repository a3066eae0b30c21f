"""A job that writes a boundary (a length one can resume from) to the store: its paths from the root on, then its windows and
states, then the restore point.

Stored pages are skipped: of those known to be stored only the last is queried, others by one query per pool. The first page
that the store refuses ends the job, because nothing behind it could be found.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.pools.host_layout import TRAILER_BYTES
from unified_tree.controllers.storage.digests import Digests
from unified_tree.controllers.storage.key_chain import pool_keys
from unified_tree.controllers.storage.restore_point import RestorePoint
from unified_tree.controllers.storage.storage_engine import Outcome
from unified_tree.controllers.storage_tier.stored_digests import KnownPrefix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from unified_tree.controllers.storage.checked_storage import CheckedStorage
    from unified_tree.controllers.storage.key_chain import KeyChain
    from unified_tree.controllers.storage_tier.jobs import Asking, Steps
    from unified_tree.controllers.storage_tier.policies import PersistPolicy
    from unified_tree.controllers.storage_tier.stored_composition import PoolAccess, StoredComposition
    from unified_tree.controllers.storage_tier.stored_digests import StoredDigests
    from unified_tree.declare.keys import Key


class PersistJob:
    """One boundary on its way to the store.

    Args:
        key: the boundary's tokens, without those of `known`.
        pages: ids of host pages by component, the bytes of int64: of paths those from `first_page` on, the last ones of windows
            and states.
        known: the digests of a beginning of the boundary's pages, and how far it is stored; None for nothing.
        first_page: the pages before it are believed to be stored. If they no longer are when the job runs, it writes nothing.

    Attributes:
        prefix: what is known of the boundary; None before the job has started.
        written_pages, written_bytes: what the store accepted.
        failure: why it ended early, None if it did not.
        is_done: whether everything this rank writes is stored, the restore point included.
        is_to_begin_earlier: pages before the first one given have to be written, too, so nothing was.
    """

    def __init__(
        self,
        composition: StoredComposition,
        key: Key,
        pages: Mapping[str, bytes],
        known: KnownPrefix | None = None,
        first_page: int = 0,
    ) -> None:
        self._composition = composition
        self._known = known
        self._first_page = first_page
        self.key = key
        self.pages = pages
        self.prefix: KnownPrefix | None = None
        self.written_pages = 0
        self.written_bytes = 0
        self.failure: str | None = None
        self.is_done = False
        self.is_to_begin_earlier = False

    def page_ids(self, component: str) -> NDArray[np.int64]:
        """The host pages of a component, of those in `pages`."""
        return np.frombuffer(self.pages[component], np.int64)

    def store(self, store: CheckedStorage, chain: KeyChain, stored_digests: StoredDigests, policy: PersistPolicy) -> Steps:
        """The job: write what the store lacks. It changes nothing but this object's attributes, the store and the digests."""
        known = self._known or KnownPrefix(weights_version=chain.weights_version, digests=Digests())
        digests = chain.continued(known.digests, self.key)
        seen = stored_digests.leading(digests, known.seen)
        if seen.page_count and (yield from self._is_lost(store, digests, seen.page_count)):
            stored_digests.discard(digests[: seen.page_count])
            seen = stored_digests.leading(digests)
        first, begin = self._first_page, seen.page_count
        self.prefix = prefix = replace(known, digests=digests, seen=seen)
        if begin < first:
            self.is_to_begin_earlier = True
            return
        is_whole = True  # only then it is remembered, or what is missing of an optional path would never be stored
        for access in self._composition.paths:
            if access.writes and access.name in self.pages:
                stored = yield from self._put(
                    store, access, digests, begin, self.page_ids(access.name)[begin - first :], policy
                )
                if not stored and access.required:
                    return
                is_whole = is_whole and stored
            elif access.writes:
                is_whole = False
        if is_whole:
            stored_digests.add(digests[begin:])
            self.prefix = replace(prefix, seen=stored_digests.leading(digests, seen))
        attested: dict[bytes, int] = {}
        for access in self._composition.trailing:
            if access.name not in self.pages:
                continue
            ids = self.page_ids(access.name)
            stored = not access.writes or (yield from self._put(store, access, digests, len(digests) - ids.size, ids, policy))
            if access.required:
                if not stored:
                    return
                if ids.size:  # a window may need nothing at this length
                    attested[access.stored.format_digest] = ids.size
        if all(access.name in self.pages for access in self._composition.trailing if access.required):
            self.is_done = yield from self._put_record(store, digests, attested)

    def _is_lost(self, store: CheckedStorage, digests: Digests, begin: int) -> Asking:
        """Whether the store lacks the last page that it is believed to hold: it was emptied, or evicted the page. What would be
        written behind it could not be found.
        """
        for access in self._composition.paths:
            if access.required and access.writes:
                found = store.look_up(access.name, pool_keys(digests[begin - 1 : begin], access.stored.format_digest))
                yield 0.0
                return not (found.listed[0] or found.unanswered[0])
        return False

    def _put(
        self,
        store: CheckedStorage,
        access: PoolAccess,
        digests: Digests,
        begin: int,
        ids: NDArray[np.int64],
        policy: PersistPolicy,
    ) -> Asking:
        """Store pages of one pool from page `begin` of the prefix on; whether all are stored now."""
        keys = pool_keys(digests[begin : begin + ids.size], access.stored.format_digest)
        if not keys:
            return True
        missing = np.flatnonzero(~store.exists(access.name, keys))
        yield 0.0
        step = access.most_pages(policy.batch_pages)
        for first in range(0, missing.size, step):
            batch = missing[first : first + step].tolist()
            memory = [access.memory.page_memory(page) for page in ids[batch].tolist()]
            outcomes = store.put(access.name, [keys[index] for index in batch], memory)
            taken = sum(outcome is Outcome.DONE for outcome in outcomes)
            self.written_pages += taken
            self.written_bytes += taken * access.stored.value_bytes
            yield taken * access.stored.value_bytes / policy.bytes_per_s if policy.bytes_per_s else 0.0
            refused = [outcome for outcome in outcomes if outcome not in (Outcome.DONE, Outcome.PRESENT)]
            if refused:
                self.failure = self.failure or f"store {refused[0].value}"
                return False
        return True

    def _put_record(self, store: CheckedStorage, digests: Digests, attested: Mapping[bytes, int]) -> Asking:
        pool = self._composition.records
        if pool is None:
            return True
        record = RestorePoint(length_pages=len(digests), chain_digest=digests[-1], attested=attested)
        page = bytearray(record.encode(pool.value_bytes - TRAILER_BYTES) + bytes(TRAILER_BYTES))
        keys = pool_keys(digests[-1:], pool.format_digest)
        if store.exists(pool.name, keys)[0]:
            return True
        yield 0.0
        [outcome] = store.put(pool.name, keys, [memoryview(page)])
        yield 0.0
        if outcome not in (Outcome.DONE, Outcome.PRESENT):
            self.failure = f"store {outcome.value}"
            return False
        return True
