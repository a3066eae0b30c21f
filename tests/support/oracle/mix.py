"""A random mix of requests with shared prefixes over a cache that is too small for them, with all that happens to a server."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import torch

from oracle.oracle_engine import OracleEngine
from oracle.reference import Tally
from oracle.tiny_model import Family, Precision, tiny_composition, tiny_model
from reference_engine import EngineSettings, ModelRunner, Request, model_formats
from reference_engine.engine import Sampler
from unified_tree.components import Composition
from unified_tree.controllers import PrefixCache, WritePolicy
from unified_tree.controllers.host.host_tier import LoadCost
from unified_tree.controllers.pages.tier_pages import TierPages
from unified_tree.controllers.pools import PageFormat
from unified_tree.controllers.ranks import Consensus
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy
from unified_tree.controllers.tiers.tensor_memory import TensorTiers, tensor_tiers
from unified_tree.declare.coverage import Path, Point
from unified_tree.terms.tier import Tier

NAMESPACES = ("", "other")
ALWAYS_LOAD = LoadCost(flops_per_s=1.0)
"""Models this small are computed faster than they are loaded."""
EVENTS = {"preempt": 0.03, "weights": 0.01, "drain": 0.1, "flush": 0.03, "evict": 0.06}
"""How often what happens to a server, a step. Besides there are `restart`, which wants a store, and `lose`, of a draft."""
EAGER = PrefetchPolicy(mode=PrefetchMode.WAIT_COMPLETE, min_tokens=1, max_host_share=1.0)


@dataclass(frozen=True, kw_only=True)
class Tiers:
    """What lies behind the device.

    Attributes:
        host: whether there is a host tier.
        write_policy: what it is sent.
        paths: device pages of whole prefixes, as a multiple of what one long request needs.
        windows: device pages of windows, as a multiple of what one request needs.
        states: device pages of states.
        storage: options of `TensorTiers.storage_tier`, its `name` among them; None for no store.
    """

    storage: Mapping[str, Any] | None = None
    host: bool = True
    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH
    paths: float = 3.0
    windows: float = 3.0
    states: int = 8


class Bench:
    """A family's model over real pools, ready to serve; on torch's default device.

    Args:
        family: whose model.
        precision: that it computes in.
        tiers: behind the device.
        random: decides the scheduler's settings, and every token.
        settings: of the scheduler; None to draw them.
        engine: makes one.
        runner: its class.
        composition: changes what the library makes of the model.
        sampler: picks tokens; None to draw them.
        draft: the configuration of a draft model whose state is kept, too.
        of_rank: what one of several ranks keeps of the composition.
        ranks: this rank's consensus with the others.
    """

    def __init__(
        self,
        family: Family,
        precision: Precision,
        tiers: Tiers,
        random: Random,
        *,
        settings: EngineSettings | None = None,
        engine: Callable[..., OracleEngine] = OracleEngine,
        runner: type[ModelRunner] = ModelRunner,
        composition: Callable[[Composition], Composition] = lambda composition: composition,
        sampler: Sampler | None = None,
        draft: Family | None = None,
        of_rank: Callable[[Composition], Composition] = lambda composition: composition,
        ranks: Consensus | None = None,
    ) -> None:
        self.family = family
        self.precision = precision
        self.random = random
        self._runner = runner
        self.composition = composition(tiny_composition(family, precision, draft))
        self.draft = None if draft is None else tiny_model(draft, precision, 77)
        models = {name: tiny_model(family, precision, seed) for seed, name in enumerate(NAMESPACES)}
        self._behind = tiers
        self._of_rank, self._ranks = of_rank, ranks
        self._versions: dict[str, str] = {}
        self._hits: dict[str, int] = {}
        self.tiers, self.cache = self._started(models[""])
        self._engine = partial(
            engine,
            settings=settings or _drawn_settings(family, random),
            sampler=sampler or (lambda _: random.randrange(self.vocabulary)),
            tolerance=precision.tolerance,
        )
        runners = {name: self._runner(model, self.composition) for name, model in models.items()}
        self.engine = self._engine(self.cache, self.tiers.device, runners)

    def _started(self, model: Any) -> tuple[TensorTiers, PrefixCache]:
        """New pools and a cache that knows nothing, over the store there is."""
        behind = self._behind
        tiers = self._tiers(model, behind)
        owners = {c.name for c in self.composition.components if c.shares is None}
        host = tiers.host_tier(write_policy=behind.write_policy, load_cost=ALWAYS_LOAD) if behind.host else None
        storage = None
        if behind.storage is not None:
            given = {"weights_version": "first", "prefetch": EAGER, **behind.storage}
            storage = tiers.storage_tier(given.pop("name"), **given)
        cache = PrefixCache(
            self.composition.components,
            self.family.page_size,
            {name: pool.page_count for name, pool in tiers.device.items() if name in owners},
            host=host,
            storage=storage,
            ranks=self._ranks,
        )
        for namespace, version in self._versions.items():
            cache.invalidate(namespace, version)
        return tiers, cache

    def restart(self) -> None:
        """The server stops and another starts: what is left is in the store. Nothing may be running."""
        assert not self.engine.running and not self.engine.waiting
        self.cache.flush()
        self._end()
        runners, tally = self.engine.runners, self.engine.tally
        self.tiers, self.cache = self._started(runners[""].model)
        self.engine = self._engine(self.cache, self.tiers.device, runners)
        self.engine.tally = tally

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""
        return int(self.family.config["vocab_size"])

    def _tiers(self, model: Any, tiers: Tiers) -> TensorTiers:
        counts = self._page_counts(tiers)
        return tensor_tiers(
            self._of_rank(self.composition.with_formats(self._formats(model))),
            device_page_counts={c.name: counts[c.name] for c in self.composition.components if c.shares is None},
            host_page_counts={name: 3 * count for name, count in counts.items()},
            device=torch.get_default_device(),
        )

    def _formats(self, model: Any) -> dict[str, PageFormat]:
        formats = model_formats(model, self.composition)
        if self.draft is not None:
            formats |= model_formats(self.draft, self.composition, full="draft")
        return formats

    def _page_counts(self, tiers: Tiers) -> dict[str, int]:
        size = self.family.page_size
        counts = {}
        for component in self.composition.components:
            if isinstance(component.coverage, Path):
                counts[component.name] = int(-(-(self.family.prompt_tokens + 24) // size) * tiers.paths)
            elif component.coverage.suffix is not None:
                run = max(*self.family.chunk_tokens, component.rebuild_tokens or 0) + int(component.coverage.suffix.most_tokens)
                counts[component.name] = int((-(-run // size) + 3) * tiers.windows)
            else:
                assert isinstance(component.coverage, Point)
                counts[component.name] = tiers.states
        return counts

    def change_weights(self, namespace: str) -> None:
        """New weights for one namespace; what runs goes on with the old ones."""
        model = copy.deepcopy(self.engine.runners[namespace].model)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1 + 0.2 * self.random.uniform(-1, 1)).add_(0.05 * torch.randn_like(weight))
        self.engine.runners[namespace] = self._runner(model, self.composition)
        self._versions[namespace] = f"changed {self.random.random()}"
        self.cache.invalidate(namespace, self._versions[namespace])

    def serve(self, request: Request) -> Request:
        """Serve one request to its end."""
        with self.precision.context():
            self.engine.submit(request)
            self.engine.run()
        return request

    def evict(self, *names: str) -> None:
        """Evict all that can be evicted from the device, of some components or of all."""
        for name in names or [c.name for c in self.composition.components if c.shares is None]:
            count = self.cache.tree.pool(name, Tier.DEVICE).evictable_pages
            if count:
                self.cache.device.free_evicted(self.cache.tree.evict({name: count}))

    def lose_drafts(self) -> None:
        """Evict what is optional, and nothing else: on host, and on device what has pages of its own there."""
        for c in self.composition.components:
            for tier, pages in self._pages_by_tier().items():
                if not c.required and (tier is Tier.HOST or c.shares is None):
                    pages.free_evicted(self.cache.tree.evict({c.name: self.cache.tree.pool(c.name, tier).used_pages}, tier))

    def _pages_by_tier(self) -> dict[Tier, TierPages]:
        controller = self.cache.controller
        return {Tier.DEVICE: self.cache.device} | ({} if controller is None else {Tier.HOST: controller.host})

    def close(self) -> Tally:
        """End it; every page must be back. Returns what was compared."""
        self._end()
        self.engine.tally.hits = self._hits
        return self.engine.tally

    def _end(self) -> None:
        stats = self.cache.stats()
        hits = {
            "device": stats.hit_tokens - stats.host_hit_tokens,
            "host": stats.host_hit_tokens - stats.storage_hit_tokens,
            "store": stats.storage_hit_tokens,
            "rebuilt": stats.rebuilt_tokens,
            "prompt": stats.prompt_tokens,
        }
        self._hits = {name: count + self._hits.get(name, 0) for name, count in hits.items()}
        self.cache.drain()
        assert not self.cache.tree.check()
        assert self.cache.lease_count == 0
        assert not any(pool.leased for pool in self.cache.stats().pools.values())
        self.cache.close()


def _drawn_settings(family: Family, random: Random) -> EngineSettings:
    return EngineSettings(
        max_running=random.randint(2, 4),
        chunk_tokens=random.choice(family.chunk_tokens),
        commit_pages=random.randint(0, 2),
    )


class Prompts:
    """Prompts that branch off from earlier ones at any token."""

    def __init__(self, random: Random, vocabulary: int, longest: int) -> None:
        self.random = random
        self.vocabulary = vocabulary
        self.longest = longest
        self.earlier: list[list[int]] = []

    def draw(self) -> list[int]:
        """A prompt: all of an earlier sequence, or some of it, and new tokens."""
        random = self.random
        prefix: list[int] = []
        if self.earlier and random.random() < 0.9:
            earlier = random.choice(self.earlier[-12:])
            prefix = earlier if random.random() < 0.6 else earlier[: random.randint(0, len(earlier))]
        room = self.longest - len(prefix)
        fresh = random.randint(1, max(1, min(room, self.longest // 2)))
        prompt = [*prefix, *(random.randrange(self.vocabulary) for _ in range(fresh))][: self.longest]
        self.earlier.append(prompt)
        return prompt


def serve_mix(
    bench: Bench,
    requests: int,
    events: Mapping[str, float] | None = None,
    namespaces: Sequence[str] = ("", "", NAMESPACES[1]),
) -> Tally:
    """Serve random requests in some namespaces; a step in so many something happens (see `EVENTS`). Returns what was
    compared."""
    random = bench.random
    prompts = Prompts(random, bench.vocabulary, bench.family.prompt_tokens)
    chances = EVENTS if events is None else events
    ends = [c.name for c in bench.composition.components if c.shares is None and not isinstance(c.coverage, Path)]
    left = requests
    served: list[Request] = []
    with bench.precision.context():
        while left or bench.engine.waiting or bench.engine.running:
            engine, cache = bench.engine, bench.cache
            while left and len(engine.waiting) < 2:
                prompt = prompts.draw()
                points = [random.randint(1, len(prompt)) for _ in range(random.choice((0, 0, 1, 2)))]
                request = Request(
                    prompt=prompt,
                    new_tokens=random.choice((1, 2, 5, 12)),
                    namespace=random.choice(namespaces),
                    checkpoints=points,
                    save_output=random.random() < 0.8,
                )
                engine.submit(request)
                served.append(request)
                left -= 1
            engine.step()
            if served and served[0].finished:
                prompts.earlier.append(served.pop(0).tokens[: bench.family.prompt_tokens - 5])
            if engine.running and random.random() < chances.get("preempt", 0):
                engine.preempt(random.choice(engine.running))
            if random.random() < chances.get("weights", 0):
                bench.change_weights(random.choice(NAMESPACES))
            if random.random() < chances.get("evict", 0):
                bench.evict(*random.choice((ends, ends, [])))
            if "lose" in chances and random.random() < chances["lose"]:
                bench.lose_drafts()
            if random.random() < chances.get("drain", 0):
                cache.drain()
            if random.random() < chances.get("flush", 0):
                cache.flush()
            if left and random.random() < chances.get("restart", 0):
                engine.run()
                bench.restart()
    return bench.close()
