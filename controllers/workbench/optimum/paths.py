"""The exact optimum where paths alone decide: farthest next use.

Which tokens to keep is a choice among intervals, one for each use of a token that was used before. All tokens take the same
room, so the rule is that of Belady (1966): go through time, and whenever the kept intervals do not fit, give up those that end
last. A token's ancestors are used whenever it is, so their intervals end no later: what is given up never has anything kept
behind it, and what is kept is a tree.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.optimum.demand import Room
    from unified_tree.controllers.workbench.optimum.idle import Idle, Int64s


def most_path_hits(idle: Idle, room_tokens: Room) -> Int64s:
    """The most prompt tokens that can be hit from so much room for paths, by request, int64 [moments].

    Cost: O(runs log runs).
    """
    room = np.maximum(0, np.broadcast_to(room_tokens, idle.count)).tolist()
    kept = (idle.end - idle.begin).tolist()
    owner, since = idle.owner.tolist(), idle.since.tolist()
    first = np.searchsorted(idle.owner, np.arange(idle.count + 1)).tolist()
    begins = np.argsort(idle.since, kind="stable")
    opening = np.searchsorted(idle.since[begins], np.arange(idle.count + 1)).tolist()
    order = begins.tolist()
    latest: list[tuple[int, int]] = []  # runs that are kept, those that end last in front; ended ones are left in it
    used = 0
    hits = np.zeros(idle.count, np.int64)
    for now in range(idle.count):
        for run in order[opening[now] : opening[now + 1]]:
            if owner[run] >= now:
                heappush(latest, (-owner[run], run))
                used += kept[run]
        while used > room[now]:
            run = latest[0][1]
            given_up = min(kept[run], used - room[now])
            kept[run] -= given_up
            used -= given_up
            if not kept[run]:
                heappop(latest)
        for run in range(first[now], first[now + 1]):
            hits[now] += kept[run]
            if since[run] <= now:
                used -= kept[run]
                kept[run] = 0
    return hits
