"""A request of a replay that is put back while it waits for its load is admitted again: its misses count once."""

from __future__ import annotations

import numpy as np
from kinds import FULL

from unified_tree import Key
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.workbench.runs.row_counters import RowCounters
from unified_tree.controllers.workbench.traces.workload import Request, Workload

PAGE = 4


def test_the_misses_of_the_last_admission_count() -> None:
    request = Request(
        index=0, arrival_s=0.0, runs=np.array([0, 3]), block_tokens=PAGE, prompt_tokens=3 * PAGE + 1, output_tokens=1
    )
    cache = PrefixCache([FULL], PAGE, {"full": 64})
    counters = RowCounters(cache, Workload(name="w", requests=(request,), block_count=3))
    for now_s in (0.0, 1.0):
        counters.offered(request)
        with cache.acquire(Key(request.tokens()[: request.prompt_tokens])) as lease:
            counters.admitted(request, lease, now_s, 0)
    [counted] = counters.requests
    assert counted["hit_tokens"] + counted["miss_tokens"].sum() == request.prompt_tokens
    assert (counted["admission"], counted["admitted_s"]) == (1, 1.0)
