"""Pages in one preallocated file a rank on 3FS; the metadata service says which page of it belongs to which key.

A put reserves pages, writes them, and confirms those that were written; until then nobody is told of them. A get reads
under a lease, and what was read counts only if the lease had not ended by then, by a clock that was started before it was
asked for. So a page is never handed out that somebody else wrote to meanwhile.

Two things can be away, the metadata service and the file system. Each has a breaker; while either is open everything is a miss.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from unified_tree.controllers.storage.engine_settings import engine_opener
from unified_tree.controllers.storage.guarded_storage import CircuitBreaker, GuardedStorage
from unified_tree.controllers.storage.hf3fs.file_layout import layout_within
from unified_tree.controllers.storage.hf3fs.hf3fs_settings import Hf3fsSettings
from unified_tree.controllers.storage.hf3fs.metadata_client import MetadataAwayError, MetadataClient, MetadataRefusedError
from unified_tree.controllers.storage.hf3fs.metadata_wire import (
    LARGEST_BATCH,
    PRESENT,
    UNKNOWN,
    UNWRITTEN,
    WRITTEN,
)
from unified_tree.controllers.storage.hf3fs.open_rank import OpenRank, RankOpener
from unified_tree.controllers.storage.hf3fs.range_file import Ending, FileRange, IoWorkers
from unified_tree.controllers.storage.storage_engine import Capabilities, Outcome, StoredPool
from unified_tree.terms.errors import StorageError

_Move = Callable[[OpenRank, str, Sequence[bytes], Sequence[memoryview]], list[Outcome]]
_FLAGS = {Ending.DONE: WRITTEN, Ending.FAILED: UNWRITTEN, Ending.UNTRIED: UNWRITTEN, Ending.UNKNOWN: UNKNOWN}


class Hf3fsStorage(GuardedStorage):
    """A StorageEngine over a file and the metadata service, degraded while either is away.

    Pages are DROPPED while all of the file's are in use, and for a lease after the service was killed. `exists` raises
    StorageError when the service stops answering; later everything is a miss. `clear` also takes what others put for this rank.

    Args:
        pools: what it keeps; each is a namespace of the service.
        settings: where and how.
        usrbio: in place of the module `hf3fs_fuse.io`, for tests.

    Raises StorageError where the service or the directory cannot be used, or others use the rank otherwise; ConfigurationError
    for a capacity that does not hold a page of every pool, and for usrbio where there is none.
    """

    def __init__(self, pools: Iterable[StoredPool], settings: Hf3fsSettings, usrbio: Any = None) -> None:
        super().__init__("hf3fs", pools)
        self._settings = settings
        self._layout = layout_within(settings.capacity_bytes, list(self._pools.values()))
        self._client = MetadataClient(
            settings.address, settings.rank, settings.token, settings.request_timeout_s, settings.ended_leases
        )
        self._workers = IoWorkers(
            settings.io_threads,
            f"hf3fs {settings.rank}",
            idle_s=settings.thread_idle_s,
            close_wait_s=settings.close_wait_s,
        )
        try:
            opener = RankOpener(settings, self._layout, self._client, self._workers, usrbio)
            self._access = RankAccess(opener, self._workers, settings.retry_pause_s)
        except BaseException:
            self._client.close()
            self._workers.close()
            raise

    @property
    def capabilities(self) -> Capabilities:
        """See StorageEngine.capabilities. Reads take a copy, so that one that comes late finds nobody's memory."""
        return Capabilities(zero_copy=False, shared_between_hosts=True, survives_restart=True)

    def _exists(self, pool: str, keys: Sequence[bytes]) -> list[bool]:
        found: list[int] = []
        for part in _parts(len(keys)):
            found += self._access.asked(partial(self._lookup, pool, keys[part]))
        return [page >= 0 for page in found]

    def _get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        return [out for part in _parts(len(keys)) for out in self._tried(self._read, pool, keys[part], pages[part])]

    def _put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        return [out for part in _parts(len(keys)) for out in self._tried(self._write, pool, keys[part], pages[part])]

    def _remove(self, pool: str, keys: Sequence[bytes]) -> None:
        for part in _parts(len(keys)):
            self._access.check_service("remove")
            self._access.asked(partial(self._delete, pool, keys[part]))

    def _clear(self) -> None:
        for pool in self._pools:
            self._access.check_service("clear")
            self._access.asked(partial(self._clear_pool, pool))

    def _admits(self) -> bool:
        return self._access.admits()

    def _is_degraded(self) -> bool:
        return self._access.is_degraded

    def _close(self) -> None:
        self._access.close()
        self._client.close()
        self._workers.close()

    def _lookup(self, pool: str, keys: Sequence[bytes], rank: OpenRank) -> list[int]:
        return self._client.lookup(rank.epoch, pool, keys)

    def _delete(self, pool: str, keys: Sequence[bytes], rank: OpenRank) -> None:
        self._client.delete(rank.epoch, pool, keys)

    def _clear_pool(self, pool: str, rank: OpenRank) -> None:
        self._client.clear(rank.epoch, pool)

    def _read(self, rank: OpenRank, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        begun = time.monotonic()
        lease, where = self._client.read(rank.epoch, pool, keys)
        self._access.answered()
        lease_ends = begun + rank.lease_s
        there = [index for index, page in enumerate(where) if page >= 0]
        ranges = self._ranges(pool, there, where, pages)
        endings = rank.file.read(ranges, min(time.monotonic() + self._settings.io_timeout_s, lease_ends))
        outcomes = [Outcome.MISSING] * len(keys)
        in_time = time.monotonic() < lease_ends
        for index, ending in zip(there, endings, strict=True):
            outcomes[index] = Outcome.DONE if ending is Ending.DONE and in_time else Outcome.FAILED
        if lease:
            self._client.ended(lease)
        is_file_well = self._access.judge(rank, endings)
        unreadable = [keys[index] for index, ending in zip(there, endings, strict=True) if ending is Ending.FAILED]
        if unreadable and is_file_well:
            self._client.delete(rank.epoch, pool, unreadable)  # else they could never be put again
        return outcomes

    def _write(self, rank: OpenRank, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        begun = time.monotonic()
        lease, where = self._client.reserve(rank.epoch, pool, keys)
        self._access.answered()
        outcomes = [Outcome.PRESENT if page == PRESENT else Outcome.DROPPED for page in where]
        ours = [index for index, page in enumerate(where) if page >= 0]
        if not ours:
            return outcomes
        deadline = min(time.monotonic() + self._settings.io_timeout_s, begun + rank.lease_s)
        endings = rank.file.write(self._ranges(pool, ours, where, pages), deadline)
        self._access.judge(rank, endings)
        flags = bytes(_FLAGS[ending] for ending in endings)
        for index in ours:
            outcomes[index] = Outcome.FAILED
        answers = self._client.confirm(rank.epoch, pool, lease, [keys[index] for index in ours], flags)
        for index, answer in zip(ours, answers, strict=True):
            if answer == PRESENT:
                outcomes[index] = Outcome.DONE
        return outcomes

    def _ranges(self, pool: str, indices: list[int], where: list[int], pages: Sequence[memoryview]) -> list[FileRange]:
        region = self._layout.regions[pool]
        return [FileRange(region.page_at(where[index]), pages[index]) for index in indices]

    def _tried(self, move: _Move, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        try:
            return self._access.asked(lambda rank: move(rank, pool, keys, pages))
        except StorageError as error:
            self._log.warning("tried", "hf3fs: pages of pool %r could not be read or written: %s", pool, error)
            return [Outcome.FAILED] * len(keys)


def _parts(count: int) -> Iterator[slice]:
    for start in range(0, count, LARGEST_BATCH):
        yield slice(start, start + LARGEST_BATCH)


open_hf3fs = engine_opener("hf3fs", Hf3fsSettings, Hf3fsStorage)
"""An engine with the settings of `Hf3fsSettings`, from here, a file, or the environment; raises as both."""


Result = TypeVar("Result")
_OTHER_EPOCH = 410


class RankAccess:
    """The open rank, and the two breakers. Any thread may ask.

    Args:
        opener: of the rank; it is opened at once, and raises what it raises.
        workers: in which files are read and written.
        retry_pause_s: between two tries of what is away.
    """

    def __init__(self, opener: RankOpener, workers: IoWorkers, retry_pause_s: float) -> None:
        self._opener = opener
        self._workers = workers
        self._service = CircuitBreaker(retry_pause_s, store="hf3fs: the metadata service")
        self._files = CircuitBreaker(retry_pause_s, store="hf3fs: the file of the rank")
        self._opening = threading.Lock()
        self.rank = opener.open(first=True)

    @property
    def is_degraded(self) -> bool:
        """Whether the service or the file system is taken to be away."""
        return self._service.is_open or self._files.is_open

    def admits(self) -> bool:
        """Whether a call may be tried. The first one after a pause opens a file that failed anew, which proves it."""
        if self._files.is_open and not self._reopened():
            return False
        return self._service.admits()

    def check_service(self, call: str) -> None:
        """Raise StorageError while the service is taken to be away."""
        if not self._service.admits():
            raise StorageError(f"hf3fs: cannot {call}, the metadata service is away")

    def asked(self, ask: Callable[[OpenRank], Result]) -> Result:
        """What the service answers; one that does not know the rank is told of it, once. Raises what the client does."""
        try:
            rank = self.rank
            try:
                answer = ask(rank)
            except MetadataRefusedError as error:
                if error.status != _OTHER_EPOCH:
                    raise
                self._open_again(rank)
                answer = ask(self.rank)
        except StorageError:
            self._service.failed()
            raise
        self._service.succeeded()
        return answer

    def answered(self) -> None:
        """The service did, in the middle of a call."""
        self._service.succeeded()

    def judge(self, rank: OpenRank, endings: Sequence[Ending]) -> bool:
        """Learn how reading or writing went; whether the file is well."""
        is_well = Ending.UNKNOWN not in endings and Ending.UNTRIED not in endings and not rank.file.is_lost
        if not is_well:
            self._files.failed()
        elif endings:
            self._files.succeeded()
        return is_well

    def close(self) -> None:
        """Close the file."""
        self.rank.file.close()

    def _reopened(self) -> bool:
        if self._workers.are_all_stuck or not self._files.admits():
            return False
        try:
            self._open_again(self.rank)
        except MetadataAwayError:
            self._service.failed()
            return False
        except StorageError:
            self._files.failed()
            return False
        self._files.succeeded()
        return True

    def _open_again(self, old: OpenRank) -> None:
        """Put another open rank in the place of this one, unless another thread has."""
        with self._opening:
            if self.rank is old:
                self.rank = self._opener.open(first=False)
                old.file.close()
