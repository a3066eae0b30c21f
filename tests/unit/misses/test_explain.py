"""`explain`: which component on which tier lost how much of a key."""

from __future__ import annotations

import re
from itertools import product

from grove import Grove, key
from kinds import FULL, MAMBA, OWN_DRAFT, swa

from unified_tree import Explanation, Key, Tier
from unified_tree.policies.density.hit_density import HitDensity


def losses(explanation: Explanation) -> list[tuple[str, Tier | None, int, int]]:
    return [(loss.component, loss.kept_on, loss.begin, loss.end) for loss in explanation.losses]


def test_what_was_never_seen_is_unknown() -> None:
    grove = Grove([FULL]).having("abcd")
    explanation = grove.tree.explain(key("abcdefg"))
    assert (explanation.device_length, explanation.known_length) == (4, 4)
    assert losses(explanation) == [("unknown", None, 4, 7)]
    assert losses(grove.tree.explain(Key([1, 2], "new"))) == [("unknown", None, 0, 2)]


def test_a_missing_state_is_named() -> None:
    grove = Grove([FULL, MAMBA])
    grove.put("abcdef", [2])
    explanation = grove.tree.explain(key("abcdef"))
    assert (explanation.device_length, explanation.path_length) == (2, 6)
    assert ("mamba", None, 2, 6) in losses(explanation)
    assert "[2, 6), 4 tokens: mamba is on no tier" in str(explanation)


def test_each_component_answers_for_itself() -> None:
    grove = Grove([FULL, swa(3), MAMBA])
    grove.put("abcdef", [2])
    grove.evict(1, "swa")
    lost = {(loss.component, loss.begin, loss.end) for loss in grove.tree.explain(key("abcdef")).losses}
    assert lost == {("swa", 0, 6), ("mamba", 2, 6)}


def test_what_the_host_still_has_is_lost_on_device_only() -> None:
    grove = Grove([FULL, MAMBA])
    grove.put("abcd", [4])
    grove.backup("abcd")
    grove.evict(1, "mamba")
    explanation = grove.tree.explain(key("abcd"))
    assert (explanation.device_length, explanation.reachable_length) == (0, 4)
    assert losses(explanation) == [("mamba", Tier.HOST, 0, 4)]
    assert str(explanation).splitlines() == [
        "0 tokens can be resumed on device, 4 once loaded from host; the paths cover 4",
        "  [0, 4), 4 tokens: mamba is on host, not on device",
        "  [0, 2) NEVER_SAVED: the path is known, but nothing that a request could resume from was saved here",
        "  [2, 3) PAGE_REMAINDER: the prompt's end fills no page",
        "  [3, 4) LAST_TOKEN: the last token is always computed",
        "  full on device [0, 4): unused for 1 tick; the least recently used goes first; it is the next victim",
        "  full on host [0, 4): unused for 0 ticks; the least recently used goes first; it is the next victim",
        "  mamba on host at 4: unused for 0 ticks; the least recently used goes first; it is the next victim",
    ]


def test_what_is_kept_says_why_it_stands_where_it_does() -> None:
    grove = Grove([FULL])
    old, new = grove.put("ab"), grove.put("cd")
    assert old != new
    [second] = grove.tree.explain(key("cd")).standings
    assert second.startswith("full on device [0, 2): unused for 0 ticks; ")
    assert f"; the next victim is at node {old.boundary.node}: unused for 1 tick; " in second
    [first] = grove.tree.explain(key("ab")).standings
    assert first.endswith("; it is the next victim")
    receipt = grove.tree.lock(grove.tree.match_prefix(key("ab"), touch=False).device)
    [locked] = grove.tree.explain(key("ab")).standings
    receipt.release()
    assert locked == "full on device [0, 2): in use, and locked"


def test_an_eviction_is_told_with_its_pool_and_age() -> None:
    grove = Grove([FULL, MAMBA])
    grove.put("abcd", [4])
    grove.evict(1, "mamba")
    [eviction, _] = grove.tree.explain(key("abcde")).reasons
    pool, why = "the device pool of mamba", "unused for 0 ticks; the least recently used goes first"
    assert re.fullmatch(rf"\[0, 4\) EVICTED: evicted from {pool} \d+\.\d s ago: {why}", eviction)


def test_an_optional_component_loses_nothing() -> None:
    grove = Grove([FULL, OWN_DRAFT]).having("abcd")
    grove.evict(2, "draft")
    assert grove.tree.explain(key("abcd")).losses == ()


def test_explain_leaves_what_the_default_policy_evicts_as_it_was() -> None:
    """It asked the policy for its next victim, which notes what it finds, so a rank that explained evicted others."""
    groves = [Grove([FULL, MAMBA], policy="density") for _ in range(2)]
    texts = ["".join(letters) for letters in product("abc", "defg", "hijk", "lmno")]
    victims: list[list[object]] = [[], []]
    for text in texts:
        for grove, seen, explains in zip(groves, victims, (False, True), strict=True):
            grove.put(text, [len(text)])
            for asked in texts[:40] if explains else ():
                grove.tree.explain(key(asked))
            seen.append(grove.evict(2, "mamba"))
            policy = grove.tree.state.policy
            assert isinstance(policy, HitDensity)
            seen.append([found._hand_rank for _, found in sorted(policy._candidates.items())])
    assert victims[0] == victims[1]
