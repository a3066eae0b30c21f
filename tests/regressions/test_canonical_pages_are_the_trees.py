"""An insert named pages as canonical that it handed back as duplicates: a lease then read freed pages.

Found by the tree's state machine (`full 4`, step 94): pages for the upper part of a node whose own pages are gone.
"""

from __future__ import annotations

from grove import Grove, key, lists
from kinds import FULL, OWN_DRAFT


def test_the_upper_part_of_a_node_on_host_alone_returns_to_the_device() -> None:
    grove = Grove([FULL])
    grove.put("abcdef")
    grove.backup("abcdef")
    grove.evict(3)
    result = grove.put("abcd", since=0)
    assert result.duplicates == {}
    assert lists(result.canonical) == {"full": grove.pages("abcd")}
    assert grove.match("abcdef").device == result.boundary
    assert grove.match("abcdef").reachable.length == 6
    grove.check()


def test_an_optional_path_is_filled_in_the_upper_part_of_a_node() -> None:
    grove = Grove([FULL, OWN_DRAFT])
    grove.put("abcdef")
    grove.evict(3, "draft")
    result = grove.put("abcd", since=0)
    assert set(result.duplicates) == {"full"}
    assert lists(result.canonical)["draft"] == grove.pages("abcdef", "draft") == [203, 204]
    grove.check()


def test_pages_the_tree_does_not_keep_are_not_canonical() -> None:
    grove = Grove([FULL, OWN_DRAFT])
    grove.tree.insert(key("abcd"), {"full": grove.fresh("full", 2)})
    result = grove.tree.insert(key("abcdef"), {"full": grove.fresh("full", 1), "draft": grove.fresh("draft", 1)})
    assert lists(result.duplicates) == {"draft": [200]}
    assert lists(result.canonical) == {"full": [102], "draft": [-1]}
