"""A commit of one page, by the length of what is committed before it."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

import numpy as np

from benches.scenarios import Scenario


class CommitPage(Scenario):
    """One lease whose prompt of `length` tokens is committed; a sample is the commit of one page more."""

    question = "What does it cost to commit one page that was computed, by the length of what is committed before it?"
    silent_on = "the page's allocation, evictions, what the first commit behind a long copy finds in the processor's caches"
    warm_up = 20

    def set_up(self) -> None:
        """The prompt, with room for all samples, committed up to `length`."""
        from unified_tree import Key  # a rival's process has no use for it

        case, subject = self.case, self.subject
        self.cache: Any = subject.cache  # type: ignore[attr-defined]  # the contestant is `prefix_cache`
        pages = self.warm_up + case.samples * case.rounds
        self.end = case.length // case.page_size * case.page_size
        prompt = np.frombuffer(self.tokens(self.end + pages * case.page_size), np.int64)
        self.lease = self.cache.acquire(Key(prompt))
        self.cache.allocate(self.lease, self.end)
        self.cache.commit(self.lease, self.end)

    def sample(self) -> int:
        """The next page."""
        cache, lease = self.cache, self.lease
        self.end += self.case.page_size
        cache.allocate(lease, self.end)
        start = perf_counter_ns()
        cache.commit(lease, self.end)
        spent = perf_counter_ns() - start
        self.answer(lease.committed)
        return spent
