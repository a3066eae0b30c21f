"""The latencies and faults of a simulated engine."""

from __future__ import annotations

from dataclasses import dataclass, fields

from unified_tree.terms.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Virtual nanoseconds, each drawn evenly from 1 to 1 + `spread` times what is given here.

    Attributes:
        stage_ns: of each layer of a load, and of each component of a backup.
        page_ns: for each page of those, on top.
        cancel_ns: from a cancel to the end of the transfer, if it has not ended by then.
        late_ns: between the last bytes and a completion that is late.
        again_ns: between a completion and its second delivery.
        spread: 0 for the same latency always.

    Raises ConfigurationError for negative values.
    """

    stage_ns: int = 20_000
    page_ns: int = 1_000
    cancel_ns: int = 50_000
    late_ns: int = 1_000_000
    again_ns: int = 1_000_000
    spread: float = 2.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) >= 0:
                raise ConfigurationError(f"{field.name} must not be negative, as {getattr(self, field.name)!r} is")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probabilities of faults.

    Attributes:
        fails: a stage fails after part of its bytes; the transfer ends with an error.
        late: the completion of a transfer comes `late_ns` after its last bytes; gates do not wait for it.
        twice: a completion is delivered again later, against the contract, to test the caller.

    Raises ConfigurationError for values outside 0 … 1.
    """

    fails: float = 0.0
    late: float = 0.0
    twice: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 <= getattr(self, field.name) <= 1:
                raise ConfigurationError(f"{field.name} must be a probability, which {getattr(self, field.name)!r} is not")
