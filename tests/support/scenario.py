"""Everything that one seed decides about a simulated server, alone or of several ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from kinds import SETS
from sim_sessions import SessionScenario
from sim_store import StoreScenario

from unified_tree import POLICIES, BlockBudget
from unified_tree.controllers import LoadCost, WritePolicy
from unified_tree.controllers.storage_tier import PersistPolicy, PrefetchMode, PrefetchPolicy
from unified_tree.controllers.testing import Faults, Latencies, StorageFaults

ACTIONS: dict[str, float] = {
    "arrive": 6,
    "step": 12,
    "reject": 2,
    "preempt": 1,
    "abort": 2,
    "cancel_transfer": 1,
    "invalidate": 1,
    "hoard": 1,
    "unhoard": 2,
    "squeeze": 2,
    "flush": 2,
    "drain": 1,
    "settle": 2,
    "explain": 1,
    "forget": 3,
    "leave": 1,
    "abandon": 1,
    "recall": 1,
    "swap_store": 1,
    "restart": 1,
}
"""What may happen in a tick, and how often. A seed leaves some of it out, and has less or much less of what is not needed, so
that requests come to their end and what the rest leads to gets deep."""
SHARING = 0.3
"""How often the pools of a tier share its memory."""
NEEDED = ("arrive", "step")
TELLING = ("forget", "restart", "recall")
"""Without these nothing comes from host or from a store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A server, its load and its bad luck.

    Attributes:
        kinds: which set of components.
        device_pages, host_pages: by component; one left out is unbounded.
        budget, host_budget: what the pools of a tier share in place of page counts; None for nothing.
        letters: different tokens in prompts; the fewer, the more prefixes are shared.
        turns: the chance that a prompt goes on from an older text, of which `max_texts` are remembered; `twins`:
            that it is the same as that of a request at work.
        longest: tokens a prompt adds, at most; `longest_step`: a step computes.
        publish: the chance that a step's work is committed; `poll`: that a tick polls.
        tick_ns: virtual time a tick takes, at most.
        dies_at: the tick in which the engine dies, None for never; it `refuses` what it is given then, or fails it.
        store: what is behind the host tier, None for nothing.
        closes_at_work: whether the cache is closed while leases are out.
        remembered: see CpuEngine; `max_versions`: see PrefixCache.
        neighbour: whether another deployment of the same model lives beside this one, over the same store.
        sessions: how it speaks of sessions and of requests to come; None for not at all.
    """

    seed: int
    ticks: int
    kinds: str
    page_size: int
    policy: str
    rebuild: bool
    device_pages: dict[str, int]
    host_pages: dict[str, int]
    budget: BlockBudget | None
    host_budget: BlockBudget | None
    write_policy: WritePolicy
    selective_hits: int
    low_water: float
    lost_share: float
    worth_share: float
    max_backup_share: float
    exclusive: bool
    load_cost: LoadCost
    latencies: Latencies
    faults: Faults
    actions: dict[str, float]
    namespaces: tuple[str, ...]
    letters: int
    turns: float
    max_texts: int
    twins: float
    longest: int
    longest_step: int
    publish: float
    max_running: int
    poll: float
    tick_ns: int
    dies_at: int | None
    refuses: bool
    closes_at_work: bool
    store: StoreScenario | None
    remembered: int
    max_versions: int
    neighbour: bool
    sessions: SessionScenario | None = None

    @classmethod
    def of(cls, seed: int, ticks: int) -> Scenario:
        """What a seed decides."""
        rng = Random(f"scenario {seed}")
        kinds = rng.choice(list(SETS))
        size = rng.choice([1, 2, 4, 10])
        device = {c.name: size * rng.choice([6, 10, 16]) for c in SETS[kinds] if c.shares is None}
        host = {c.name: rng.choice([1, 4, 12, 24, 60, 200]) for c in SETS[kinds]}
        if rng.random() < 0.7:
            host = dict.fromkeys(host, 400)
        for name in list(host):
            if rng.random() < 0.1:
                del host[name]
        left_out = rng.choice([0, 0.2, 0.5])
        trouble = rng.choice([1, 0.3, 0.1])
        tick_ns = rng.choice([10_000, 50_000, 200_000])
        stage_ns = int(tick_ns * rng.choice([0.05, 0.3, 1, 5]))
        return cls(
            seed=seed,
            ticks=ticks,
            kinds=kinds,
            page_size=rng.choice([1, 2, 2, 3]),
            policy=rng.choice(list(POLICIES)),
            rebuild=rng.random() < 0.7,
            device_pages=device,
            host_pages=host,
            budget=_budget(Random(f"budget {seed}"), device, [c.name for c in SETS[kinds] if c.shares is None]),
            host_budget=_budget(Random(f"host budget {seed}"), host, [c.name for c in SETS[kinds]]),
            write_policy=rng.choice([WritePolicy.WRITE_THROUGH, *WritePolicy]),
            selective_hits=rng.choice([1, 2, 3]),
            low_water=rng.choice([0.0, 0.1, 0.3, 0.6, 1.0]),
            lost_share=Random(f"lost {seed}").choice([0.0, 0.01, 0.3, 1.0]),
            worth_share=Random(f"worth {seed}").choice([0.0, 0.5, 1.0]),
            max_backup_share=rng.choice([0.0, 0.25, 0.5, 1.0]),
            exclusive=rng.random() < 0.4,
            load_cost=LoadCost(min_tokens=rng.choice([1, 1, 1, 5])),
            latencies=Latencies(stage_ns=stage_ns, page_ns=stage_ns // 20, spread=rng.choice([0.0, 2.0, 20.0])),
            faults=Faults(
                fails=rng.choice([0, 0, 0.03, 0.2]), late=rng.choice([0, 0, 0.2, 0.7]), twice=rng.choice([0, 0.1, 0.5])
            ),
            actions={
                name: weight * (1 if name in NEEDED else max(trouble, 0.5) if name in TELLING else trouble)
                for name, weight in ACTIONS.items()
                if name in NEEDED or rng.random() >= left_out
            },
            namespaces=rng.choice([("",), ("", "", "tenant"), ("a", "b", "c")]),
            letters=rng.choice([1, 2, 2, 3, 50]),
            turns=rng.choice([0.7, 0.9, 0.97]),
            max_texts=rng.choice([5, 12, 40]),
            twins=rng.choice([0.0, 0.1, 0.3]),
            longest=rng.choice([6, 12, 20]),
            longest_step=rng.choice([2, 6, 12]),
            publish=rng.choice([1.0, 0.7, 0.3]),
            max_running=rng.choice([1, 2, 3, 5]),
            poll=rng.choice([1.0, 0.9, 0.3]),
            tick_ns=tick_ns,
            dies_at=rng.randrange(150) if rng.random() < 0.06 else None,
            refuses=rng.random() < 0.5,
            closes_at_work=rng.random() < 0.3,
            store=_store(rng, seed, tick_ns) if rng.random() < 0.75 else None,
            remembered=rng.choice([1, 1, 2, 4096]),
            max_versions=rng.choice([1, 1, 2, 100]),
            neighbour=rng.random() < 0.2,
            sessions=SessionScenario.of(seed, tick_ns),
        )


def _budget(rng: Random, pages: dict[str, int], names: list[str]) -> BlockBudget | None:
    """Sometimes one budget, of about what the pools have, where pages may take very different numbers of blocks."""
    if rng.random() >= SHARING:
        return None
    blocks = {name: rng.choice([1, 1, 2, 5, 20]) for name in names}
    wanted = sum(blocks[name] * pages.get(name, 100) for name in names)
    return BlockBudget(block_count=max(wanted, *blocks.values()), page_blocks=blocks)


def _store(rng: Random, seed: int, tick_ns: int) -> StoreScenario:
    bad = rng.choice([0.0, 0.0, 0.02, 0.2])
    ill = Random(f"store {seed}")
    return StoreScenario(
        page_count=rng.choice([2, 10, 200, 400, 400]),
        faults=StorageFaults(
            raising=bad / 2,
            partial=bad * rng.random(),
            lost=bad * rng.random(),
            torn=bad,
            corrupt=bad * rng.random(),
            stale=ill.choice([0.0, 0.0, 0.0, 0.0, 0.02, 0.3]),
            full=ill.choice([0.0, 0.0, 0.1, 0.3, 1.0]) if bad == 0.2 else 0.0,
        ),
        prefetch=PrefetchPolicy(
            mode=rng.choice(list(PrefetchMode)),
            min_tokens=rng.choice([1, 1, 4]),
            max_host_share=rng.choice([0.1, 0.5, 1.0]),
            base_s=rng.choice([0.0001, 0.001]),
            per_token_s=rng.choice([0.0, 0.00001]),
            batch_pages=rng.choice([1, 2, 8]),
            grace_s=rng.choice([0.0, 0.0005]),
            room_pages=rng.choice([1, 2, 5, 256]),
            max_open=rng.choice([1, 3, 100, 100, 100]),
            max_outcomes=rng.choice([1, 2, 100]),
            failed_pause_s=ill.choice([0.0, 0.0001, 0.0001, 0.001, 10.0]),
            max_failed_pages=ill.choice([1, 3, 1000]),
        ),
        persist=PersistPolicy(
            max_waiting=rng.choice([1, 4, 100]),
            bytes_per_s=rng.choice([None, 1e7]),
            batch_pages=rng.choice([1, 3, 64]),
            known_pages=rng.choice([1, 3, 1000]),
            recheck_s=rng.choice([0.001, 1.0]),
            retry_s=ill.choice([None, 0.0001, 0.001]),
        ),
        step_ns=int(tick_ns * rng.choice([0.02, 0.2, 2])),
        readers=rng.choice([1, 2, 100]),
    )


RANK_TICKS = 160
"""Of lives of servers that are ranks of one: the same load, and a store that is hit in most of them."""
RANK_PREFETCH = PrefetchPolicy(mode=PrefetchMode.WAIT_COMPLETE, min_tokens=1, max_host_share=1.0, batch_pages=2)
RANK_SEEDS = [seed for seed in range(80) if Scenario.of(seed, RANK_TICKS).store is not None]
UNSHARED = ("cancel_transfer", "restart")
"""What happens to one rank alone, and would be told to its scheduler alone; and what ends the consensus."""


def rank_scenario(seed: int) -> Scenario:
    """A life without failing copies, which a scheduler would hear of on one rank only, and with much to prefetch.

    The store of every second one fails now and then, on each rank by its own luck.
    """
    found = Scenario.of(seed, RANK_TICKS)
    faults = StorageFaults(lost=0.01, torn=0.01, corrupt=0.01) if seed % 2 else StorageFaults()
    actions = {name: weight for name, weight in found.actions.items() if name not in UNSHARED}
    return replace(
        found,
        actions=actions | {"forget": 2, "recall": 14, "arrive": 10},
        dies_at=None,
        faults=replace(found.faults, fails=0.0),
        write_policy=WritePolicy.WRITE_THROUGH,
        max_backup_share=1.0,
        poll=1.0,
        turns=1.0,
        letters=2,
        load_cost=LoadCost(min_tokens=1),
        host_pages=dict.fromkeys(found.host_pages, 400),
        longest=4,
        device_pages={name: max(count, 30) for name, count in found.device_pages.items()},
        budget=_roomy(found.budget, 30),
        host_budget=_roomy(found.host_budget, 400),
        max_running=max(found.max_running, 6),
        publish=1.0,
        neighbour=False,
        store=None if found.store is None else store_of(found.store, faults),
    )


def _roomy(budget: BlockBudget | None, pages: int) -> BlockBudget | None:
    """A budget, where there is one, for so many pages of each pool at least."""
    if budget is None:
        return None
    return replace(budget, block_count=max(budget.block_count, pages * sum(budget.page_blocks.values())))


def store_of(store: StoreScenario, faults: StorageFaults) -> StoreScenario:
    """With its own bounds, but room enough that what was stored is found again."""
    bounds = store.prefetch
    return replace(
        store,
        page_count=400,
        faults=faults,
        prefetch=replace(
            RANK_PREFETCH, room_pages=bounds.room_pages, max_open=bounds.max_open, max_outcomes=bounds.max_outcomes
        ),
        persist=replace(store.persist, max_waiting=100),
        step_ns=2_000,
    )
