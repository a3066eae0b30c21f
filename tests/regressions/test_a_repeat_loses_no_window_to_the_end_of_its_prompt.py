"""The window page that only a repeat of a prompt needs went first, though the repeat was kept for.

A repeat computes its last token again, so where a prompt fills its pages it resumes a page before the end, and needs one window
page more than the end. If that page ended a node, as after a chunk of a prefill, no node's end needed it: it was stranded.
Found by counting hits inside SGLang where window pages were short.
"""

from __future__ import annotations

import numpy as np
from kinds import FULL, swa

from unified_tree import Key
from unified_tree.controllers import PrefixCache


def test_the_window_of_a_repeat_stays_while_there_is_a_spare_one() -> None:
    cache = PrefixCache([FULL, swa(31)], 16, {"full": 16, "swa": 16}, policy="lru")
    tokens = np.arange(96)
    with cache.acquire(Key(tokens)) as lease:
        for length in (64, 96):
            cache.allocate(lease, length)
            cache.commit(lease, tokens[:length])
    cache.evict({"swa": 3})  # of six: [48, 80) is kept for the repeat, which resumes at 80, and [80, 96) for the end
    with cache.acquire(Key(tokens)) as repeat:
        assert repeat.cached_tokens == 80
    assert cache.tree.check() == []
