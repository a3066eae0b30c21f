"""A prompt that is computed and published, as small tests of a cache need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_tree import Key
from unified_tree.controllers import Lease, PrefixCache


def publish(
    cache: PrefixCache,
    tokens: Sequence[int] | NDArray[np.int64],
    namespace: str = "",
    *,
    ends: Sequence[int] = (),
    resumable: bool | None = None,
    **options: Any,
) -> Lease:
    """A request's whole life; returns its lease, which is released.

    Args:
        ends: where chunks end before the prompt does; each is published.
        resumable: of each commit.
        options: of `acquire`.
    """
    with cache.acquire(Key(tokens, namespace), **options) as lease:
        for end in (*ends, len(tokens)):
            cache.allocate(lease, end)
            cache.commit(lease, end, {at: page for at, page in lease.save_pages.items() if at <= end}, resumable=resumable)
    return lease
