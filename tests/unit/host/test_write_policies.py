"""When boundaries are copied to host, and what goes along."""

from __future__ import annotations

from typing import Any

import pytest
from held_engine import Tiered
from kinds import DRAFT, FULL, MAMBA

from unified_tree import Key, OutOfPagesError
from unified_tree.controllers import WritePolicy
from unified_tree.nodes.effect import EffectKind


def key(text: str) -> Key:
    return Key([ord(letter) for letter in text])


def copied(tiered: Tiered) -> dict[str, int]:
    """Pages by component of the backups open now."""
    counts: dict[str, int] = {}
    for ticket in tiered.engine.tickets(EffectKind.BACKUP):
        for copy in tiered.engine.open[ticket].copies:
            counts[copy.component] = counts.get(copy.component, 0) + copy.source.size
    return counts


def test_write_through_copies_what_was_committed() -> None:
    tiered = Tiered([FULL])
    tiered.serve("abcdef")
    assert copied(tiered) == {}, "a commit does not talk to the engine"
    tiered.cache.poll()
    assert copied(tiered) == {"full": 3}
    assert tiered.on_host() == 0, "not before it has landed"
    tiered.engine.land()
    assert tiered.on_host() == 0, "nor between two polls"
    tiered.cache.poll()
    assert tiered.on_host() == 3
    assert tiered.cache.stats().backed_up.count == 1
    tiered.serve("abcdefgh")
    tiered.cache.poll()
    assert copied(tiered) == {"full": 1}, "only what the host lacks"
    tiered.end()


def test_what_stands_on_a_backup_that_failed_comes_home() -> None:
    tiered = Tiered([FULL])
    tiered.serve("abcd")
    tiered.cache.poll()
    tiered.serve("abcdef")
    tiered.cache.poll()
    first, second = tiered.engine.tickets(EffectKind.BACKUP)
    tiered.engine.fail(first)
    tiered.engine.land()
    tiered.cache.poll()
    assert tiered.on_host() == 0, "the last page alone is worth nothing"
    assert tiered.cache.stats().drops["backup failed"] == 1
    assert second not in tiered.engine.open
    tiered.serve("abcdef")
    tiered.settle()
    assert tiered.on_host() == 3, "the next commit asks again"
    tiered.end()


@pytest.mark.parametrize("hits", [1, 2, 3])
def test_selective_copies_at_the_nth_hit(hits: int) -> None:
    tiered = Tiered([FULL], write_policy=WritePolicy.WRITE_THROUGH_SELECTIVE, selective_hits=hits)
    tiered.serve("abcd")
    for hit in range(1, hits + 1):
        tiered.settle()
        assert tiered.on_host() == 0
        assert tiered.serve(f"abcd{hit}") == 4
    tiered.settle()
    assert tiered.on_host() == 2, "the ancestors went along, the one-off prompts below did not"
    tiered.end()


def test_selective_takes_unbacked_ancestors_along() -> None:
    tiered = Tiered([FULL], write_policy=WritePolicy.WRITE_THROUGH_SELECTIVE, selective_hits=1)
    for text in ("ab", "abcd", "abcdef"):
        tiered.serve(text)
    tiered.settle()
    before = tiered.on_host()
    assert tiered.serve("abcdefg") == 6
    tiered.settle()
    assert (before, tiered.on_host()) == (2, 3)
    tiered.end()


def test_write_back_copies_the_coldest_up_to_the_low_water_mark() -> None:
    tiered = Tiered([FULL], device=10, write_policy=WritePolicy.WRITE_BACK, low_water=0.5)
    tiered.serve("abcdefgh")
    tiered.settle()
    assert tiered.on_host() == 0, "six pages are free, and five are wanted"
    tiered.serve("ijkl")
    tiered.settle()
    assert tiered.on_host() == 4, "the coldest boundary, not the latest"
    assert tiered.cache.tree.match_prefix(tiered.start("abcdefgh").lease.key).device.length == 8
    tiered.end()


def test_write_back_drops_clean_victims_first_and_counts_what_is_lost() -> None:
    tiered = Tiered([FULL], device=10, write_policy=WritePolicy.WRITE_BACK, low_water=0.4)
    tiered.serve("abcdefgh")
    tiered.serve("ijklmnop")
    tiered.settle()
    assert tiered.on_host() == 4
    tiered.cache.tree.match_prefix(key("abcdefgh"))  # the copied one is the warmer one now
    tiered.forget(full=4)
    assert tiered.cache.stats().lost == 0
    assert tiered.cache.tree.match_prefix(key("ijklmnop")).device.length == 8, "though it is colder"
    tiered.forget()
    assert tiered.cache.stats().lost > 0
    assert tiered.serve("abcdefgh?") == 8, "from host"
    tiered.end()


def test_allocate_never_waits_for_a_copy() -> None:
    tiered = Tiered([FULL], device=10, write_policy=WritePolicy.WRITE_BACK, low_water=1.0, max_backup_share=1.0)
    tiered.serve("abcdefgh")
    tiered.serve("ijklmnop")
    tiered.cache.poll()
    assert copied(tiered) == {"full": 8}
    request = tiered.start("qrstuvwxyz")
    with pytest.raises(OutOfPagesError):
        tiered.cache.allocate(request.lease, 10)
    assert tiered.engine.waited == []
    tiered.engine.land()
    tiered.cache.poll()
    tiered.run(request)
    assert tiered.cache.stats().lost == 0
    tiered.end()


def test_backups_pin_no_more_than_their_share() -> None:
    tiered = Tiered([FULL], device=20, max_backup_share=0.1)
    for text in ("abcd", "efgh", "ijkl"):
        tiered.serve(text)
    tiered.cache.poll()
    assert len(tiered.engine.tickets(EffectKind.BACKUP)) == 2, "the one that passes the limit is the last"
    tiered.settle()
    assert tiered.on_host() == 6
    tiered.end()


def states_for_two(**options: Any) -> Tiered:
    return Tiered(
        [FULL, MAMBA], device=40, counts={"mamba": 4}, write_policy=WritePolicy.WRITE_BACK, max_backup_share=1.0, **options
    )


def test_a_state_that_the_next_turn_supersedes_is_not_copied() -> None:
    tiered = states_for_two(low_water=0.9)
    tiered.serve("abcde")
    tiered.serve("abcdefghi")
    tiered.settle()
    assert (tiered.on_host(), tiered.on_host("mamba")) == (4, 1)
    tiered.forget()
    assert tiered.serve("abcdefgh?") == 8
    tiered.end()


def test_a_state_that_two_prompts_go_on_from_is_copied() -> None:
    tiered = states_for_two(low_water=1.0)
    for text in ("abcde", "abcdefghi", "abcdijklm"):
        tiered.serve(text)
    tiered.settle()
    assert (tiered.on_host(), tiered.on_host("mamba")) == (6, 3)
    tiered.end()


def test_a_host_smaller_than_one_boundary_is_counted_and_harmless() -> None:
    tiered = Tiered([FULL, MAMBA], host=2)
    for text in ("ABCDEFGHI", "qrstuvwxy", "abcdefghi"):
        tiered.serve(text)
        tiered.settle()
    assert tiered.on_host() == 0
    assert tiered.cache.stats().drops["host full"] >= 3
    assert tiered.serve("abcdefgh?") == 8
    assert tiered.serve("vwxyz") == 0
    tiered.settle()
    assert (tiered.on_host(), tiered.on_host("mamba")) == (2, 1), "what fits is copied"
    tiered.end()


def test_without_room_for_the_draft_its_owner_goes_alone() -> None:
    tiered = Tiered([FULL, DRAFT], host_counts={"draft": 2})
    tiered.serve("abcdefgh")
    tiered.settle()
    assert (tiered.on_host(), tiered.on_host("draft")) == (4, 0)
    tiered.forget()
    assert tiered.serve("abcdefgh?") == 8, "what is not required never shortens a hit"
    tiered.end()
