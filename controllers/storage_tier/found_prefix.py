"""What a store has of a prompt: a look-up job, and its result.

It queries the paths first, from the end of the host's paths on, and only as far as all of them reach. If windows or states are
needed too, the restore points along the path tell which lengths to query; of each pool only the pages that those need are
queried. Only the restore points are read. Cost: one query per pool, O(pages), and a hash per page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.pools.host_layout import TRAILER_BYTES
from unified_tree.controllers.storage.digests import Digests
from unified_tree.controllers.storage.hit_policy import PoolFinding, restorable_lengths
from unified_tree.controllers.storage.key_chain import pool_keys
from unified_tree.controllers.storage.restore_point import RestorePoint, attested_pages
from unified_tree.controllers.storage.storage_engine import Outcome

if TYPE_CHECKING:
    from unified_tree.controllers.storage.checked_storage import CheckedStorage
    from unified_tree.controllers.storage.key_chain import KeyChain
    from unified_tree.controllers.storage_tier.jobs import Steps
    from unified_tree.controllers.storage_tier.stored_composition import PoolAccess, StoredComposition
    from unified_tree.keys import Key


class FoundPrefix:
    """What was found, filled by `look_up`.

    Args:
        limit_pages: maximum prefix length to query.
        known: chain digests of the first pages, which are not hashed again.

    Attributes:
        base_pages: pages of the required paths that are on host, and so not queried.
        resumable_pages: the length that can be resumed without the store.
        digests: chain digests of all pages up to the last one queried.
        chain: of the digests, once it is looked up.
        reach_pages: how far the required paths go.
        lengths: which lengths can be restored, shape [reach_pages + 1], without those resumable without the store.
    """

    def __init__(self, key: Key, base_pages: int, limit_pages: int, resumable_pages: int, known: Digests | None = None) -> None:
        self.key = key
        self.base_pages = base_pages
        self.limit_pages = limit_pages
        self.resumable_pages = resumable_pages
        self._known = Digests() if known is None else known
        self.digests = Digests()
        self.chain: KeyChain | None = None
        self.reach_pages = base_pages
        self.lengths: NDArray[np.bool_] = np.zeros(base_pages + 1, np.bool_)
        self._is_stopped = False
        self._records: dict[int, RestorePoint] = {}

    def stop(self) -> None:
        """Make running jobs stop querying and reading. The look-up then finds nothing."""
        self._is_stopped = True

    def is_stopped(self) -> bool:
        """Whether `stop` was called; a job checks it before each call of the store, because another thread may set it."""
        return self._is_stopped

    @property
    def longest_pages(self) -> int:
        """The longest prefix that can be restored, as far as the look-up has come; 0 if there is none."""
        found = np.flatnonzero(self.lengths)
        return int(found[-1]) if found.size else 0

    def keys(self, access: PoolAccess, begin: int, end: int) -> list[bytes]:
        """The keys of a pool's pages [begin, end)."""
        return pool_keys(self.digests[begin:end], access.stored.format_digest)

    def found_elsewhere(self, lengths: NDArray[np.bool_], chain: KeyChain) -> None:
        """Other processes have looked the prompt up; which lengths can be restored, as `lengths`."""
        self.chain = chain
        self.lengths = lengths
        self.reach_pages = lengths.size - 1

    def look_up(self, store: CheckedStorage, composition: StoredComposition, chain: KeyChain) -> Steps:
        """The job."""
        self.chain = chain
        if self.is_stopped():
            return
        size, base = composition.page_size, self.base_pages
        self.digests = chain.continued(self._known, self.key.prefix(self.limit_pages * size))
        reach = self.limit_pages
        for access in composition.paths:
            if access.required and reach > base:
                found = store.exists(access.name, self.keys(access, base, reach))
                yield 0.0
                if self.is_stopped():
                    return
                missing = np.flatnonzero(~found)
                reach = base + int(missing[0]) if missing.size else reach
        self.reach_pages = reach
        self.lengths = np.zeros(reach + 1, np.bool_)
        if reach <= self.resumable_pages:
            return
        findings: list[PoolFinding] = []
        if composition.records is not None:
            yield from self._read_records(store, composition, reach)
            for access in composition.trailing:
                if access.required and not self.is_stopped():
                    findings.append(self._find_trailing(store, access, size, reach))
                    yield 0.0
            if self.is_stopped():
                return
        self.lengths = restorable_lengths(findings, reach, size)
        self.lengths[: self.resumable_pages + 1] = False

    def _read_records(self, store: CheckedStorage, composition: StoredComposition, reach: int) -> Steps:
        pool = composition.records
        assert pool is not None
        keys = pool_keys(self.digests[self.resumable_pages : reach], pool.format_digest)
        there = np.flatnonzero(store.exists(pool.name, keys))
        yield 0.0
        if self.is_stopped():
            return
        memory = bytearray(there.size * pool.value_bytes)
        pages = [memoryview(memory)[at : at + pool.value_bytes] for at in range(0, len(memory), pool.value_bytes)]
        outcomes = store.get(pool.name, [keys[index] for index in there], pages)
        yield 0.0
        for index, page, outcome in zip(there.tolist(), pages, outcomes, strict=True):
            record = RestorePoint.decode(page[:-TRAILER_BYTES]) if outcome is Outcome.DONE else None
            if record is not None:
                self._records[self.resumable_pages + index] = record

    def _find_trailing(self, store: CheckedStorage, access: PoolAccess, size: int, reach: int) -> PoolFinding:
        attested = attested_pages(self._records, self.digests[:reach], access.stored.format_digest)
        first = access.need.first_pages(reach, size)
        wanted = np.zeros(reach + 1, np.int64)  # how many windows begin less end before each page
        for page in np.flatnonzero(attested).tolist():
            wanted[first[page + 1]] += 1
            wanted[page + 1] -= 1
        asked = np.flatnonzero(np.cumsum(wanted[:-1]) > 0)
        pages = np.zeros(reach, np.bool_)
        if asked.size:
            keys = pool_keys([self.digests[page] for page in asked.tolist()], access.stored.format_digest)
            pages[asked] = store.exists(access.name, keys)
        return PoolFinding(need=access.need, pages=pages, attested=attested)
