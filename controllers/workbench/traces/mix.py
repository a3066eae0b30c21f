"""Several workloads at a time, each of a tenant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.traces.workload import NO_CHAIN, Request, Workload, in_arrival_order
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
