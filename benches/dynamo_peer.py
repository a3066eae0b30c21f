"""Dynamo's RadixTree as a contestant: a router's index of block hashes, so it matches and nothing else."""

from __future__ import annotations

import importlib
import json
from time import perf_counter_ns

from benches.subject import Capacity, Limited, Tokens, UnsupportedError

SMALLEST_BLOCK_TOKENS = 16
WORKER = 0


class DynamoSubject(Limited):
    """`compute_block_hash_for_seq` and `find_matches`."""

    def __init__(self) -> None:
        self._core = importlib.import_module("dynamo._core")

    def open(self, components: str, page_size: int, capacity: Capacity | None) -> None:
        """See Subject."""
        if components != "full" or page_size < SMALLEST_BLOCK_TOKENS or capacity is not None:
            raise UnsupportedError("matches of full attention with blocks of 16 tokens and more only")
        self.page_size = page_size
        self.tree = self._core.RadixTree()
        self.events = 0

    def insert(self, tokens: Tokens, known_tokens: int) -> tuple[int, int]:
        """See Subject. Goes in as an engine's event."""
        hashes = self._core.compute_block_hash_for_seq(tokens, self.page_size)
        known = known_tokens // self.page_size
        blocks = [{"block_hash": digest, "tokens_hash": digest} for digest in hashes[known:]]
        stored = {"parent_hash": hashes[known - 1] if known else None, "blocks": blocks}
        self.events += 1
        event = {"event_id": self.events, "data": {"stored": stored}, "dp_rank": 0}
        self.tree.apply_event(WORKER, json.dumps(event).encode())
        return 0, known_tokens

    def match(self, tokens: Tokens, *, with_pages: bool) -> tuple[int, int]:
        """See Subject. There are no page ids to hand out: it counts blocks a worker."""
        del with_pages
        start = perf_counter_ns()
        found = self.tree.find_matches(self._core.compute_block_hash_for_seq(tokens, self.page_size))
        spent = perf_counter_ns() - start
        return spent, max(found.scores.values(), default=0) * self.page_size
