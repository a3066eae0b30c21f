"""The engine, with every logit it computes compared with what the model says without a cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from oracle.reference import Reference, Tally
from reference_engine import Engine, ModelRunner, Request
from reference_engine.model_runner import Pass
from reference_engine.request import Running
from unified_tree.controllers import Lease


class WrongLogitsError(AssertionError):
    """The model could tell that the cache was used."""


@dataclass(frozen=True)
class Said:
    """What a run said: the model, the position of the first token compared, and the logits."""

    runner: ModelRunner
    start: int
    logits: torch.Tensor

    @property
    def tokens(self) -> slice:
        """Which of the request's."""
        return slice(self.start, self.start + len(self.logits))


@dataclass
class Served:
    """All that was said about one request, and what its leases took from the cache."""

    said: list[Said] = field(default_factory=list)
    leases: list[str] = field(default_factory=list)


class OracleEngine(Engine):
    """Compares when a request ends. New pages are filled with what is no number, so that nothing unwritten is read.

    Attributes:
        tally: what was compared.
        tolerance: the largest difference allowed.
    """

    def __init__(self, *args: Any, tolerance: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tolerance = tolerance
        self.tally = Tally()
        self.reference = Reference()
        self._served: dict[Request, Served] = {}
        for pool in self.pools.values():
            for part in pool.format.parts:
                for layer_id in pool.format.layer_ids:
                    pool.tensor(layer_id, part.name).fill_(float("nan"))

    def ran(self, request: Request, running: Running, run: Pass) -> None:
        """Note what was said, but for tokens that only ran to rebuild a window."""
        super().ran(request, running, run)
        served = self._served.setdefault(request, Served())
        if repr(running.lease) not in served.leases:
            served.leases.append(repr(running.lease))
        first = max(run.start, running.lease.cached_tokens)
        if first < run.start + len(run.logits):
            served.said.append(Said(running.runner, first, run.logits[first - run.start :]))

    def finish(self, request: Request, running: Running) -> None:
        """Compare all that was said."""
        super().finish(request, running)
        served = self._served.pop(request)
        for said in served.said:
            logits = self.reference.logits(said.runner.model, request.tokens)[said.tokens]
            difference = self.tally.add(said.logits, logits, self.tolerance, partial(self._rounded, said, request))
            if difference > self.tolerance:
                raise WrongLogitsError(
                    f"tokens [{said.start}, {said.tokens.stop}) of {len(request.tokens)} in {request.namespace!r} are "
                    f"{difference:.3g} off after {served.leases}, {request.preemptions} preemptions"
                )

    def _rounded(self, said: Said, request: Request) -> list[torch.Tensor]:
        return [logits[said.tokens] for logits in self.reference.rounded(said.runner.model, request.tokens)]

    def grow(self, request: Request, end: int) -> bool:
        """Fill what is new."""
        assert request.running is not None
        lease = request.running.lease
        before = {name: lease.tables[name].size for name in lease.tables}
        grown = super().grow(request, end)
        if grown:
            self._poison(lease, before)
        return grown

    def _poison(self, lease: Lease, before: dict[str, int]) -> None:
        for name, size in before.items():
            new = torch.tensor(lease.pages(name, size))
            for component, pool in self.pools.items():
                if self.cache.layout.owner_of[component] == name:
                    for part in pool.format.parts:
                        for layer_id in pool.format.layer_ids:
                            pool.tensor(layer_id, part.name)[new] = float("nan")
