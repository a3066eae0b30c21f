"""A draft, with every logit it computes compared with what it says without a cache.

The model's own output does not depend on its draft: proposals that come from wrong state are rejected, and cost only time. So
the draft's own logits are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from oracle.mix import Bench
from oracle.oracle_engine import WrongLogitsError
from oracle.reference import Reference, Tally
from reference_engine import ModelRunner, Speculation
from reference_engine.request import Running


class ComparedDraft(Speculation):
    """Drafts for most requests; the others are computed without.

    Attributes:
        tally: what was compared.
        resumed, lacking: requests that hit, and had all of the draft's state there, or had to decode without.
    """

    def __init__(self, bench: Bench, *, skips: float = 0.2) -> None:
        super().__init__(ModelRunner(bench.draft, bench.composition, full="draft"), proposals=3)
        self.tally = Tally()
        self.resumed = self.lacking = 0
        self._random, self._skips, self._tolerance = bench.random, skips, bench.precision.tolerance
        self._reference = Reference()
        self._text: list[int] = []

    def admit(self, running: Running) -> None:
        """See Speculation.admit."""
        super().admit(running)
        if running.lease.cached_tokens:
            self.resumed += running.drafted >= 0
            self.lacking += running.drafted < 0
        if self._random.random() < self._skips:
            running.drafted = -1

    def follow(self, running: Running, tokens: Sequence[int], end: int) -> None:
        """See Speculation.follow."""
        self._text = list(tokens[:end])
        super().follow(running, tokens, end)

    def propose(self, running: Running, tokens: Sequence[int], count: int) -> list[int]:
        """See Speculation.propose."""
        self._text = list(tokens)
        return super().propose(running, tokens, count)

    def _run(self, running: Running, tokens: Sequence[int]) -> torch.Tensor:
        start = running.drafted
        text = self._text = [*self._text[:start], *tokens]
        run = self.draft.run(running.rows, tokens, start)
        run.write()
        running.drafted += len(tokens)
        said = self._reference.logits(self.draft.model, text)[start:]
        difference = self.tally.add(run.logits, said, self._tolerance, partial(self._rounded, text, start))
        if difference > self._tolerance:
            raise WrongLogitsError(f"the draft is {difference:.3g} off at the tokens [{start}, {len(text)}) of {running.lease}")
        return run.logits[-1]

    def _rounded(self, text: list[int], start: int) -> list[torch.Tensor]:
        return [logits[start:] for logits in self._reference.rounded(self.draft.model, text)]
