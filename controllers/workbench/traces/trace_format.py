"""The interface of all formats of traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from unified_tree.controllers.workbench.traces.trace_records import Record
    from unified_tree.controllers.workbench.traces.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """How to read a trace.

    Attributes:
        block_tokens: tokens in a block; None for what the trace says or its format has.
        max_requests: read no more than so many requests; None for all.
        session_gap_s: mean seconds between two starts, where a trace does not say when its sessions or requests begin.
        seed: of those starts.
        clock_unit: s, ms, us or ns: what the numbers of the trace's clock count; None for what its format has.
        sub_agent_clock: whether the times of a session's sub-agents count from its `root` or from their `parent`; None for
            what the trace shows.
        tokenizer: a `tokenizer.json`, for traces that hold texts; None for a token a byte.
    """

    block_tokens: int | None = None
    max_requests: int | None = None
    session_gap_s: float = 30.0
    seed: int = 0
    clock_unit: str | None = None
    sub_agent_clock: str | None = None
    tokenizer: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """A format of traces.

    Attributes:
        name: as the report and the documentation call it.
        fields: what its records must have.
        clock: what it says about its clock, for the documentation.
        matches: whether a file's first records, at least one, are of this format.
        read: the workload of a file of this name, from all of its records. Raises TraceError, `FILE:LINE: what is wrong`.
    """

    name: str
    fields: tuple[str, ...]
    clock: str
    matches: Callable[[Sequence[Record]], bool]
    read: Callable[[str, Iterable[Record], TraceOptions], Workload]
