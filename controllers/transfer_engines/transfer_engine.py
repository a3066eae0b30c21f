"""The seam between the controller and what moves bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer


class TransferEngine(Protocol):
    """Moves pages between device and host behind the caller's back, and says when it has.

    The caller guarantees: until a transfer's completion was polled its source pages do not change and its target pages are
    nobody else's; one thread makes all calls. The engine guarantees: every transfer that `submit` took has exactly one
    completion; completions of one direction come in the order of submission; when a completion is there, nothing of that
    transfer is written any more; nothing hangs because a copy failed.

    Loads go before backups that have not started. A load goes by layers, in ascending model layers over all its components:
    the first on its own, later ones perhaps some together, and those then open or fail together. A backup goes by pages, all
    layers of some and then of others, the paths first.
    """

    def submit(self, transfers: Sequence[Transfer]) -> None:
        """Take transfers, meant for one call a tick: those of one direction in it move together, a pool at a time.

        Raises, with none of them taken, as `Transfer.check` does, and TransferError for a ticket that was used before, a
        component that the engine does not move, and after `close`. An engine that has died takes them and completes them with
        an error. Never blocks.
        Cost: O(transfers and their components); what depends on pages is done later.
        """
        ...

    def poll(self) -> list[Completion]:
        """What ended since the last call. Never blocks and never raises. Cost: O(completions), and a look at what is open."""
        ...

    def wait_layer(self, ticket: int, layer_id: int) -> None:
        """The gate before a model layer: return once every copy of that load for the layers up to this one has landed.

        For a layer that none of its components keeps those below it count. May be called any number of times, in any
        order, and also after the load has ended; on a GPU the current stream waits instead of the caller.

        Raises TransferError if one of those layers failed, if the load was cancelled or is a backup, and for a ticket that
        the engine does not know: never submitted, or polled so long ago that it was forgotten.
        """
        ...

    def cancel(self, ticket: int) -> None:
        """Stop a transfer as soon as that can be done; it then completes with an error, once nothing of it moves any more.
        One that ended before keeps its outcome, and one that is not known is left alone. Never blocks."""
        ...

    def wait(self, ticket: int) -> None:
        """Return once `poll` has this transfer's completion to give, or gave it. Raises TransferError for a ticket that the
        engine does not know. Does not raise for a transfer that failed; its completion says so."""
        ...

    def drain(self) -> None:
        """Return once everything submitted has ended."""
        ...

    def close(self) -> None:
        """Cancel what is open, wait for what is in the middle of a copy, and take nothing more. `poll` still gives the
        completions. Idempotent."""
        ...
