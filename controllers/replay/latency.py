"""Times to the first token on the virtual clock: what they consist of, and what is reported of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.replay.served_request import ServedRequest
    from unified_tree.controllers.replay.workload import Workload

PARTS = ("fetch", "queue", "load", "prefill")
"""From the arrival to the first token: until the store has answered, until there is a place, until what the host has is on
device, and until the rest is computed, behind what others have to compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyFigures:
    """Of the served requests of one row; modelled, in seconds, to within a step of the server.

    Attributes:
        mean_s, p50_s, p99_s: to the first token, from the arrival on.
        parts_s: the mean by part, see `PARTS`.
        first_turns_s, later_turns_s: the means of the first requests of agents, and of those after; None where there are none.
        requests_per_s: served over the whole replay.
    """

    mean_s: float
    p50_s: float
    p99_s: float
    parts_s: dict[str, float]
    first_turns_s: float | None
    later_turns_s: float | None
    requests_per_s: float

    def record(self) -> dict[str, Any]:
        """The figures as flat JSON values."""
        flat: dict[str, Any] = {
            "modelled_ttft_s_mean": self.mean_s,
            "modelled_ttft_s_p50": self.p50_s,
            "modelled_ttft_s_p99": self.p99_s,
            "modelled_ttft_s_first_turns": self.first_turns_s,
            "modelled_ttft_s_later_turns": self.later_turns_s,
            "modelled_requests_per_s": self.requests_per_s,
        }
        return flat | {f"modelled_{name}_s_mean": value for name, value in self.parts_s.items()}


class LatencyTally:
    """The times of every request of a workload, by its index."""

    def __init__(self, workload: Workload) -> None:
        self._parts_s = np.zeros((len(workload.requests), len(PARTS)))
        seen: set[int] = set()
        self._is_later = np.zeros(len(workload.requests), np.bool_)
        for request in workload.requests:
            self._is_later[request.index] = request.chain in seen
            seen.add(request.chain)

    def note(self, entry: ServedRequest, step_s: float) -> None:
        """A request has got its first token."""
        assert entry.decoding_from is not None
        steps = (entry.arrived, entry.queued, entry.started, entry.computing, entry.decoding_from)
        self._parts_s[entry.request.index] = np.diff(steps) * step_s

    def figures(self, served: NDArray[np.bool_], virtual_s: float) -> LatencyFigures:
        """Of the served requests, bool [requests]."""
        parts = self._parts_s[served]
        total = parts.sum(axis=1)
        later = self._is_later[served]
        p50, p99 = np.percentile(total, (50, 99)) if total.size else (0.0, 0.0)
        return LatencyFigures(
            mean_s=float(total.mean()) if total.size else 0.0,
            p50_s=float(p50),
            p99_s=float(p99),
            parts_s={name: float(parts[:, i].mean()) if total.size else 0.0 for i, name in enumerate(PARTS)},
            first_turns_s=float(total[~later].mean()) if (~later).any() else None,
            later_turns_s=float(total[later].mean()) if later.any() else None,
            requests_per_s=int(served.sum()) / virtual_s if virtual_s else 0.0,
        )
