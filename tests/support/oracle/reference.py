"""What a model says without any cache, and how far what it said with one is from that."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

INFINITY = float("inf")
DRAWS = 8
"""So many other roundings are tried."""
Rounded = Callable[[], list[torch.Tensor]]
"""The same logits by other roundings, each [token, vocabulary]."""


@dataclass
class Tally:
    """What was compared.

    Attributes:
        runs: runs of the model whose logits were compared.
        tokens: logits compared, a token each.
        largest: the largest difference; infinite where either was no number.
        deviation: the standard deviation of the logits last compared: how much there is to differ in.
    """

    runs: int = 0
    tokens: int = 0
    largest: float = 0.0
    deviation: float = 0.0
    hits: dict[str, int] = field(default_factory=dict)

    def add(self, said: torch.Tensor, reference: torch.Tensor, tolerance: float, rounded: Rounded) -> float:
        """Compare the logits of one run, [token, vocabulary]; returns their difference.

        Where it is above the tolerance, each token counts by the nearest of what `rounded` gives.
        """
        difference = _difference(said, [reference])
        if difference > tolerance:
            difference = _difference(said, [reference, *rounded()])
        self.runs += 1
        self.tokens += len(said)
        self.largest = max(self.largest, difference)
        self.deviation = float(reference.std())
        return difference

    def __iadd__(self, other: Tally) -> Tally:
        """Take in what another comparison saw."""
        self.runs += other.runs
        self.tokens += other.tokens
        self.largest = max(self.largest, other.largest)
        self.deviation = other.deviation
        self.hits = {name: count + self.hits.get(name, 0) for name, count in other.hits.items()}
        return self

    def row(self) -> str:
        """Runs, tokens, tokens hit by tier, tokens rebuilt, the largest difference: cells of a table."""
        hits = (f"{self.hits[name]:,}" for name in ("device", "host", "store", "rebuilt"))
        return " | ".join([f"{self.runs:,}", f"{self.tokens:,}", *hits, f"{self.largest:.0e}"])


def _difference(said: torch.Tensor, references: list[torch.Tensor]) -> float:
    """The largest difference of a token from the reference that is nearest to it; infinite where something is no number."""
    differences = torch.stack([(said - reference).abs().amax(1) for reference in references])
    return float(differences.nan_to_num(nan=INFINITY, posinf=INFINITY).amin(0).max())


class Reference:
    """The logits of whole sequences, each computed in one run without a cache."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, tuple[int, ...]], torch.Tensor] = {}  # a model is kept, or a later one had its place

    def logits(self, model: Any, tokens: list[int]) -> torch.Tensor:
        """[token, vocabulary]. Cost: a run, once a sequence."""
        key = model, tuple(tokens)
        if key not in self._known:
            self._known[key] = _logits(model, tokens)
        return self._known[key]

    @torch.no_grad()
    def rounded(self, model: Any, tokens: list[int]) -> list[torch.Tensor]:
        """What the model says after all its weights were rounded a little differently, some ulps, at random.

        Logits hardly move, unless a router's choice hangs on a rounding. Then a run in other pieces may choose the other
        expert, and is as right. What a cache gets wrong is like none of them. Cost: DRAWS runs.
        """
        found = []
        for seed in range(DRAWS):
            generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
            near = copy.deepcopy(model)
            for weight in near.parameters():
                ulps = 8 * torch.finfo(weight.dtype).eps
                weight.mul_(1 + ulps * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
            found.append(_logits(near, tokens))
        return found


@torch.no_grad()
def _logits(model: Any, tokens: list[int]) -> torch.Tensor:
    positions = torch.arange(len(tokens))[None]
    output = model(input_ids=torch.tensor([tokens]), position_ids=positions, use_cache=False)
    return output.logits[0]  # type: ignore[no-any-return]
