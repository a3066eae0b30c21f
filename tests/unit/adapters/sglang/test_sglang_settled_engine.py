"""Copies of pipeline stages end at the same calls, however fast each stage copies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from unified_tree.controllers.adapters.sglang.tiers import SettledEngine
from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import TransferError


class SlowEngine:
    """Ends transfers when it is drained, the last one first."""

    def __init__(self, errors: Sequence[int] = ()) -> None:
        self.errors = errors
        self.open: list[int] = []
        self.ended: list[int] = []

    def submit(self, transfers: Sequence[Transfer]) -> None:
        self.open += [transfer.ticket for transfer in transfers]

    def poll(self) -> list[Completion]:
        found, self.ended = self.ended, []
        return [Completion(ticket, "a bad cable" if ticket in self.errors else None) for ticket in found]

    def cancel(self, ticket: int) -> None:
        self.open.remove(ticket)

    def wait(self, ticket: int) -> None:
        assert ticket in self.open

    def wait_layer(self, ticket: int, layer_id: int) -> None:
        assert ticket in self.open, layer_id

    def drain(self) -> None:
        self.ended += reversed(self.open)
        self.open = []

    def close(self) -> None:
        self.drain()


def transfers(*tickets: int) -> list[Transfer]:
    return [Transfer(ticket, EffectKind.BACKUP, ()) for ticket in tickets]


def test_what_was_submitted_has_ended_at_the_next_poll_in_order() -> None:
    engine = SettledEngine(SlowEngine())
    engine.submit(transfers(1, 2))
    engine.submit(transfers(3))
    assert [completion.ticket for completion in engine.poll()] == [1, 2, 3]
    assert engine.poll() == []


def test_nothing_is_cancelled() -> None:
    engine = SettledEngine(SlowEngine())
    engine.submit(transfers(1))
    engine.cancel(1)
    assert engine.poll() == [Completion(1, None)]


def test_a_copy_that_fails_ends_the_stage() -> None:
    engine = SettledEngine(SlowEngine(errors=[2]))
    engine.submit(transfers(1, 2))
    with pytest.raises(TransferError, match="transfer 2: a bad cable"):
        engine.poll()


def test_a_closed_engine_tells_how_its_transfers_ended() -> None:
    engine = SettledEngine(SlowEngine(errors=[1]))
    engine.submit(transfers(1))
    engine.close()
    assert engine.poll() == [Completion(1, "a bad cable")]
