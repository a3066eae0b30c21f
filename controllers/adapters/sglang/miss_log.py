"""A line in the log every minute in which something was served: what hit, and why the rest had to be computed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from unified_tree.controllers.adapters.sglang.request_misses import MissFigures

logger = logging.getLogger(__name__)
CAUSES: Final = 3
"""How many causes a line names, the largest first."""


class MissLog:
    """Writes the lines, from a thread of its own, so that the last requests before a pause are told, too.

    Args:
        figures: what was booked so far; called from the thread.
        interval_s: between two lines.
    """

    def __init__(self, figures: Callable[[], MissFigures], interval_s: float) -> None:
        self._figures = figures
        self._interval_s = interval_s
        self._told = figures()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="unified_tree misses", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def close(self) -> None:
        """Tell what is untold, and write no more. Idempotent."""
        if not self._is_over.is_set():
            self._is_over.set()
            if self._thread.is_alive():
                self._thread.join()
            self.tell()

    def _run(self) -> None:
        while not self._is_over.wait(self._interval_s):
            self.tell()

    def tell(self) -> None:
        """Write a line of what was booked since the last one; none if nothing was."""
        before, now = self._told, self._figures()
        if now.requests == before.requests:
            return
        self._told = now
        logger.info("%s", told(before, now))


def told(before: MissFigures, now: MissFigures) -> str:
    """What was booked between two moments, as a line.

    >>> from collections import Counter
    >>> from unified_tree.controllers.adapters.sglang.request_misses import MissFigures
    >>> told(MissFigures(0, 0, 0, Counter()), MissFigures(2, 1000, 250, Counter({"never seen": 700, "last token": 50})))
    'unified_tree: 2 requests, 1,000 prompt tokens: 25 % cached; computed: 70 % never seen, 5 % last token'
    """
    prompt = now.prompt_tokens - before.prompt_tokens
    hits = share(now.hit_tokens - before.hit_tokens, prompt)
    requests = now.requests - before.requests
    line = f"unified_tree: {requests:,} request{'s'[: requests > 1]}, {prompt:,} prompt tokens: {hits} cached"
    causes = ", ".join(f"{share(tokens, prompt)} {words}" for words, tokens in (now.misses - before.misses).most_common(CAUSES))
    return f"{line}; computed: {causes}" if causes else line


def share(tokens: int, of_tokens: int) -> str:
    """A part of something in percent."""
    return f"{tokens / max(1, of_tokens):.0%}".replace("%", " %")
