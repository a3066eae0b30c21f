"""The progress of one transfer."""

from __future__ import annotations

from bisect import bisect_right

from unified_tree.nodes.effect import EffectKind


class Progress:
    """A transfer without its page ids, so that it can be remembered after its end.

    It has *stages* that land one after the other: a load one for each layer, a backup a single one. Once it has an error it is
    *dead*: no more copies of it start, and it ends when none is running.

    Attributes:
        ticket, kind: of the transfer.
        layer_ids: of a load, the model layers that any of its components keeps, ascending.
        stage_count: stages until it is done; 0 if there is nothing to copy.
        number: among all that were ever submitted.
        landed: stages that have landed.
        running: copies that are under way and not accounted for.
        error: what went wrong first.
        is_cancelled: whether the caller cancelled it; then `wait_layer` raises.
        has_ended: whether nothing of it moves or will move.
        is_due: whether its completion is due: those before it have ended too.
    """

    __slots__ = (
        "error",
        "has_ended",
        "is_cancelled",
        "is_due",
        "kind",
        "landed",
        "layer_ids",
        "number",
        "running",
        "stage_count",
        "ticket",
    )

    def __init__(self, ticket: int, kind: EffectKind, layer_ids: tuple[int, ...], stage_count: int, number: int) -> None:
        self.ticket = ticket
        self.kind = kind
        self.layer_ids = layer_ids
        self.stage_count = stage_count
        self.number = number
        self.landed = 0
        self.running = 0
        self.error: str | None = None
        self.is_cancelled = False
        self.has_ended = False
        self.is_due = False

    def stages_through(self, layer_id: int) -> int:
        """How many stages of a load must have landed before a model layer may run. Cost: O(log layers)."""
        return bisect_right(self.layer_ids, layer_id)

    def land(self, through: int | None) -> None:
        """Mark a load's stages up to a model layer as landed, or, for None, a backup."""
        self.landed = self.stage_count if through is None else self.stages_through(through)

    def fail(self, error: str) -> None:
        """Note what went wrong, if nothing did before."""
        if self.error is None:
            self.error = error
