"""Device values that could not go because of what was on host stayed out of the eviction order for ever.

Found by the tree's state machine (`narrow window 5`, step 184).
"""

from __future__ import annotations

from grove import Grove
from kinds import FULL

from unified_tree import Component, Path, Tier


def test_when_the_last_host_only_child_goes() -> None:
    grove = Grove([FULL])
    grove.put("ab")
    grove.put("abcd")
    grove.backup("abcd")
    grove.evict(1)
    grove.match("abcd")
    assert grove.evict(1, tier=Tier.HOST) == {"full": [102]}, "the copy of [ab], which is on device"
    assert grove.evict(1) == {}, "the sole copy above a node on host alone"
    assert grove.evict(1, tier=Tier.HOST) == {"full": [103]}
    grove.check()
    assert grove.evict(1) == {"full": [100]}


def test_when_the_copy_of_another_path_comes() -> None:
    grove = Grove([FULL, Component(name="packed", coverage=Path())])
    grove.put("ab")
    grove.put("abcd")
    grove.backup("abcd")
    grove.tree.evict({"full": 1, "packed": 1})
    grove.match("abcd")
    assert grove.evict(1, "packed", Tier.HOST) == {"packed": [202]}
    assert grove.evict(1) == {"full": [100]}, "its copy stays on host"
    assert grove.evict(1, "packed") == {}, "the sole copy of [ab]'s packed pages, which what is below needs"
    assert grove.evict(1, tier=Tier.HOST) == {"full": [103], "packed": [203]}
    grove.check()
    assert grove.evict(1, "packed") == {"packed": [200]}
