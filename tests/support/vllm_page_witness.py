"""What vLLM's blocks hold when a request resumes, against what they held when the same prompt was computed without a cache.

Outputs of random models hardly depend on one token of a window, so a defect at its edge is seen here and not there. Which
blocks the next token needs is read from vLLM's own specification of a group, not from the connector's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    import torch
    from vllm_served_mix import Engine

    from unified_tree.controllers.adapters.vllm import ScheduledRequest, StepPlan

Contents = dict[tuple[int, int], list["torch.Tensor"]]
"""By group and index of the block, one tensor a layer."""


class PageWitness:
    """Looks into the blocks of one engine.

    Args:
        engine: with the connector in this process.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._specs = [group.kv_cache_spec for group in engine.core.scheduler.kv_cache_config.kv_cache_groups]

    def computed(self, tokens: list[int], length: int) -> Contents:
        """What the blocks of the first `length` tokens hold when a step has computed just these, without any cache."""
        engine = self._engine
        engine.forget(host=True)
        name = engine.add(tokens)
        with self._plans() as plans:
            while not plans or plans[-1].end_tokens != length:
                engine.step()
                assert not plans or plans[-1].end_tokens <= length, f"no step ended at {length}"
            found = self._contents(plans[-1].block_table(), length)
        engine.run()
        assert engine.hits[name] == 0
        return found

    def resumed(self, tokens: list[int], length: int) -> Contents:
        """What they hold when a request with the same tokens is first scheduled, after `length` tokens were loaded."""
        engine = self._engine
        engine.forget()
        name = engine.add(tokens)
        with self._plans(length) as plans:
            engine.run()
        assert engine.hits[name] == length
        [found] = [step for step in plans if isinstance(step, dict)]
        return found

    @contextmanager
    def _plans(self, length: int = 0) -> Iterator[list[Any]]:
        """The steps as they are planned; with a length what the blocks hold when the first is."""
        plan, plans = self._engine.side.plan, list[Any]()

        def planned(step: Iterable[ScheduledRequest]) -> StepPlan:
            steps = [replace(each, block_table=partial(list, each.block_table())) for each in step]
            if length and steps and not plans:
                plans.append(self._contents(steps[0].block_table(), length))
            plans.extend(steps)
            made: StepPlan = plan(steps)
            return made

        with mock.patch.object(self._engine.side, "plan", planned):
            yield plans

    def _contents(self, blocks: Sequence[Sequence[int]], length: int) -> Contents:
        """The blocks that token `length` needs."""
        page, found = self._engine.page, Contents()
        for group, pages in self._engine.worker().pages.items():
            for index in range(self._first_token(group, length) // page, length // page):
                assert blocks[group][index], f"group {group} has no block {index}"
                found[group, index] = [cache[blocks[group][index]].clone() for cache in pages._caches]
        return found

    def _first_token(self, group: int, length: int) -> int:
        """The first whose block the token after `length` reads."""
        spec = self._specs[group]
        if hasattr(spec, "sliding_window") and spec.sliding_window is not None:
            return max(0, length - int(spec.sliding_window) + 1)
        return length - 1 if hasattr(spec, "mamba_cache_mode") else 0


def differing(one: Contents, other: Contents) -> list[tuple[int, int]]:
    """The blocks that do not hold the same, bit for bit."""
    assert one.keys() == other.keys()
    return [place for place in one if any(not a.equal(b) for a, b in zip(one[place], other[place], strict=True))]
