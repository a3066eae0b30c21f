"""The requests of a transfer engine, and its completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unified_tree.controllers.transfer_engines.copy_checks import check_copies

if TYPE_CHECKING:
    from unified_tree.nodes.effect import Copy, EffectKind


class Transfer(NamedTuple):
    """Copies of the tree's that start, end and fail together.

    Attributes:
        ticket: the caller's number for it, never used before with the same engine.
        kind: the direction of all its copies.
        copies: at most one a component, the paths first and then the sidecars. May be empty. A source page may repeat, a target
            page must not. No array may change until the transfer has ended.
    """

    ticket: int
    kind: EffectKind
    copies: tuple[Copy, ...]

    def check(self) -> None:
        """Raise PageError for a copy without two int64 arrays of equal size, TransferError for a component named twice.

        The mover checks whether the pages exist. Cost: O(copies).
        """
        check_copies(self.ticket, self.copies)


class Completion(NamedTuple):
    """How a transfer ended; nothing of it is written any more.

    Attributes:
        ticket: which.
        error: None if all of it was copied; else the reason, and the content of its targets is undefined.
    """

    ticket: int
    error: str | None
