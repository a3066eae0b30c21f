"""The protocol between the controller and the engine that moves bytes: its requests, and its completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

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


class TransferEngine(Protocol):
    """Moves pages between device and host asynchronously, and reports completions.

    The caller guarantees: until a transfer's completion was polled, its source pages do not change and its target pages are
    used by nothing else; one thread makes all calls. The engine guarantees: every accepted transfer has exactly one completion;
    completions of one direction come in the order of submission; after a completion, nothing of that transfer is written any
    more; a failed copy never makes a call hang.

    Loads overtake backups that have not started. A load copies layer by layer, in ascending model layers over all its
    components: the first alone, later ones possibly in groups, which then land or fail together. A backup copies page by page
    with all layers, the paths first.
    """

    def submit(self, transfers: Sequence[Transfer]) -> None:
        """Submit transfers, in one call per tick: those of one direction in a call move together, a pool at a time.

        Raises, with none of them accepted, as `Transfer.check` does, and TransferError for a ticket that was used before, a
        component that the engine does not move, and after `close`. An engine that has died accepts them and completes them with
        an error. Never blocks. Cost: O(transfers and their components); work per page is done later.
        """
        ...

    def poll(self) -> list[Completion]:
        """The completions since the last call. Never blocks and never raises. Cost: O(completions), and a check of open
        transfers.
        """
        ...

    def wait_layer(self, ticket: int, layer_id: int) -> None:
        """Wait before running a model layer: return once every copy of that load for the layers up to this one has landed.

        For a layer that none of its components keeps, the layers below count. May be called any number of times, in any order,
        and also after the load has ended. On a GPU the current stream waits instead of the caller.

        Raises TransferError if one of those layers failed, if the load was cancelled or is a backup, and for an unknown ticket:
        never submitted, or polled so long ago that it was forgotten.
        """
        ...

    def cancel(self, ticket: int) -> None:
        """Stop a transfer as soon as possible. An open one completes with an error when nothing of it moves any more, even if
        all was copied by then. No effect for an ended or unknown one, polled or not. Never blocks.
        """
        ...

    def wait(self, ticket: int) -> None:
        """Return once `poll` can return this transfer's completion, or has returned it. Raises TransferError for an unknown
        ticket. Does not raise for a failed transfer; its completion has the error.
        """
        ...

    def drain(self) -> None:
        """Return once everything submitted has ended."""
        ...

    def close(self) -> None:
        """Cancel all open transfers, wait for running copies, and refuse new transfers. `poll` still returns the completions.
        Idempotent.
        """
        ...
