"""One finding of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding.

    Attributes:
        tokens: prompt tokens computed because of it.
        share: of all prompt tokens.
        what: the figure and the cause, one sentence.
        advice: the setting to change, one sentence.
    """

    tokens: int
    share: float
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.share:6.1%}  {self.what}\n        {self.advice}"
