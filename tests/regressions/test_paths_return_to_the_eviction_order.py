"""Device values that could not go because of what was on host stayed out of the eviction order for ever.

Found by the tree's state machine (`narrow window 5`, step 184). Now nothing on host keeps a device value: a host copy that
others on host stand on does not go before them, so below a sole device copy nothing lives on host alone.
"""

from __future__ import annotations

from grove import Grove
from kinds import FULL

from unified_tree import Component, Path, Tier


def test_above_a_node_on_host_alone() -> None:
    grove = Grove([FULL])
    grove.put("ab")
    grove.put("abcd")
    grove.backup("abcd")
    grove.evict(1)
    grove.match("abcd")
    assert grove.evict(1, tier=Tier.HOST) == {"full": [103]}, "not the copy of [ab], on which it stands"
    grove.check()
    assert grove.evict(1) == {"full": [100]}


def test_above_a_node_with_one_path_on_host_alone() -> None:
    grove = Grove([FULL, Component(name="packed", coverage=Path())])
    grove.put("ab")
    grove.put("abcd")
    grove.backup("abcd")
    grove.tree.evict({"full": 1, "packed": 1})
    grove.match("abcd")
    assert grove.evict(1) == {"full": [100]}, "its copy stays on host"
    assert grove.evict(1, "packed") == {"packed": [200]}
    assert grove.match("abcd").reachable.length == 4
    assert grove.evict(1, "packed", Tier.HOST) == {"full": [103], "packed": [203]}
    grove.check()
