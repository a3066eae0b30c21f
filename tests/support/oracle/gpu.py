"""Running the oracle on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


@contextmanager
def gpu() -> Iterator[None]:
    """Models and device pools are made on a GPU, which computes in full precision. Skips the test where there is none."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False  # of convolutions; products have full precision by default
    try:
        with torch.device("cuda"):
            yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
