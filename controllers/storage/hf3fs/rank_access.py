"""Whether a rank can be used now, and getting it back when it could not.

Two things can be away, the metadata service and the file system. Each has a breaker; while either is open everything is a miss.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from unified_tree.controllers.storage.guarded_storage import CircuitBreaker
from unified_tree.controllers.storage.hf3fs.io_workers import IoWorkers
from unified_tree.controllers.storage.hf3fs.metadata_client import MetadataAwayError, MetadataRefusedError
from unified_tree.controllers.storage.hf3fs.open_rank import OpenRank, RankOpener
from unified_tree.controllers.storage.hf3fs.range_file import Ending
from unified_tree.terms.errors import StorageError

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
