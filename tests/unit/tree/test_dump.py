"""The tree as text."""

from __future__ import annotations

from grove import Grove, key
from kinds import FULL, MAMBA


def test_an_empty_tree() -> None:
    assert Grove([FULL]).tree.dump() == ""


def test_a_line_a_node() -> None:
    grove = Grove([FULL, MAMBA])
    grove.put("abcd", [2])
    grove.put("abxx", [4])
    grove.lock("abxx")
    grove.tree.insert(key("abc", "tenant", bigram=True), {"full": grove.fresh("full", 1)})
    assert grove.tree.dump() == "\n".join(
        [
            "namespace ''",
            "  #1 [0, 2) resumable full:1* mamba:1",
            "    #2 [2, 4) full:1!",
            "    #3 [2, 4) resumable full:1* mamba:1*",
            "namespace 'tenant' bigrams",
            "  #4 [0, 2) full:1!",
        ]
    )


def test_host_values_are_marked() -> None:
    grove = Grove([FULL])
    grove.put("abcd")
    grove.backup("abcd")
    assert grove.tree.dump().endswith("#1 [0, 4) full:2 h:full:2")
    grove.evict(2)
    assert grove.tree.dump().endswith("#1 [0, 4) h:full:2")
