"""Hits over all sizes of all pools, from one pass over the workload for each of a few sizes of the paths."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import ceil, log
from multiprocessing import get_context
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.sizing.model_server import ModelServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from unified_tree.controllers.workbench.server.server_settings import ServerSettings
    from unified_tree.controllers.workbench.sizing.model_server import Served
    from unified_tree.controllers.workbench.sizing.needs import Needs
    from unified_tree.controllers.workbench.sizing.sample import Sample

    Int64s = NDArray[np.int64]

FEW_REQUESTS = 20_000
"""So many requests, all passes together, take no longer than starting processes for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The requests that can never have a place.

    Attributes:
        requests: how many of the workload.
        token_share: of all prompt tokens those that are theirs.
        longest_tokens: prompt and answer of the longest request there is.
    """

    requests: int
    token_share: float
    longest_tokens: int


@dataclass(frozen=True, slots=True)
class Surface:
    """The hit rate of any split.

    Attributes:
        needs: what a boundary takes of each pool.
        passes: what each pass gave, by size of the paths, ascending; sizes are those of the whole workload.
        prompt_tokens, output_tokens: of the sampled requests.
        share: of the workload that was sampled.
    """

    needs: Needs
    passes: Sequence[Served]
    prompt_tokens: Int64s
    output_tokens: Int64s
    share: float = 1.0

    def hit_rate(self, page_counts: Mapping[str, int]) -> float:
        """The share of prompt tokens hit with these device pools; one that is left out is without end. A request that does not
        fit is rejected, and missed.
        """
        return self.served_hit_rate(page_counts) * (1.0 - self.rejected(page_counts).token_share)

    def rejected(self, page_counts: Mapping[str, int]) -> Rejected:
        """The requests that do not fit into these device pools. Cost: O(requests), in numpy."""
        misfits = ~self.needs.fit(self.prompt_tokens, self.output_tokens, page_counts)
        tokens, count = int(self.prompt_tokens[misfits].sum()), int(misfits.sum())
        return Rejected(
            requests=round(count / self.share) if count else 0,
            token_share=tokens / max(1, int(self.prompt_tokens.sum())),
            longest_tokens=int((self.prompt_tokens + self.output_tokens).max(initial=0)),
        )

    def served_hit_rate(self, page_counts: Mapping[str, int], *, serves: bool = True) -> float:
        """Of the prompt tokens of requests that fit the share hit with these pools.

        Between two passes it is interpolated over the logarithm of the size.

        Args:
            serves: whether running requests take pages of these pools, as on device.
        """
        path_tokens = self.needs.path_tokens(page_counts)
        below = above = self.passes[-1]
        if path_tokens is not None:
            for served in reversed(self.passes):
                if served.path_tokens is not None and served.path_tokens < path_tokens:
                    below = served
                    break
                below = above = served
        low = self._rate(below, page_counts, serves)
        if below is above:
            return low
        assert path_tokens is not None and below.path_tokens is not None
        ends = above.path_tokens if above.path_tokens is not None else 2 * path_tokens
        weight = log(path_tokens / below.path_tokens) / log(ends / below.path_tokens)
        return low + weight * (self._rate(above, page_counts, serves) - low)

    def _rate(self, served: Served, page_counts: Mapping[str, int], serves: bool) -> float:
        room = self.needs.room(page_counts, served.running / self.share if serves else None)
        return served.hit_rate(room * self.share, serves=serves)


def survey(
    sample: Sample,
    needs: Needs,
    settings: ServerSettings,
    path_tokens: Sequence[int | None],
    jobs: int | None = None,
    progress: Callable[[], None] | None = None,
) -> Surface:
    """Go over the sampled workload once for each of these sizes of the paths, several at once where there are cores.

    Args:
        path_tokens: room for paths of the whole workload; None for no end.
        jobs: processes; None for one a core.
        progress: called after each pass.
    """
    sizes = sorted(set(path_tokens), key=lambda tokens: float("inf") if tokens is None else tokens)
    jobs = min(jobs or os.cpu_count() or 1, len(sizes))
    if jobs == 1 or len(sizes) * len(sample.workload.requests) <= FEW_REQUESTS:
        passes = []
        for tokens in sizes:
            passes.append(one_pass(sample, needs, settings, tokens))
            if progress is not None:
                progress()
        return _surface(sample, needs, passes)
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_keep, initargs=(sample, needs, settings)) as executor:
        largest_first = list(reversed(sizes))
        passes = []
        for served in executor.map(_kept_pass, largest_first):
            passes.append(served)
            if progress is not None:
                progress()
    return _surface(sample, needs, passes[::-1])


def _surface(sample: Sample, needs: Needs, passes: Sequence[Served]) -> Surface:
    requests = sample.workload.requests
    prompt_tokens = np.array([request.prompt_tokens for request in requests], np.int64)
    output_tokens = np.array([request.output_tokens for request in requests], np.int64)
    return Surface(needs, passes, prompt_tokens, output_tokens, sample.share)


def one_pass(sample: Sample, needs: Needs, settings: ServerSettings, path_tokens: int | None) -> Served:
    """Serve a sample with its share of the memory and of the places."""
    places = max(1, ceil(settings.concurrency * sample.share))
    served = ModelServer(sample.workload, needs, replace(settings, concurrency=places), sample.scaled(path_tokens)).run()
    return replace(served, path_tokens=path_tokens)


_kept: list[tuple[Sample, Needs, ServerSettings]] = []


def _keep(sample: Sample, needs: Needs, settings: ServerSettings) -> None:
    """What all passes of a process have in common, sent to it once."""
    _kept[:] = [(sample, needs, settings)]


def _kept_pass(path_tokens: int | None) -> Served:
    return one_pass(*_kept[0], path_tokens)
