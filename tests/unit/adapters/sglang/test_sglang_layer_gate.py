"""The gate at which layers wait."""

from __future__ import annotations

from typing import Any

from unified_tree.controllers.adapters.sglang.tiers import LayerGate


def test_layers_wait_for_the_loads_of_their_own_batch() -> None:
    waited: list[tuple[Any, int]] = []
    gate = LayerGate(lambda load, layer: waited.append((load, layer)), 4)
    loads: list[Any] = ["a", "b", "c"]
    assert gate.open([]) == -1
    first, second = gate.open(loads[:2]), gate.open(loads[2:])
    gate.wait_until(0)
    assert not waited, "no batch runs"
    for batch, expected in ((first, [("a", 3), ("b", 3)]), (second, [("c", 3)]), (-1, [])):
        waited.clear()
        gate.set_consumer(batch)
        gate.wait_until(gate.num_layers - 1)
        assert waited == expected


def test_a_batch_is_forgotten_after_some_later_ones() -> None:
    waited: list[Any] = []
    gate = LayerGate(lambda load, _: waited.append(load), 1)
    loads: list[Any] = ["a"]
    batches = [gate.open(loads) for _ in range(LayerGate.REMEMBERED + 1)]
    assert len(set(batches)) == len(batches)
    for batch in batches:
        gate.set_consumer(batch)
        gate.wait_until(0)
    assert len(waited) == LayerGate.REMEMBERED
