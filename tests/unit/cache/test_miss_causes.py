"""Planted causes: what a request has to compute, and why, is named rightly. A token is a letter, a page two tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from held_engine import Tiered
from kinds import DRAFT, FULL, MAMBA, swa
from stored_cache import StoredCache

from unified_tree import Component, Eviction, Key, Tier, TreeSettings
from unified_tree.controllers import Lease, LoadCost, PrefixCache
from unified_tree.nodes.effect import EffectKind

SLOW = LoadCost(bytes_per_s=1.0, latency_s=1e9)
Part = tuple[str, int, int]


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


class Served:
    """A cache without other tiers, whose requests are texts."""

    def __init__(self, components: list[Component], counts: dict[str, int] | None = None, **settings: int) -> None:
        self.now = 0.0
        self.cache = PrefixCache(components, 2, counts, settings=TreeSettings(**settings), time_s=lambda: self.now)

    def start(self, text: str, namespace: str = "", checkpoints: tuple[int, ...] = ()) -> Lease:
        return self.cache.acquire(Key(letters(text), namespace), checkpoints)

    def run(self, lease: Lease, text: str, *, saves: bool = True) -> None:
        """Compute all of it, a save point at a time."""
        tokens = letters(text)
        for end in sorted({*lease.save_at, len(tokens)}):
            if end > lease.committed:
                self.cache.allocate(lease, end)
                states = {at: page for at, page in lease.save_pages.items() if at <= end} if saves else {}
                self.cache.commit(lease, tokens[:end], states)

    def serve(self, text: str, namespace: str = "", checkpoints: tuple[int, ...] = ()) -> list[Part]:
        """A request's whole life; why it computed what it did."""
        with self.start(text, namespace, checkpoints) as lease:
            self.run(lease, text)
            return parts(lease)

    def forget(self, **pages: int) -> None:
        self.cache.evict(pages)

    def evictions(self, text: str) -> list[Eviction]:
        with self.start(text) as lease:
            return [miss.eviction for miss in lease.misses if miss.eviction is not None]

    def details(self, text: str) -> list[str | None]:
        with self.start(text) as lease:
            return [miss.detail for miss in lease.misses]


def parts(lease: Lease) -> list[Part]:
    return [(miss.cause.label, miss.begin, miss.end) for miss in lease.misses]


def test_an_evicted_path_says_which_pool_was_short_when_and_for_whom() -> None:
    served = Served([FULL], {"full": 4})
    served.serve("abcdefgh")
    served.now = 7.5
    served.serve("XYZUVWRS", "tenant")
    served.now = 9.0
    [eviction] = served.evictions("abcdefgh")
    assert (eviction.component, eviction.tier, eviction.at_s, eviction.beneficiary) == (0, Tier.DEVICE, 7.5, "tenant")
    assert served.serve("abcdefgh") == [("evicted", 0, 6), ("page_remainder", 6, 7), ("last_token", 7, 8)]


def test_turns_that_were_evicted_one_after_the_other_have_their_own_evictions() -> None:
    served = Served([FULL])
    served.serve("abcd")
    served.serve("abcdefgh")
    served.forget(full=2)
    served.forget(full=2)
    assert served.serve("abcdefghi") == [("evicted", 0, 4), ("evicted", 4, 8), ("last_token", 8, 9)]


def test_an_evicted_state_is_named_where_the_path_is_there() -> None:
    served = Served([FULL, MAMBA])
    served.serve("abcdefgh")
    served.forget(mamba=1)
    assert served.serve("abcdefghi") == [("evicted", 6, 8), ("last_token", 8, 9)], "the prompt's end goes before its repeat's"
    served.forget(mamba=9)
    with served.start("abcdefghi") as lease:
        assert parts(lease) == [("evicted", 0, 8), ("last_token", 8, 9)]
        [eviction] = [miss.eviction for miss in lease.misses if miss.eviction is not None]
    assert eviction.component == 1


def reasons(served: Served, text: str) -> list[str]:
    """Why what was evicted was, without the pool and the time."""
    said = served.cache.tree.explain(Key(letters(text))).reasons
    return [f"{reason.split()[0]}{reason.split()[1]}{reason.rpartition(' s ago')[2]}" for reason in said if "EVICTED" in reason]


SPARE = "spare, since the state just before it serves almost as much"
NEEDED = "unused for 1 tick, ranked as by lru until 64 turns are known; the least recently used goes first"


@pytest.mark.parametrize("calls", [(2,), (1, 1)])
def test_a_spare_state_is_blamed_only_for_what_the_one_before_it_did_not_serve(calls: tuple[int, ...]) -> None:
    """The spare state went first and cost two tokens; the loss of the other one, whose text it stands behind, cost the rest."""
    served = Served([FULL, MAMBA])
    served.serve("abcdefgh")
    for count in calls:
        served.forget(mamba=count)
        served.now += 1.0
    assert reasons(served, "abcdefghi") == [f"[0,6): {NEEDED}", f"[6,8): {SPARE}"]


def test_a_spare_state_is_not_blamed_where_its_text_went_too() -> None:
    served = Served([FULL, MAMBA])
    served.serve("abcdefgh")
    served.forget(mamba=1)
    served.forget(full=1)
    served.forget(mamba=1)
    assert served.cache.tree.match_prefix(Key(letters("abcdefgh")), touch=False).path_length == 6
    assert reasons(served, "abcdefghi") == [f"[0,6): {NEEDED}", f"[6,8): {SPARE}"]


def test_an_earlier_state_that_went_between_is_not_blamed() -> None:
    """A later one still served more than it could."""
    served = Served([FULL, MAMBA])
    served.serve("abcdefgh")
    served.serve("abcdefghijkl")
    for _ in range(4):
        served.now += 1.0
        served.forget(mamba=1)
    [needed, spare] = reasons(served, "abcdefghijklm")
    assert needed == f"[0,10): {NEEDED}"
    assert spare == f"[10,12): {SPARE}"


def test_a_window_that_was_stranded_is_not_blamed_for_the_loss_that_stranded_it() -> None:
    served = Served([FULL, MAMBA, swa(2)])
    served.serve("abcdef")
    served.forget(mamba=9)
    served.now = 1.0
    served.forget(swa=9)
    assert [eviction.component for eviction in served.evictions("abcdefg")] == [1, 1]


def test_a_window_in_the_middle_of_a_prompt_was_never_saved() -> None:
    served = Served([FULL, swa(4)])
    served.serve("abcdefghijkl")
    with served.start("pqrstuvwxyzl") as lease:
        for end in (8, 12):  # the window of the first chunk comes free before the prompt's end
            served.cache.allocate(lease, end)
            served.cache.advance(lease, end)
        served.cache.commit(lease, end)
    assert served.serve("abcdefXYZ") == [("diverged", 6, 8), ("last_token", 8, 9)], "it is spare"
    assert served.serve("pqXYZ") == [("never_saved", 0, 2), ("diverged", 2, 4), ("last_token", 4, 5)]


def test_an_aborted_request_saved_nothing() -> None:
    served = Served([FULL, MAMBA])
    with served.start("abcdefgh") as lease:
        served.cache.allocate(lease, 4)
        served.cache.commit(lease, letters("abcd"))
    assert served.details("abcdef") == ["aborted", None, None]
    assert served.serve("abcdef")[0] == ("never_saved", 0, 4)


def test_a_state_that_was_due_and_not_saved_is_told() -> None:
    served = Served([FULL, MAMBA])
    with served.start("abcdefgh", checkpoints=(4,)) as lease:
        served.run(lease, "abcdefgh", saves=False)
    assert served.details("abcdef")[0] == "not saved where it was due"


def test_a_state_without_a_page_is_told() -> None:
    served = Served([FULL, MAMBA], {"full": 40, "mamba": 1})
    with served.start("abcdefgh", checkpoints=(4,)) as lease:
        served.run(lease, "abcdefgh")
    assert served.details("abcdef")[0] == "no state page was free"


def test_a_draft_that_is_gone_costs_no_token_and_has_no_cause() -> None:
    served = Served([FULL, DRAFT])
    with served.start("abcdef") as lease:
        served.cache.allocate(lease, 6)
        served.cache.commit(lease, letters("abcdef"), without=["draft"])
    assert served.serve("abcdefg") == [("last_token", 6, 7)]


@pytest.mark.parametrize("namespace", ["", None])
@pytest.mark.parametrize("reclaimed", [False, True])
def test_what_was_computed_with_other_weights(namespace: str | None, reclaimed: bool) -> None:
    served = Served([FULL])
    served.serve("abcdefgh")
    served.cache.invalidate(namespace)
    if reclaimed:
        served.cache.tree.reclaim(100)
    assert served.serve("abcdefXYZ") == [("other_weights", 0, 6), ("never_seen", 6, 8), ("last_token", 8, 9)]
    assert served.serve("abcdefXYZ") == [("last_token", 8, 9)]


def test_each_of_several_prompts_under_way_is_found_whoever_of_them_ends() -> None:
    served = Served([FULL])
    with served.start("ijklmnop"):
        with served.start("abcdefgh"), served.start("qrstuvwx"):
            assert served.serve("abcdefXYZ") == [("in_flight", 0, 6), ("never_seen", 6, 8), ("last_token", 8, 9)]
            assert served.serve("qrstuvXYZ") == [("in_flight", 0, 6), ("never_seen", 6, 8), ("last_token", 8, 9)]
        assert served.serve("ijklmnXYZ") == [("in_flight", 0, 6), ("never_seen", 6, 8), ("last_token", 8, 9)]
        assert served.serve("ABCD")[0][0] == "never_seen"
    assert served.cache.ledger.in_flight.count == 0


def test_a_load_that_would_cost_more_is_refused() -> None:
    tiered = Tiered([replace(FULL, flops_per_token=1.0)], load_cost=SLOW)
    tiered.serve("abcdefgh")
    tiered.settle()
    tiered.forget()
    with tiered.cache.acquire(Key(letters("abcdefghi"))) as lease:
        assert parts(lease) == [("load_refused", 0, 8), ("last_token", 8, 9)]
        assert lease.misses[0].detail == "cost"


def test_an_explanation_has_no_misses_of_what_a_load_brings_back() -> None:
    tiered = Tiered([FULL])
    tiered.serve("abcdefgh")
    tiered.settle()
    tiered.forget()
    key = Key(letters("abcdefghi"))
    explanation = tiered.cache.explain(key)
    assert (explanation.device_length, explanation.reachable_length) == (0, 8)
    with tiered.cache.acquire(key) as lease:
        assert [repr(miss) for miss in explanation.misses] == [repr(miss) for miss in lease.misses]
        assert parts(lease) == [("last_token", 8, 9)]
    assert [reason.split(":")[0] for reason in explanation.reasons] == ["[8, 9) LAST_TOKEN"]


def test_an_explanation_names_what_another_request_computes_now() -> None:
    served = Served([FULL])
    key = Key(letters("abcdefXYZ"))
    with served.start("abcdefgh"):
        reasons = served.cache.explain(key).reasons
    assert reasons[0] == "[0, 6) IN_FLIGHT: another request computes it now"
    assert served.cache.explain(key).misses[0].cause.label == "never_seen"


def test_a_load_without_room_is_refused() -> None:
    tiered = Tiered([FULL], device=6)
    tiered.serve("abcdefgh")
    tiered.settle()
    tiered.forget()
    with tiered.cache.acquire(Key(letters("UVWXYZ"))) as busy:
        tiered.cache.allocate(busy, 6)
        with tiered.cache.acquire(Key(letters("abcdefghi"))) as lease:
            assert parts(lease) == [("load_refused", 0, 8), ("last_token", 8, 9)]
            assert lease.misses[0].detail == "room"


def test_a_load_that_failed_is_named_and_so_is_the_next_try_without_it() -> None:
    tiered = Tiered([FULL])
    tiered.serve("abcdefgh")
    tiered.settle()
    tiered.forget()
    lease = tiered.cache.acquire(Key(letters("abcdefghi")))
    assert parts(lease) == [("last_token", 8, 9)]
    tiered.cache.poll()
    [ticket] = tiered.engine.tickets(EffectKind.LOAD)
    tiered.engine.fail(ticket)
    tiered.cache.poll()
    assert parts(lease) == [("load_failed", 0, 8), ("last_token", 8, 9)]
    tiered.cache.release(lease)
    with tiered.cache.acquire(Key(letters("abcdefghi")), may_load=False) as again:
        assert parts(again) == [("load_failed", 0, 8), ("last_token", 8, 9)]
    stats = tiered.cache.stats()
    assert sum(tiered.cache.ledger.tokens) == stats.prompt_tokens - stats.hit_tokens


def test_the_last_copy_goes_from_host() -> None:
    tiered = Tiered([FULL])
    tiered.serve("abcdefgh")
    tiered.settle()
    tiered.forget()
    tiered.cache.evict({"full": 4}, Tier.HOST)
    with tiered.cache.acquire(Key(letters("abcdefghi"))) as lease:
        assert parts(lease) == [("evicted", 0, 8), ("last_token", 8, 9)]
        assert [miss.eviction.tier for miss in lease.misses if miss.eviction is not None] == [Tier.HOST]


def test_a_prefetch_that_was_given_up_is_named() -> None:
    stored = StoredCache([FULL])
    stored.compute(letters("abcdefgh"))
    cold = stored.like_this()
    prompt = letters("abcdefghi")
    assert cold.prefetch(prompt)
    for _ in range(40):
        cold.clock.advance(1)
        if cold.cache.storage is not None and cold.cache.storage.prefetcher.requests.due_pages("request"):
            break
        cold.step()
    with cold.cache.acquire(Key(prompt), request="request") as lease:
        assert parts(lease) == [("prefetch_given_up", 0, 8), ("last_token", 8, 9)]


def test_what_was_evicted_too_long_ago_is_unknown() -> None:
    served = Served([FULL], ghost_bytes=1)
    served.serve("abcdefgh")
    served.forget(full=9)
    assert served.serve("abcdefghi") == [("unknown", 0, 8), ("last_token", 8, 9)]


def test_what_was_forgotten_altogether_was_never_seen() -> None:
    served = Served([FULL], ghost_bytes=1, faded_ghosts=0)
    served.serve("abcdefgh")
    served.forget(full=9)
    assert served.serve("abcdefghi") == [("never_seen", 0, 8), ("last_token", 8, 9)]


def test_without_a_memory_nothing_is_told() -> None:
    served = Served([FULL], ghost_bytes=0)
    assert served.serve("abcdefgh") == []


def test_what_came_back_in_one_piece_still_knows_what_stood_behind_it() -> None:
    served = Served([FULL])
    served.serve("abcd")
    served.serve("abcdefgh")
    served.serve("abcdefghijkl")
    served.forget(full=9)
    served.serve("abcdefgh")
    assert served.serve("abcdefghijklm") == [("evicted", 8, 12), ("last_token", 12, 13)]
