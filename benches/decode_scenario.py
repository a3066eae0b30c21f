"""A step of a decode batch: many leases gain a token each."""

from __future__ import annotations

from array import array
from time import perf_counter_ns
from typing import Any

import numpy as np

from benches.scenarios import Scenario

ROOM_TOKENS = 4096


class DecodeStep(Scenario):
    """`paths` leases of `length` tokens each, which share most of their prompts; a sample is one step of all of them."""

    question = "What does a step cost in which each running request gets a token: pages, windows given back, slots to write to?"
    silent_on = "commits, requests that arrive and end, copies of the tables to a device"
    warm_up = 20

    def set_up(self) -> None:
        """All requests prefilled, and in the batch."""
        from unified_tree import Key  # a rival's process has no use for it

        case, subject = self.case, self.subject
        cache: Any = subject.cache  # type: ignore[attr-defined]  # the contestant is `prefix_cache`
        self.batch = cache.batch(case.paths, case.length + ROOM_TOKENS)
        shared = array("q", range(case.length - 1))
        for path in range(case.paths):
            period = max(case.page_size, cache.layout.save_grid_tokens)  # so that pages end, and states are due, at every step
            kept = case.length - 1 - path % min(period, case.length - 1)
            tokens = np.array([*shared[:kept], case.length + path], np.int64)
            lease = cache.acquire(Key(tokens))
            cache.allocate(lease, len(tokens))
            cache.commit(lease, tokens, dict(lease.save_pages))
            self.batch.add(lease)

    def sample(self) -> int:
        """What was allocated is computed; each gets a token and the slot for it."""
        batch = self.batch
        if batch.lengths.max() == batch.max_tokens:
            batch.truncate(np.full(batch.rows.size, self.case.length))
        start = perf_counter_ns()
        batch.advance()
        batch.allocate()
        for component in batch.tables:
            batch.slots(component)
        spent = perf_counter_ns() - start
        self.answer(int(batch.lengths.sum()))
        return spent
