"""Decoding with a draft model whose state lies in the pages of the model it drafts for.

The draft's state is optional: where a prefix was cached without it, the request decodes without a draft, one token a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from reference_engine.model_runner import ModelRunner
    from reference_engine.request import Running


class Speculation:
    """A draft that proposes tokens.

    Args:
        draft: its model.
        proposals: tokens proposed a step.

    Attributes:
        components: the names of those that its state is kept in.
    """

    def __init__(self, draft: ModelRunner, *, proposals: int = 3) -> None:
        self.draft = draft
        self.proposals = proposals
        self.components = tuple(component.name for component in draft.components)

    def admit(self, running: Running) -> None:
        """Whether a request can be drafted for: only with the draft's state of all that is cached."""
        cached = running.lease.cached_tokens
        running.drafted = cached if self._has_state(running, cached) else -1

    def committed(self, running: Running, end: int) -> None:
        """Stop drafting for a request if a commit up to `end` has put pages in place of its own that lack the draft's state."""
        if running.drafted >= 0 and not self._has_state(running, end):
            running.drafted = -1

    def _has_state(self, running: Running, length: int) -> bool:
        """Whether the lease has the draft's state that a run from a length on reads, in shared pages and in its own."""
        lease, size = running.lease, running.rows.page_size
        for component in self.draft.components:
            first = component.coverage.first_page(length, size)
            if (lease.pages(component.name, first)[: -(-length // size) - first] < 0).any():
                return False
        return True

    def follow(self, running: Running, tokens: Sequence[int], end: int) -> None:
        """Have the draft's state of the tokens before `end` written too."""
        if 0 <= running.drafted < end:
            self._run(running, tokens[running.drafted : end])

    def propose(self, running: Running, tokens: Sequence[int], count: int) -> list[int]:
        """The next tokens, as the draft sees it. Writes its state of those it runs, the rejected ones to be overwritten."""
        proposed: list[int] = []
        for _ in range(count):
            logits = self._run(running, [*tokens, *proposed][running.drafted :])
            proposed.append(int(logits.argmax()))
        return proposed

    def _run(self, running: Running, tokens: Sequence[int]) -> torch.Tensor:
        run = self.draft.run(running.rows, tokens, running.drafted)
        run.write()
        running.drafted += len(tokens)
        return run.logits[-1]
