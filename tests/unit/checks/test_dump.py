"""The tree as text."""

from __future__ import annotations

import pytest
from grove import Grove, key
from kinds import FULL, MAMBA

from unified_tree import Tier, UnifiedTreeError


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


def test_tokens_and_pages_are_shown_on_demand() -> None:
    grove = Grove([FULL, MAMBA])
    grove.put("abcd", [4])
    grove.backup("abcd")
    grove.tree.insert(key("abc", "tenant", bigram=True), {"full": grove.fresh("full", 1)})
    lines = grove.tree.dump(tokens=True).splitlines()
    assert [line for line in lines if "#" in line or "namespace" in line] == grove.tree.dump().splitlines()
    assert lines[2:7] == [
        "    tokens [97, 98, 99, 100]",
        "    full pages [100, 101]",
        "    mamba pages [200]",
        "    h:full pages [102, 103]",
        "    h:mamba pages [201]",
    ]
    assert lines[-2:] == ["    tokens [97, 98]", "    full pages [104]"]


def test_a_page_has_an_owner_or_none() -> None:
    grove = Grove([FULL]).having("abcd", "abxxyy")
    tree = grove.tree
    for text in ("ab", "abcd", "abxx", "abxxyy"):
        owner = tree.owner_of_page("full", grove.pages(text)[-1])
        assert owner is not None
        assert owner[0].length == len(text) and tree.pages(owner[0], "full").tolist() == grove.pages(text)
        assert owner[1].data == tree.key_of(owner[0]).data == key(text).data
    assert tree.owner_of_page("full", 9_999) is tree.owner_of_page("full", 100, Tier.HOST) is None
    with pytest.raises(UnifiedTreeError, match="no component 'nope'"):
        tree.owner_of_page("nope", 1)


def test_a_state_is_owned_at_the_length_where_it_was_saved() -> None:
    grove = Grove([FULL, MAMBA])
    grove.put("abcdefgh", [4])
    owner = grove.tree.owner_of_page("mamba", 200)
    assert owner is not None and owner[0].length == 4 and owner[1].data == key("abcd").data


def test_host_values_are_marked() -> None:
    grove = Grove([FULL]).having("abcd")
    grove.backup("abcd")
    assert grove.tree.dump().endswith("#1 [0, 4) full:2 h:full:2")
    grove.evict(2)
    assert grove.tree.dump().endswith("#1 [0, 4) h:full:2")
