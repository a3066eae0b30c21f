"""Several workloads at a time, each of a tenant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.traces.workload import (
    NO_CHAIN,
    Request,
    Workload,
    expand_runs,
    in_arrival_order,
    pack_runs,
)
from unified_tree.terms.errors import TraceError

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.traces.workload import Int64s


def mixed(workloads: Mapping[str, Workload]) -> Workload:
    """One workload of several, in arrival order, each in the namespace of its name. No two share blocks or chains.

    Raises TraceError for none, and for workloads of which one is a closed loop. Cost: one pass.
    """
    if not workloads:
        raise TraceError("a mix needs workloads")
    closed = [name for name, workload in workloads.items() if workload.parallel is not None]
    if closed and len(workloads) > 1:
        raise TraceError(f"{closed[0]!r} is a closed loop, whose requests have no times: it cannot be mixed")
    requests: list[Request] = []
    blocks = chains = 0
    for name, workload in workloads.items():
        requests += _apart(workload, name, blocks, chains)
        blocks += workload.block_count
        chains += 1 + max((max(request.chain, request.parent_chain) for request in workload.requests), default=0)
    return Workload(
        name=" + ".join(workload.name for workload in workloads.values()),
        requests=in_arrival_order(requests),
        block_count=blocks,
        notes=tuple(f"{name or 'no group'}: {note}" for name, each in workloads.items() for note in each.notes),
        parallel=next(iter(workloads.values())).parallel,
        tells_sharing=all(workload.tells_sharing for workload in workloads.values()),
    )


def isolated(workload: Workload) -> Workload:
    """The same requests; equal blocks of two namespaces have two numbers. Cost: a sort of the blocks of all prompts."""
    spaces: dict[str, int] = {}
    for request in workload.requests:
        spaces.setdefault(request.namespace, len(spaces))
    if len(spaces) < 2:
        return workload
    lists = [each for request in workload.requests for each in _lists_of(request)]
    owners = np.array([spaces[request.namespace] for request in workload.requests for _ in _lists_of(request)], np.int64)
    blocks = [expand_runs(each) for each in lists]
    sizes = np.array([each.size for each in blocks], np.int64)
    names = np.repeat(owners, sizes) * workload.block_count + np.concatenate(blocks)
    unique, numbers = np.unique(names, return_inverse=True)
    parts = iter([pack_runs(part) for part in np.split(numbers.astype(np.int64), np.cumsum(sizes)[:-1])])
    requests = tuple(
        replace(request, runs=next(parts), answer_runs=None if request.answer_runs is None else next(parts))
        for request in workload.requests
    )
    return replace(workload, requests=requests, block_count=unique.size)


def _lists_of(request: Request) -> tuple[Int64s, ...]:
    return (request.runs,) if request.answer_runs is None else (request.runs, request.answer_runs)


def _apart(workload: Workload, name: str, blocks: int, chains: int) -> Iterator[Request]:
    """The requests of a workload, with numbers of their own."""
    for request in workload.requests:
        yield replace(
            request,
            namespace=name,
            runs=_shifted(request.runs, blocks),
            answer_runs=None if request.answer_runs is None else _shifted(request.answer_runs, blocks),
            chain=_moved(request.chain, chains),
            parent_chain=_moved(request.parent_chain, chains),
        )


def _moved(chain: int, chains: int) -> int:
    return NO_CHAIN if chain == NO_CHAIN else chain + chains


def _shifted(runs: Int64s, blocks: int) -> Int64s:
    shifted = runs.copy()
    shifted[::2] += blocks
    return shifted
