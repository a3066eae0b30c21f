"""An eviction policy of your own: LRFU (Lee and others, 2001), which counts uses and lets each count for less as it ages.

A use counts 1 at first, and half as much after each `half_life` of the tree's clock. All counts halve together, so their order
changes only at a use: the tree asks for a rank then, and at no other time.
"""

from math import log2

from unified_tree import Component, EvictionPolicy, Key, Path, TreeView, Value
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.testing import check_policy

SYSTEM_PROMPTS = [list(range(1000 * i, 1000 * i + 512)) for i in range(1, 5)]


class Lrfu(EvictionPolicy):
    """Evicts the value whose decayed count of uses is the smallest. One instance serves one tree.

    Args:
        view: the tree as a policy sees it; this policy needs nothing of it.
        half_life: in ticks; a match that finds a path is one, and each length that a commit publishes.
    """

    def __init__(self, view: TreeView, half_life: float = 40.0) -> None:
        del view
        self.half_life = half_life

    def touched(self, value: Value) -> None:
        """Add a use. The score is the logarithm of the sum of 2 ** (time / half_life) over all uses: it orders values as their
        decayed counts do.
        """
        use = value.touched / self.half_life
        value.score = max(use, value.score) + log2(1 + 2 ** -abs(use - value.score))

    def rank(self, value: Value) -> float:
        """The smallest goes first. Where the end of a path goes, the tree gives its parent the larger score of both."""
        return value.score


def hit_rate(policy: str | type[Lrfu]) -> float:
    """Four system prompts take turns; every fifth request brings a long prompt that never comes again."""
    cache = PrefixCache([Component(name="full", coverage=Path())], 16, {"full": 200}, policy=policy)
    for request in range(400):
        tokens = [*SYSTEM_PROMPTS[request % 4], *range(100_000 + 64 * request, 100_064 + 64 * request)]
        if request % 5 == 0:
            tokens = list(range(1_000_000 + 1024 * request, 1_001_024 + 1024 * request))
        with cache.acquire(Key(tokens)) as lease:
            cache.allocate(lease, len(tokens))
            cache.commit(lease, len(tokens))
    assert not cache.tree.check()
    return cache.stats().hit_tokens / cache.stats().prompt_tokens


if __name__ == "__main__":
    check_policy(Lrfu)
    for policy in ("lru", Lrfu):
        print(policy if isinstance(policy, str) else policy.__name__, f"hits {hit_rate(policy):.1%} of the prompt tokens")
