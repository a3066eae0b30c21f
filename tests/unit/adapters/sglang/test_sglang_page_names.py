"""Names for an engine's pages."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from unified_tree import PageError
from unified_tree.controllers.adapters.sglang.page_names import FIRST_CAPACITY, PageNames


def test_names_stand_for_their_pages_however_many_there_are() -> None:
    rng, names, most = random.Random(0), PageNames(torch.device("cpu")), 0
    known: dict[int, int] = {}
    for _ in range(40):
        pages = torch.tensor([rng.randrange(1 << 40) for _ in range(rng.randrange(FIRST_CAPACITY))], dtype=torch.int64)
        given = names.assign(pages)
        known |= dict(zip(given.tolist(), pages.tolist(), strict=True))
        most = max(most, int(given.max(initial=0)))
        if rng.random() < 0.4 and known:
            gone = rng.sample(sorted(known), len(known) // 2)
            names.release(np.array(gone, np.int64))
            known = {name: page for name, page in known.items() if name not in set(gone)}
        asked = np.array(sorted(known), np.int64)
        asked.flags.writeable = False  # as the tree's own arrays
        assert names.pages(asked).tolist() == [known[name] for name in asked.tolist()]
        assert len(names) == len(known)
    assert most > FIRST_CAPACITY


def test_a_name_that_is_not_in_use_is_not_released() -> None:
    names = PageNames(torch.device("cpu"))
    given = names.assign(torch.tensor([5, 6]))
    names.release(given[:1])
    with pytest.raises(PageError, match="released twice"):
        names.release(given)
    assert len(names) == 1
