"""A sample of a workload: whole root subtrees, chosen by a hash, so that whoever may share anything is in it or is not.

What very many requests share, such as a system prompt, is a *stem*: the subtrees are taken behind it. A sample of any size has
all of the stems that its requests begin with, so memory scales with the share but for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.traces.workload import NO_CHAIN

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.traces.workload import Request, Workload

STEM_SHARE = 1 / 64
"""A prefix is a stem if more than this share of all requests have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Some of a workload.

    Attributes:
        workload: the requests chosen, in the order of their arrival.
        share: of all requests that may have been chosen.
        trees: how many subtrees were chosen; `all_trees` of how many; 0 where all of the workload is the sample.
        stem_tokens: of the stems.
    """

    workload: Workload
    share: float
    trees: int = 0
    all_trees: int = 0
    stem_tokens: int = 0

    @classmethod
    def of(cls, workload: Workload, share: float = 1.0, seed: int = 0) -> Sample:
        """Choose subtrees until they have this share of the requests. Cost: O(blocks listed), a few times.

        The same seed chooses the same ones, and a larger share a superset of them.
        """
        if share >= 1.0:
            return cls(workload=workload, share=1.0)
        trees, stem_tokens = subtrees(workload.requests)
        chosen, count = choose(trees, share, seed)
        requests = tuple(replace(request, index=i) for i, request in enumerate(chosen))
        return cls(
            workload=replace(workload, requests=requests),
            share=len(requests) / len(workload.requests),
            trees=count,
            all_trees=len(trees),
            stem_tokens=stem_tokens,
        )

    def scaled(self, path_tokens: int | None) -> int | None:
        """The sample's part of a room for paths: its share, and all of the stems."""
        if path_tokens is None or self.share == 1.0:
            return path_tokens
        stems = min(self.stem_tokens, path_tokens)
        return round(stems + self.share * (path_tokens - stems))


def choose(trees: Sequence[Sequence[Request]], share: float, seed: int) -> tuple[list[Request], int]:
    """The requests of some subtrees that have this share of all, in the order of their arrival, and how many subtrees."""
    shuffled = sorted(trees, key=lambda tree: blake2b(f"{seed} {tree[0].index}".encode(), digest_size=8).digest())
    most = share * sum(map(len, trees))
    chosen: list[Request] = []
    count = 0
    for tree in shuffled:
        if count and len(chosen) + len(tree) / 2 > most:
            break
        chosen += tree
        count += 1
    return sorted(chosen, key=lambda request: request.index), count


def subtrees(requests: Sequence[Request]) -> tuple[list[list[Request]], int]:
    """The requests by root subtree behind the stems, and how many tokens all stems have. Turns of one chain stay together."""
    most = max(1.0, STEM_SHARE * len(requests))
    done: list[list[Request]] = []
    stem_tokens = 0
    level = [(0, list(requests))]
    while level:
        depth, group = level.pop()
        by_block: defaultdict[int, list[Request]] = defaultdict(list)
        for request in group:
            blocks = request.blocks()
            if blocks.size > depth:
                by_block[int(blocks[depth])].append(request)
            else:
                done.append([request])
        for members in by_block.values():
            chains = {request.chain if request.chain != NO_CHAIN else -2 - request.index for request in members}
            if len(members) > most and len(chains) > 1:
                end = _common_blocks(members)
                stem_tokens += (end - depth) * members[0].block_tokens
                level.append((end, members))
            else:
                done.append(members)
    return done, stem_tokens


def _common_blocks(requests: Sequence[Request]) -> int:
    """How many blocks all of these prompts begin with."""
    common = requests[0].blocks()
    for request in requests[1:]:
        blocks = request.blocks()[: common.size]
        differs = np.flatnonzero(blocks != common[: blocks.size])
        common = common[: int(differs[0]) if differs.size else blocks.size]
    return int(common.size)
