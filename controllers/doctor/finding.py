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
        is_urgent: something is broken, whatever it has cost so far.
        is_normal: it may be as it should; such findings come last.
    """

    tokens: int
    share: float
    what: str
    advice: str
    is_urgent: bool = False
    is_normal: bool = False

    def __str__(self) -> str:
        share = "broken" if self.is_urgent else f"{self.share:6.1%}"
        return f"{share}  {self.what}\n        {self.advice}"
