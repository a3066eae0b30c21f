"""A transfer engine for stages of a pipeline, each of which must see the same copies ended at the same call.

Ranks of one stage agree on what has ended, and may wait for one another at any call. A stage must not: it would wait for the
next stage in a call that this one makes when the stage has sent on what it computes after its own call. So nothing is agreed on
here. Copies that were submitted before a call of `poll` have ended when it returns, as each stage waits for its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unified_tree.terms.errors import TransferError

if TYPE_CHECKING:
    from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer, TransferEngine


class SettledEngine:
    """Another engine, of which every poll waits for all that was submitted, and has its completions in the order of tickets.

    A copy that fails would leave this stage with another tree than the others have, so `poll` raises TransferError then. A
    transfer cannot be cancelled, for on one stage that might come too late.

    Args:
        engine: that copies.
    """

    def __init__(self, engine: TransferEngine) -> None:
        self._engine = engine
        self._is_closed = False

    def submit(self, transfers: Sequence[Transfer]) -> None:
        """See TransferEngine.submit."""
        self._engine.submit(transfers)

    def poll(self) -> list[Completion]:
        """The completions of everything that was submitted, by ticket. Blocks; raises TransferError for one that failed."""
        self._engine.drain()
        found = sorted(self._engine.poll(), key=lambda completion: completion.ticket)
        for completion in found if not self._is_closed else ():
            if completion.error is not None:
                raise TransferError(f"transfer {completion.ticket}: {completion.error}; the other pipeline stages may have it")
        return found

    def wait_layer(self, ticket: int, layer_id: int) -> None:
        """See TransferEngine.wait_layer."""
        self._engine.wait_layer(ticket, layer_id)

    def cancel(self, ticket: int) -> None:
        """No effect: the transfer ends as it would."""

    def wait(self, ticket: int) -> None:
        """See TransferEngine.wait."""
        self._engine.wait(ticket)

    def drain(self) -> None:
        """See TransferEngine.drain."""
        self._engine.drain()

    def close(self) -> None:
        """See TransferEngine.close."""
        self._is_closed = True
        self._engine.close()
