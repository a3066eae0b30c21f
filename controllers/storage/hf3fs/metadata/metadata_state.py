"""All that the metadata service knows, and what it answers; without HTTP, and one thread at a time.

Nothing is answered before it is in the journal. Where that cannot be written, changes are refused until a snapshot could
be: what is on disk then is older than what is in memory, but no page that it gives to a key was given to a writer since.

A snapshot is taken in steps (`snapshot`), between which questions are answered: each copies a few pages' keys here, and writes
them wherever the caller likes. What changes meanwhile is in the journal that was begun with it.

After a service was killed nobody knows who was reading and writing. For one lease's time no page is then handed out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from unified_tree.controllers.storage.hf3fs.metadata import change_record
from unified_tree.controllers.storage.hf3fs.metadata.lease_book import LeaseBook
from unified_tree.controllers.storage.hf3fs.metadata.page_table import PageTable
from unified_tree.controllers.storage.hf3fs.metadata.rank_image import RankImage, snapshot_head, snapshot_part
from unified_tree.controllers.storage.hf3fs.metadata.rank_record import Rank, RefusedError, Shape
from unified_tree.controllers.storage.hf3fs.metadata.state_directory import StateDirectory
from unified_tree.controllers.storage.hf3fs.metadata_wire import GONE, PRESENT, UNKNOWN, WRITTEN
from unified_tree.controllers.storage.setting_checks import LONGEST_S, SECONDS, Bounds, check_number


class MetadataState:
    """Ranks, their namespaces, and the leases on their pages.

    Args:
        directory: where it is kept; None for nowhere. Closed with the state.
        lease_s: how long readers and writers own their pages.
        aside_s: how long pages rest whose writers vanished.
        draw: random numbers of 62 bits.
        clock: seconds, which never go back.
        step_pages: whose keys one step of a snapshot copies, 40 bytes each.

    Raises ConfigurationError for invalid numbers, and StorageError where the directory cannot be read.
    Methods about keys raise RefusedError for a rank or namespace that is not known, and for another epoch than the rank's.
    """

    def __init__(
        self,
        directory: StateDirectory | None,
        *,
        lease_s: float,
        aside_s: float,
        draw: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        step_pages: int = 1 << 14,
    ) -> None:
        check_number("lease_s", lease_s, float, SECONDS)
        check_number("aside_s", aside_s, float, Bounds(0, LONGEST_S))
        check_number("step_pages", step_pages, int, Bounds(1, 1 << 24))
        self._directory = directory
        self.lease_s = lease_s
        self._clock = clock
        self._draw = draw
        self._leases = LeaseBook(lease_s, aside_s, draw())
        self._step_pages = step_pages
        self._is_snapshotting = False
        self._failures = 0
        self._is_behind = False
        images: Mapping[str, RankImage] = {}
        is_clean = True
        if directory is not None:
            images, is_clean = directory.load()
        quiet_until = clock() if is_clean else clock() + lease_s
        self._ranks = {name: Rank.of(image, quiet_until) for name, image in images.items()}
        self._snapshot_now()

    def open(self, name: str, shapes: Mapping[str, Shape], seen: int, *, may_replace: bool) -> int:
        """The epoch of a rank whose file has these namespaces.

        A rank is made where there is none. One with other namespaces is begun anew if that is allowed; so is one whose file is
        not the one that it knows (`seen`, the epoch that the file bears, 0 for none). Neither while somebody reads or writes.
        A file that holds something without bearing a mark (a negative `seen`) may be anybody's: it makes no rank.
        """
        self._begin()
        rank = self._ranks.get(name)
        if rank is None and seen < 0:
            raise RefusedError(
                409,
                f"rank {name} is not known, and its file holds something that is not ours; move it away, or name another rank",
            )
        seen = max(seen, 0)
        if rank is None:
            return self._made(name, shapes, self._clock() + self._leases.lease_s * bool(seen))
        if rank.shapes != shapes and not may_replace:
            raise RefusedError(409, f"rank {name} was opened with other namespaces: {rank.described()}")
        if rank.shapes == shapes and (seen == rank.epoch or (not seen and rank.is_untouched)):
            return rank.epoch
        if rank.is_in_use:
            raise RefusedError(409, f"rank {name} is in use with other namespaces, or with another file; try later")
        return self._made(name, shapes, rank.quiet_until)

    def lookup(self, rank: str, epoch: int, namespace: str, keys: Sequence[bytes], ended: Sequence[int]) -> list[int]:
        """Where keys are, which may change at any time."""
        self._begin(ended)
        return self._table(rank, epoch, namespace).find(keys)

    def read(self, rank: str, epoch: int, namespace: str, keys: Sequence[bytes], ended: Sequence[int]) -> tuple[int, list[int]]:
        """A lease (0 for nothing), and where keys are; that does not change until the lease ends."""
        self._begin(ended)
        table = self._table(rank, epoch, namespace)
        pages = table.find(keys)
        found = [page for page in pages if page >= 0]
        return (self._leases.read(table, found, self._clock()) if found else 0), pages

    def reserve(
        self, rank: str, epoch: int, namespace: str, keys: Sequence[bytes], ended: Sequence[int]
    ) -> tuple[int, list[int]]:
        """A lease (0 for nothing), and a page to write for each key, or why there is none."""
        self._begin(ended)
        self._check_writable()
        table = self._table(rank, epoch, namespace)
        is_quiet = self._clock() < self._ranks[rank].quiet_until
        answers, evicted = table.reserve(keys, is_quiet=is_quiet)
        given = [key for key, page in zip(keys, answers, strict=True) if page >= 0]
        lease = self._leases.write(table, given, self._clock()) if given else 0
        if evicted:
            self._log(change_record.removed(rank, namespace, evicted))
        return lease, answers

    def confirm(
        self, rank: str, epoch: int, namespace: str, lease: int, keys: Sequence[bytes], flags: bytes, ended: Sequence[int]
    ) -> list[int]:
        """Learn how writing ended (`metadata_wire.WRITTEN` and the others): PRESENT, or GONE for what is not kept."""
        self._begin(ended)
        self._check_writable()
        table = self._table(rank, epoch, namespace)
        answers, pages = [GONE] * len(keys), {}
        for index, (key, flag) in enumerate(zip(keys, flags, strict=True)):
            if not self._leases.is_writing(lease, key):
                continue
            self._leases.wrote(lease, key)
            if flag == WRITTEN:
                pages[key], answers[index] = table.confirm(key), PRESENT
            elif flag == UNKNOWN:
                self._leases.set_aside(table, key, self._clock())
            else:
                table.cancel(key)
        if pages:
            self._log(change_record.added(rank, namespace, list(pages), list(pages.values())))
        return answers

    def delete(self, rank: str, epoch: int, namespace: str, keys: Sequence[bytes], ended: Sequence[int]) -> list[int]:
        """Forget keys; those being written are left alone."""
        self._begin(ended)
        self._check_writable()
        gone = self._table(rank, epoch, namespace).forget(keys)
        if gone:
            self._log(change_record.removed(rank, namespace, gone))
        return [GONE] * len(keys)

    def clear(self, rank: str, epoch: int, namespace: str) -> int:
        """Forget all keys of a namespace; how many."""
        self._begin()
        self._check_writable()
        table = self._table(rank, epoch, namespace)
        gone = table.forget(table.held_keys())
        if gone:
            self._log(change_record.cleared(rank, namespace))
        return len(gone)

    def stats(self) -> dict[str, Any]:
        """Counts and gauges by rank and namespace. Cost: O(namespaces)."""
        self._begin()
        return {"is_behind": self._is_behind, "ranks": {name: rank.stats() for name, rank in self._ranks.items()}}

    @property
    def is_snapshot_due(self) -> bool:
        """Whether somebody should take a `snapshot`: the journal is long, or could not be written."""
        due = self._directory is not None and (self._is_behind or self._directory.is_due)
        return due and not self._is_snapshotting

    def snapshot(self, *, is_clean: bool = False) -> Generator[Callable[[], None], None, None]:
        """Take a snapshot: make each call that this yields, then go on; between them the state may be used as ever.

        The calls touch files and nothing else, block, and may be made in any thread. What one raises (OSError) is the caller's,
        who then closes the iterator: what was on disk before still counts. One snapshot at a time. Cost of a step: a copy of
        40 bytes for each of `step_pages` pages; of the first: O(namespaces).
        """
        directory = self._directory
        assert directory is not None and not self._is_snapshotting
        self._is_snapshotting, is_whole, before_bytes, failures = True, False, 0, 0
        snapshot = directory.new_snapshot()
        try:
            yield snapshot.make
            before_bytes, failures = directory.changed_bytes, self._failures
            directory.begin(snapshot)
            tables = [table for rank in self._ranks.values() for table in rank.tables.values()]
            images = [rank.image(name) for name, rank in self._ranks.items()]
            ends = [table.saved_pages for table in tables]
            head = snapshot_head(images, ends, is_clean=is_clean, generation=snapshot.generation)
            yield partial(snapshot.write, head)
            for table, end in zip(tables, ends, strict=True):
                for begin in range(0, end, self._step_pages):
                    part = snapshot_part(*table.saved(begin, min(begin + self._step_pages, end)))
                    yield partial(snapshot.write, part)
            yield snapshot.finish
            is_whole = True
        finally:
            self._is_snapshotting = False
            snapshot.abandon()
            if is_whole:
                directory.finished(snapshot, before_bytes)
                self._is_behind = self._is_behind and self._failures != failures
            else:
                directory.failed()

    def check(self) -> None:
        """Raise AssertionError where a page is in no place, or in two. Cost: O(pages); for tests."""
        for name, rank in self._ranks.items():
            for namespace, table in rank.tables.items():
                assert sorted(table.owners()) == list(range(table.page_count)), (name, namespace)

    def tables(self, rank: str) -> Mapping[str, PageTable]:
        """The tables of a rank, to be looked at."""
        return self._ranks[rank].tables

    def abandon(self) -> None:
        """Close the directory without writing anything, as a kill would."""
        if self._directory is not None:
            self._directory.close()

    def close(self) -> None:
        """Write everything down."""
        if self._directory is not None:
            now = self._clock()
            self._leases.expire(now)
            is_clean = self._leases.is_empty and all(rank.quiet_until <= now for rank in self._ranks.values())
            self._snapshot_now(is_clean=is_clean)
            self._directory.close()

    def _begin(self, ended: Sequence[int] = ()) -> None:
        self._leases.expire(self._clock())
        self._leases.end(ended)

    def _table(self, name: str, epoch: int, namespace: str) -> PageTable:
        rank = self._ranks.get(name)
        if rank is None or rank.epoch != epoch:
            raise RefusedError(410, f"rank {name} has another epoch than {epoch}, or is not known; open it")
        if namespace not in rank.tables:
            raise RefusedError(404, f"rank {name} has no namespace {namespace!r}: {', '.join(rank.tables)}")
        return rank.tables[namespace]

    def _made(self, name: str, shapes: Mapping[str, Shape], quiet_until: float) -> int:
        self._check_writable()
        rank = Rank(self._draw() or 1, shapes, quiet_until)
        self._ranks[name] = rank
        self._log(change_record.opened(rank.image(name)))
        return rank.epoch

    def _log(self, record: bytes) -> None:
        if self._directory is None:
            return
        try:
            self._directory.append(record)
        except OSError as error:
            self._is_behind = True
            self._failures += 1
            raise RefusedError(503, f"the journal cannot be written: {error}") from error

    def _check_writable(self) -> None:
        if self._is_behind:
            raise RefusedError(503, "the state cannot be written to its directory until a snapshot could be; is the disk full?")

    def _snapshot_now(self, *, is_clean: bool = False) -> None:
        """Before anybody asks anything, and after."""
        if self._directory is None:
            return
        self._is_behind = True
        self._failures += 1
        try:
            with closing(self.snapshot(is_clean=is_clean)) as calls:
                for call in calls:
                    call()
        except OSError:
            return  # changes are refused until somebody's snapshot is whole
