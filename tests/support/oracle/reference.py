"""What a model says without any cache, and how far what it said with one is from that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


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

    def add(self, said: torch.Tensor, reference: torch.Tensor) -> float:
        """Compare the logits of one run, [token, vocabulary]; returns their difference."""
        difference = float((said - reference).abs().max())
        if not difference < float("inf"):
            difference = float("inf")
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


class Reference:
    """The logits of whole sequences, each computed in one run without a cache."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}

    @torch.no_grad()
    def logits(self, model: Any, tokens: list[int]) -> torch.Tensor:
        """[token, vocabulary]. Cost: a run, once a sequence."""
        key = id(model), tuple(tokens)
        if key not in self._known:
            positions = torch.arange(len(tokens))[None]
            output = model(input_ids=torch.tensor([tokens]), position_ids=positions, use_cache=False)
            self._known[key] = output.logits[0]
        return self._known[key]
