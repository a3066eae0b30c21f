"""What the oracle takes for rounding, and what it does not."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from oracle.families import FAMILIES
from oracle.reference import Reference, Tally
from oracle.tiny_model import SINGLE, tiny_model

TOKENS = [*range(3, 15)]


@pytest.fixture
def undecided() -> Any:
    """A model whose last router has two experts that are as good as one another, for every token."""
    with SINGLE.context():
        model = tiny_model(FAMILIES["MiMo-V2-Flash"], SINGLE, 3)
    with torch.no_grad():
        router = _routers(model)[-1]
        router.weight[1] = router.weight[0]
        router.e_score_correction_bias[:] = torch.tensor([0.0, 0.0, 1.0, -1.0])  # the third is always the first of two chosen
    return model


def _routers(model: Any) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__.endswith("TopkRouter")]


def _tally(said: torch.Tensor, model: Any) -> tuple[Tally, float]:
    tally, reference = Tally(), Reference()
    logits = reference.logits(model, TOKENS)
    difference = tally.add(said, logits, SINGLE.tolerance, lambda: reference.rounded(model, TOKENS))
    return tally, difference


def test_another_choice_where_experts_tie_is_rounding(undecided: Any) -> None:
    other = copy.deepcopy(undecided)
    with torch.no_grad():
        _routers(other)[-1].weight[1] *= 1 + 1e-6
    said = Reference().logits(other, TOKENS)
    assert (said - Reference().logits(undecided, TOKENS)).abs().max() > 10 * SINGLE.tolerance
    tally, difference = _tally(said, undecided)
    assert tally.largest == difference <= SINGLE.tolerance


def test_a_token_that_was_read_wrong_is_not(undecided: Any) -> None:
    wrong = [*TOKENS[:4], 1, *TOKENS[5:]]
    assert _tally(Reference().logits(undecided, wrong), undecided)[1] > 10 * SINGLE.tolerance


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_as_far_off_as_can_be(undecided: Any, value: float) -> None:
    said = Reference().logits(undecided, TOKENS).clone()
    said[2, 5] = value
    assert _tally(said, undecided)[1] == float("inf")


def test_each_weights_version_has_a_reference_of_its_own(undecided: Any) -> None:
    reference, found = Reference(), []
    for step in range(4):
        model = copy.deepcopy(undecided)  # where the one before may have been
        with torch.no_grad():
            model.model.embed_tokens.weight.mul_(1.5**step)
        found.append(reference.logits(model, TOKENS))
        del model
    assert all((one - other).abs().max() > SINGLE.tolerance for one, other in pairwise(found))
