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
    from unified_tree.controllers.storage_tier.stored_digests import StoredDigests
    from unified_tree.declare.keys import Key


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
        listed_pages: a longer length that the store listed, but of which it failed lately to give some pages; 0 for none.
        believed_pages: how many of the first pages were seen in the store before.
        is_unanswered: the store did not say whether it has what lies behind `reach_pages`.
        is_over: whether the look-up has ended.
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
        self.listed_pages = 0
        self.believed_pages = 0
        self.is_unanswered = False
        self.is_over = False
        self._is_stopped = False
        self._records: dict[int, RestorePoint] = {}

    def stop(self) -> None:
        """Make running jobs stop querying and reading. The look-up then finds nothing."""
        self._is_stopped = True

    def is_stopped(self) -> bool:
        """Whether `stop` was called; a job checks it before each call of the store, because another thread may set it."""
        return self._is_stopped

    @property
    def silent_pages(self) -> int:
        """How long a prefix was seen in the store before of which it has not said so far whether it has it; 0 for none."""
        return self.believed_pages if self.is_unanswered or not self.is_over else 0

    @property
    def longest_pages(self) -> int:
        """The longest prefix that can be restored, as far as the look-up has come; 0 if there is none."""
        found = np.flatnonzero(self.lengths)
        return int(found[-1]) if found.size else 0

    def keys(self, access: PoolAccess, begin: int, end: int) -> list[bytes]:
        """The keys of a pool's pages [begin, end)."""
        return pool_keys(self.digests[begin:end], access.stored.format_digest)

    def found_elsewhere(
        self,
        lengths: NDArray[np.bool_],
        chain: KeyChain,
        *,
        listed_pages: int = 0,
        believed_pages: int = 0,
        is_unanswered: bool = False,
    ) -> None:
        """Other processes have looked the prompt up; the arguments are as the attributes."""
        self.chain = chain
        self.listed_pages = listed_pages
        self.believed_pages = believed_pages
        self.is_unanswered = is_unanswered
        self.lengths = lengths
        self.reach_pages = lengths.size - 1

    def look_up(
        self, store: CheckedStorage, composition: StoredComposition, chain: KeyChain, stored_digests: StoredDigests
    ) -> Steps:
        """The job."""
        self.chain = chain
        if self.is_stopped():
            return
        size, base = composition.page_size, self.base_pages
        self.digests = chain.continued(self._known, self.key.prefix(self.limit_pages * size))
        self.believed_pages = stored_digests.leading(self.digests).page_count
        reach = listed = self.limit_pages  # as far as can be read, and as far as the store says that it has
        for access in composition.paths:
            if access.required and listed > base:
                found = store.look_up(access.name, self.keys(access, base, listed))
                yield 0.0
                if self.is_stopped():
                    return
                reach = min(reach, base + _leading(found.there))
                listed = min(listed, base + _leading(found.listed))
                self.is_unanswered = listed - base < found.unanswered.size and bool(found.unanswered[listed - base])
        self.reach_pages = reach
        self.lengths = np.zeros(reach + 1, np.bool_)
        findings: list[PoolFinding] = []
        would_be_found: list[PoolFinding] = []
        if listed <= self.resumable_pages:
            return
        if composition.records is not None:
            yield from self._read_records(store, composition, reach, listed)
            for access in composition.trailing if reach > self.resumable_pages else ():
                if access.required and not self.is_stopped():
                    finding, listing = self._find_trailing(store, access, size, reach)
                    findings.append(finding)
                    would_be_found.append(listing)
                    yield 0.0
            if self.is_stopped():
                return
        elif listed > reach:
            self.listed_pages = listed
        if reach > self.resumable_pages:
            self.lengths = restorable_lengths(findings, reach, size)
            self.lengths[: self.resumable_pages + 1] = False
            if would_be_found:
                listed_lengths = np.flatnonzero(restorable_lengths(would_be_found, reach, size))
                self._note_listed(int(listed_lengths[-1]) if listed_lengths.size else 0)

    def _note_listed(self, pages: int) -> None:
        """The store would have brought a prefix of this length, had it given lately what it lists."""
        if pages > max(self.longest_pages, self.resumable_pages):
            self.listed_pages = max(self.listed_pages, pages)

    def _read_records(self, store: CheckedStorage, composition: StoredComposition, reach: int, listed: int) -> Steps:
        """Read the restore points up to `reach`, and note up to which of those before `listed` there is one."""
        pool, first = composition.records, self.resumable_pages
        assert pool is not None
        keys = pool_keys(self.digests[first:listed], pool.format_digest)
        found = store.look_up(pool.name, keys)
        self.is_unanswered = self.is_unanswered or bool(found.unanswered.any())
        lost = np.flatnonzero(found.listed & ~(found.there & (np.arange(len(keys)) < reach - first)))
        self.listed_pages = first + int(lost[-1]) + 1 if lost.size else 0
        there = np.flatnonzero(found.there[: max(0, reach - first)])
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
                self._records[first + index] = record
            else:
                self.listed_pages = max(self.listed_pages, first + index + 1)

    def _find_trailing(
        self, store: CheckedStorage, access: PoolAccess, size: int, reach: int
    ) -> tuple[PoolFinding, PoolFinding]:
        """What can be asked for of a pool, and what is listed."""
        attested = attested_pages(self._records, self.digests[:reach], access.stored.format_digest)
        first = access.need.first_pages(reach, size)
        wanted = np.zeros(reach + 1, np.int64)  # how many windows begin less end before each page
        for page in np.flatnonzero(attested).tolist():
            wanted[first[page + 1]] += 1
            wanted[page + 1] -= 1
        asked = np.flatnonzero(np.cumsum(wanted[:-1]) > 0)
        pages, listed = np.zeros(reach, np.bool_), np.zeros(reach, np.bool_)
        if asked.size:
            keys = pool_keys([self.digests[page] for page in asked.tolist()], access.stored.format_digest)
            found = store.look_up(access.name, keys)
            pages[asked], listed[asked] = found.there, found.listed
            self.is_unanswered = self.is_unanswered or bool(found.unanswered.any())
        return (
            PoolFinding(need=access.need, pages=pages, attested=attested),
            PoolFinding(need=access.need, pages=listed, attested=attested),
        )


def _leading(found: NDArray[np.bool_]) -> int:
    """How many of the first are all True."""
    missing = np.flatnonzero(~found)
    return int(missing[0]) if missing.size else found.size
